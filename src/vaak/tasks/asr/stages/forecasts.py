"""Forecasts of the time and memory of each stage, before it runs.

    seconds = PASSES · (seconds of embedding an utterance) · (utterances read in all epochs) + STARTING

The time to embed an utterance is known once the stage of embeddings has run. Before that, it is the encoder's
arithmetic by the time of a matrix product of its size, and READING_SECONDS. Early stopping isn't counted, nor the
length of transcripts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.progress import track
from vaak.core.storage.files import read_json
from vaak.data.plan import sample_size
from vaak.pipeline.execution import MANIFEST
from vaak.pipeline.rows import PipelineRowStore, disk_bytes
from vaak.pipeline.stage import Forecast
from vaak.tasks.asr.stages.clustering import memory_needed
from vaak.tasks.asr.stages.embeddings import EMBEDDINGS_FILE, ROWS
from vaak.tasks.asr.stages.options import QUICK_VALID, MoeOptions
from vaak.tasks.asr.stages.runs import (
    ADAPTED_ACCENTS,
    BASE_ACCENTS,
    DIGIT_VOICES,
    base_values,
    get_base,
    get_seconds,
    make_data_section,
    wants_base,
    wants_pretraining,
)

PASSES = 3.0
"""The work of training, or evaluating, an utterance in passes of the encoder: forward, backward, and the decoder."""
READING_SECONDS = 0.01
"""Seconds in which an utterance is read and its features are computed, or a built-in voice says it."""
STARTING = 5.0
"""Seconds until a run takes its first step."""
UMAP = 30.0
"""Seconds in which UMAP is compiled and draws its picture of few points."""
KEPT_CHECKPOINTS = 5
"""Checkpoints that a run keeps: best, last, and three."""
LIBRARIES = 700 * 2**20
"""Bytes of a process before it has a model."""
TIMED, ROWS_TIMED = 10, 512
"""Products that are timed, and the rows of each: more take longer, at the same rate."""
LARGE_SIZES = {
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
LARGE_MODELS = {"v2": {"vocab_size": 51865, "num_mel_bins": 80}, "v3": {"vocab_size": 51866, "num_mel_bins": 128}}
"""Whisper's large models, whose sizes are known without a network."""
MEASURED = "by the embeddings' time for each utterance, to a factor of three; less where training stops early"
COMPUTED = (
    "by the base's sizes and a matrix product on this machine, to a factor of five; less where training stops early"
)


@dataclass(frozen=True)
class CostBasis:
    """The basis of forecasts: utterances to train on, to validate and to test on, and the base that embeds them.

    ``seconds`` are those of embedding one, ``width`` and ``positions`` the shape of its states, ``weights`` the bytes
    of a checkpoint without optimizer; ``memory`` what a process holds that embeds.
    """

    train: int
    valid: int
    test: int
    seconds: float
    width: int
    positions: int
    weights: int
    memory: float
    certainty: str

    def passes(self, options: MoeOptions, stage: str) -> float:
        """Utterances that a stage reads, in all epochs and evaluations."""
        part, epochs = options.get_data_share(stage), options.get_epochs(stage)
        trained = sample_size(self.train, part.percent, part.most)
        return epochs * trained + epochs // options.eval_every_n_epochs * self.valid


def base_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of training a base from scratch."""
    found, experiment = _estimated_basis(options.model_dump_json()), _base_experiment(options)
    if isinstance(found, str):
        return Forecast(certainty=found)
    training = experiment.training
    read = (training.max_steps or 0) * training.batch_size
    spoken = DIGIT_VOICES["num_voices"] * DIGIT_VOICES["num_sentences"]
    seconds = STARTING + PASSES * found.seconds * read + READING_SECONDS * spoken
    return Forecast(seconds, 3 * KEPT_CHECKPOINTS * found.weights, found.memory + 3 * found.weights, found.certainty)


def embeddings_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of the embeddings, by what they took before, if they were computed."""
    found = _basis(options, inputs)
    if isinstance(found, str):
        return Forecast(certainty=found)
    number = _embedded(options, found)
    shape = {"mean": 1, "flatten": found.positions, "none": found.positions}[options.pooling]
    disk = disk_bytes(number, (shape, found.width), options.embedding_type)
    return Forecast(number * found.seconds, disk, found.memory, found.certainty)


def clusters_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of clustering: distances of all pairs, for the clusters and for each of the resamples."""
    found = _basis(options, inputs)
    if isinstance(found, str):
        return Forecast(certainty=found)
    number, columns = _embedded(options, found), found.width * (1 if options.pooling == "mean" else found.positions)
    if (rows := inputs["embeddings"] / ROWS).is_dir():
        store = PipelineRowStore(rows)
        number, columns = len(store), store.num_columns
    dims = columns if options.reduce == "none" else min(options.reduce_dim, columns)
    # Operations per second of this machine, by the time of a product of 256 × 256 matrices.
    rate = 2 * 256**3 / _time_product("cpu", 256, 256, 256)
    seconds = (1 + options.bootstraps) * 2 * number**2 * dims / rate
    if options.reduce == "umap" or (options.draw and options.plot_method == "umap"):
        seconds += UMAP
    memory = memory_needed(number, columns, options.clustering)
    return Forecast(seconds, 0, memory, "by the arithmetic of all pairs' distances: at least this")


def gate_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of training the gate."""
    found = _basis(options, inputs)
    if isinstance(found, str):
        return Forecast(certainty=found)
    number, rows, hidden = _embedded(options, found), options.get_batch_size("gate"), options.gate_width
    steps = options.get_epochs("gate") * -(-number // rows)
    seconds = STARTING + 3 * steps * _time_product(
        options.device, rows, found.width, hidden
    )  # forward, and two backward
    memory = found.memory + 4 * number * found.width
    return Forecast(
        seconds, KEPT_CHECKPOINTS * 12 * found.width * hidden, memory, "by timing a product of its size: at least this"
    )


def experts_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of training the experts."""
    return _forecast_training(options, inputs, "experts", options.experts)


def joint_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of joint training."""
    return _forecast_training(options, inputs, "joint", 1)


def one_lora_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of one LoRA, which is trained as the experts together, and then as joint training."""
    both = [
        _forecast_training(options, inputs, stage, 1)
        for stage in ("experts", "joint")[not wants_pretraining(options) :]
    ]
    if any(one.seconds is None for one in both):
        return both[-1]
    return replace(both[-1], seconds=sum(one.seconds or 0 for one in both))


def transcripts_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of transcribing with one system."""
    found = _basis(options, inputs)
    if isinstance(found, str):
        return Forecast(certainty=found)
    number = found.test if found.test and options.mode == "full" else found.valid
    return Forecast(STARTING + PASSES * found.seconds * number, 0, found.memory, found.certainty)


def instant_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Return the forecast of a stage that only counts or adds up."""
    return Forecast(STARTING, 0, LIBRARIES, "seconds: figures only")


def _forecast_training(options: MoeOptions, inputs: Mapping[str, Path], stage: str, num_runs: int) -> Forecast:
    found = _basis(options, inputs)
    if isinstance(found, str):
        return Forecast(certainty=found)
    seconds = num_runs * STARTING + PASSES * found.seconds * found.passes(options, stage)
    # Frozen weights are on disk once for all checkpoints of a stage's runs, and once more while the next run's are
    # written; the adapters are small next to them.
    return Forecast(seconds, min(2, num_runs) * found.weights, found.memory + found.weights, found.certainty)


def _embedded(options: MoeOptions, found: CostBasis) -> int:
    part = options.get_data_share("embeddings")
    return sample_size(found.train, part.percent, part.most)


def _basis(options: MoeOptions, inputs: Mapping[str, Path]) -> CostBasis | str:
    """Return the costs measured by the stage of embeddings, or an estimate before it ran, or why there is none."""
    folder = inputs.get("embeddings")
    if folder is None or not (folder / MANIFEST).exists():
        return _estimated_basis(options.model_dump_json())
    from vaak.tasks.asr.utterances import Utterances

    record, about, prepared = (
        read_json(folder / MANIFEST),
        read_json(folder / EMBEDDINGS_FILE),
        folder / "data" / "prepared",
    )
    train, valid = len(Utterances(prepared / "train").cuts), len(Utterances(prepared / "valid"))
    test = len(Utterances(prepared / "test")) if (prepared / "test").is_dir() else 0
    seconds = record["seconds"] / record["figures"]["utterances"]
    weights = _parameters(_sizes(read_json(prepared / "base" / "config.json")), about["positions"])[1]
    shape = about["width"], about["positions"]
    return CostBasis(train, valid, test, seconds, *shape, 4 * weights, record["memory_bytes"], MEASURED)


@lru_cache(maxsize=1)
def _estimated_basis(of: str) -> CostBasis | str:
    """The basis by options, as JSON, before anything has run; or why there is none: no base, or no data."""
    options = MoeOptions.model_validate_json(of)
    try:
        config, numbers = _base_config(options), _utterances(options)
    except UserError as error:
        return f"not known: {error}"
    positions = config.get("max_source_positions") or round(50 * get_seconds(options))
    width = config["d_model"]
    encoder, all_weights = _parameters(config, positions)
    # Two operations for each parameter and position, and in each layer 4 · width for each pair of positions: scores and
    # weighted sums.
    operations = 2 * positions * encoder + 4 * config["encoder_layers"] * positions**2 * width
    inner = config["encoder_ffn_dim"]
    per_second = 2 * ROWS_TIMED * width * inner / _time_product(options.device, ROWS_TIMED, width, inner)
    # Without gradients, the largest activation is that inside a feed-forward layer; one at a time is in memory.
    memory = LIBRARIES + 4 * all_weights + 4 * options.embedding_batch_size * positions * inner
    each = READING_SECONDS + operations / per_second
    return CostBasis(*numbers, each, width, positions, 4 * all_weights, memory, COMPUTED)


def _base_experiment(options: MoeOptions) -> Any:
    from vaak.config.load import load_layers

    return load_layers([base_values(options), options.base_config, {"name": "base"}]).experiment


def _base_config(options: MoeOptions) -> dict[str, Any]:
    """The sizes of the base. Raises UserError where they aren't on this machine: the Hub isn't contacted."""
    from vaak.tasks.asr.model import BASE_KEY, find_run
    from vaak.tasks.asr.whisper.network import config_before
    from vaak.tasks.pretrained import load_config, resolve_source

    if wants_base(options):
        config = config_before(_base_experiment(options), Path())
        # It isn't the Hub's.
        assert config is not None
        return dict(config.to_dict())
    name = get_base(options)
    if name in LARGE_MODELS:
        return {**LARGE_SIZES, **LARGE_MODELS[name]}
    if (run := find_run(name, Path())) is not None:
        from vaak.tasks.asr.ctc.prepare import about_run

        return _sizes(about_run(run))
    return _sizes(load_config(BASE_KEY, resolve_source(BASE_KEY, name, Path()), local_files_only=True).to_dict())


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a base under a Whisper's names; an encoder alone has no decoder, and reads samples."""
    if "hidden_size" not in config:
        return dict(config)
    layers, inner = config["num_hidden_layers"], config["intermediate_size"]
    none = dict.fromkeys(("decoder_layers", "decoder_ffn_dim", "max_target_positions", "num_mel_bins"), 0)
    sizes = {"d_model": config["hidden_size"], "encoder_layers": layers, "encoder_ffn_dim": inner}
    return {**none, **sizes, "vocab_size": config["vocab_size"]}


def _utterances(options: MoeOptions) -> tuple[int, int, int]:
    """Return the numbers of utterances to train on, in all, to validate and to test on; voices aren't made for it."""
    from vaak.audio.config import AudioConfig, DatasetConfig
    from vaak.audio.corpora.corpus import AudioCorpus

    counts = {"train": 0, "valid": 0, "test": 0}
    for values in make_data_section(options, "joint")["datasets"]:
        dataset = DatasetConfig(**values)
        if dataset.type == "voices":
            spoken = dataset.num_voices * dataset.num_sentences
            if values == DIGIT_VOICES:
                # Only the accents that are adapted to count.
                spoken = spoken * len(ADAPTED_ACCENTS) // (len(ADAPTED_ACCENTS) + len(BASE_ACCENTS))
            counts["train"] += round(spoken * dataset.train_fraction)
            counts["valid"] += round(spoken * dataset.valid_fraction)
            counts["test"] += round(spoken * (1 - dataset.train_fraction - dataset.valid_fraction))
            continue
        corpus = AudioCorpus(dataset, AudioConfig())
        for split in counts.keys() & set(corpus.splits):
            counts[split] += sum(1 for _ in track(corpus.cuts(split), f"counting {split}"))
    most = QUICK_VALID if options.mode == "quick" else counts["valid"]
    return counts["train"], min(counts["valid"], most), counts["test"]


def _time_product(device_name: str, rows: int, width: int, hidden: int) -> float:
    """Return the seconds of one product of matrices, on a device that a stage uses."""
    import torch

    from vaak.engine.distributed.launcher import pick_device

    device = pick_device(device_name)
    one, other = torch.ones(rows, width, device=device), torch.ones(width, hidden, device=device)
    begun = time.perf_counter()
    for _ in range(TIMED):
        product = one @ other
    # Reading the number waits for the device.
    product[0, 0].item()
    return (time.perf_counter() - begun) / TIMED


def _parameters(about: Mapping[str, Any], positions: int) -> tuple[int, int]:
    """The weights of the encoder's layers, and all of them, by the base's configuration."""
    width, layers = about["d_model"], (about["encoder_layers"], about["decoder_layers"])
    ff = (about["encoder_ffn_dim"], about["decoder_ffn_dim"])
    encoder = layers[0] * (4 * width * width + 2 * width * ff[0])
    decoder = layers[1] * (8 * width * width + 2 * width * ff[1])
    tables = width * (about["vocab_size"] + positions + about["max_target_positions"])
    convolutions = 3 * width * (width + about["num_mel_bins"])
    return int(encoder + convolutions), int(encoder + decoder + tables + convolutions)
