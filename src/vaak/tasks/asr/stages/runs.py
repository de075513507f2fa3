"""The runs of stages: their data, how they are trained, and their base, with stage ``base``.

Without data, mode quick reads built-in voices. The accents of voices are their groups: a base never hears those that
are adapted to. Without weights, stage ``base`` trains a tiny Whisper from scratch. Imports no torch.

base/whisper/    as transformers saves it: model.base of the other stages        base/run/    its run
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vaak.audio.config import DatasetConfig
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint, hash_file
from vaak.pipeline.stage import StageWork
from vaak.tasks.asr.config import SCRATCH, VERSIONS, seconds_read_by
from vaak.tasks.asr.stages.options import QUICK_VALID, MoeOptions

log = logging.getLogger("vaak")
Values = dict[str, Any]
DATASET_ROOT = Path("Data/extracted_data")
BASE_ACCENTS = ("en", "en-029", "en-gb-x-rp", "en-us")
ADAPTED_ACCENTS = ("en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc")
DIGIT_VOICES: Values = {
    "name": "voices", "type": "voices", "say": "digits", "num_voices": 32, "num_sentences": 12,
    "train_fraction": 0.8, "valid_fraction": 0.1,
}  # fmt: skip
VOICES_SECONDS = 4.0
"""Seconds of the longest utterance of voices."""
WHISPER_SECONDS = 30.0
QUICK_SECONDS = 10.0
"""Seconds that a base reads which is trained from scratch in mode quick."""
NOT_EMBEDDED = ("augmentation", "decoding", "max_valid_samples", "normaliser", "tokenizer")
"""Options of the section data that change nothing of the embeddings."""
BASE_FILES = (".safetensors", ".json", ".txt")
"""Files that transformers reads of a base: weights, sizes, tokens and their merges."""
NOT_LORA = r"^(?!.*\.lora_[AB]\.)"
"""Parameters that aren't an adapter's."""
MINUTES_BETWEEN_SAVES = 30
"""The most that a killed stage loses, however long its epochs are."""


def make_datasets(options: MoeOptions) -> list[Values]:
    """The data, as in a run's configuration. Raises UserError where there are none, and mode is full."""
    if options.datasets:
        return [_as_given(one) for one in options.datasets]
    root = options.dataset_root or (DATASET_ROOT if DATASET_ROOT.is_dir() else None)
    if root is not None:
        if not root.is_dir():
            raise UserError(f"--dataset-root: no such folder: {root}")
        elsewhere = {} if options.audio_root is None else {"audio_root": [str(options.audio_root)]}
        return [{"name": root.name, "type": "splits", "corpus_dir": str(root), **elsewhere}]
    if options.mode == "full":
        raise UserError(
            f"no data: give --dataset-root, a folder with Train and Dev ({DATASET_ROOT} isn't there), or "
            "datasets in --config; mode quick needs none"
        )
    return [DIGIT_VOICES]


def _as_given(dataset: DatasetConfig) -> Values:
    """A dataset as in a configuration: without what other types read, whose defaults options from a file have, too."""
    values = {"name": dataset.name, **dataset.model_dump(mode="json", exclude_defaults=True)}
    # Some types of data have another default.
    if DatasetConfig(**values).split_by != dataset.split_by:
        values["split_by"] = dataset.split_by
    return values


def get_base(options: MoeOptions) -> str:
    """The base: a name, a folder, or scratch."""
    if options.whisper_model is not None:
        return options.whisper_model
    if options.mode != "quick":
        return "v2"
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return SCRATCH
    is_here = isinstance(try_to_load_from_cache(VERSIONS["v2"], "model.safetensors"), str)
    return "v2" if is_here else SCRATCH


def _base_folder(options: MoeOptions) -> Path | None:
    """The folder of a base that is in one, and isn't made here."""
    path = Path(VERSIONS.get(get_base(options), get_base(options))).expanduser()
    if (path / "config.yml").is_file():
        # A run: its checkpoint has all that is used of it.
        from vaak.engine.checkpoint.files import resolve_checkpoint

        return resolve_checkpoint(path)
    return path if path.is_dir() else None


def wants_base(options: MoeOptions) -> bool:
    """Whether the base is trained first."""
    return get_base(options) == SCRATCH


def wants_pretraining(options: MoeOptions) -> bool:
    """Whether gate and experts are trained one after another before they are trained together."""
    return not options.skip_pretraining


def make_model_section(work: StageWork) -> Values:
    """The section model of a stage's run: the base that the first stage made, or that is asked for."""
    options: MoeOptions = work.options
    base = str(work.inputs["base"] / "whisper") if "base" in work.inputs else get_base(options)
    return {"base": base, **make_architecture(options)}


def make_architecture(options: MoeOptions) -> Values:
    """Options of the section model that a Whisper doesn't have."""
    return {} if options.architecture == "whisper" else {"architecture": options.architecture}


def warn_fallbacks(options: MoeOptions) -> None:
    """Warn of the stand-ins for missing data and weights."""
    if make_datasets(options) == [DIGIT_VOICES]:
        log.warning("no data (--dataset-root): built-in voices say digits; their accents are the groups")
    if options.whisper_model is None and wants_base(options):
        log.warning("no Whisper on this machine: a tiny one is trained from scratch (--whisper-model)")


def make_data_section(options: MoeOptions, stage: str) -> Values:
    """The sections task, datasets and data of a run of a stage; ``stage`` decides how much of the data it reads."""
    datasets, part = make_datasets(options), options.get_data_share(stage)
    data: Values = {"sampling_seed": options.seed, "percent": part.percent, "max_samples": part.most}
    if options.mode == "quick":
        data |= {"max_valid_samples": QUICK_VALID}
    if datasets == [DIGIT_VOICES]:
        data |= {"group": "accent", "groups": ADAPTED_ACCENTS}
    return {
        "task": "asr", "datasets": datasets, "data": {**data, "max_duration": get_seconds(options), **options.data},
    }  # fmt: skip


def get_seconds(options: MoeOptions) -> float:
    """Return the seconds that the encoder reads at once."""
    default = VOICES_SECONDS if make_datasets(options) == [DIGIT_VOICES] else WHISPER_SECONDS
    if options.mode == "quick" and wants_base(options):
        default = min(default, QUICK_SECONDS)
    default = min(default, seconds_read_by(get_base(options)) or default)
    return float(options.data.get("max_duration", default))


def make_training_section(options: MoeOptions, stage: str, metric: str) -> Values:
    """The section training of a run of a stage; ``metric`` decides which checkpoint is the best, and when to stop."""
    values: Values = {
        "epochs": options.get_epochs(stage),
        "batch_size": options.get_batch_size(stage),
        "random_seed": options.seed,
        "device": options.device,
        "optimizer": {"lr": {"gate": options.gating_lr, "experts": options.expert_lr, "joint": options.asr_lr}[stage]},
        "validation": {"interval_epochs": options.eval_every_n_epochs},
        "early_stopping": {"patience": options.patience, "metric": metric},
        "checkpoint": {
            "metric": metric,
            "interval_epochs": options.save_every_n_epochs,
            "interval_minutes": MINUTES_BETWEEN_SAVES,
        },
    }
    if stage != "gate":
        values["gradient_accumulation_steps"] = options.gradient_accumulation_steps
        values["mixed_precision"] = get_precision(options)
        values["performance"] = {"num_workers": options.num_workers}
    if stage == "experts":
        # All experts are of the base's output layer.
        values["freeze"] = [{"match": NOT_LORA}]
    return values


def get_metric(options: MoeOptions) -> str:
    """The metric of speech recognition that decides which checkpoint is the best."""
    return f"val_{options.best_by}"


def get_precision(options: MoeOptions) -> str:
    """no, fp16 or bf16."""
    from vaak.engine.distributed.launcher import pick_device

    if options.bf16:
        return "bf16"
    is_fp16 = pick_device(options.device).type == "cuda" if options.fp16 is None else options.fp16
    return "fp16" if is_fp16 else "no"


def make_task(values: Mapping[str, Any], directory: Path, *overrides: Mapping[str, Any]) -> Any:
    """The task of a run's configuration, in a directory; ``overrides`` are sections that override ``values``."""
    from vaak.config.load import load_layers
    from vaak.config.tasks import task_class

    loaded: Any = load_layers([values, *overrides, {"name": "data", "run_dir": str(directory)}])
    return task_class("asr")(loaded.experiment, directory, loaded.folder)


def prepared_task(values: Mapping[str, Any], directory: Path, *overrides: Mapping[str, Any]) -> Any:
    """The same, with its data prepared in the directory if they aren't there yet."""
    from vaak.runs.prepared import is_prepared

    task = make_task(values, directory, *overrides)
    if not is_prepared(directory):
        task.prepare()
    return task


def best_metrics(directory: Path) -> dict[str, float]:
    """The metrics of a run's best checkpoint, with its ``step``."""
    from vaak.engine.checkpoint.files import resolve_checkpoint
    from vaak.engine.checkpoint.names import parse_step
    from vaak.engine.metrics_file import iterate_evaluations

    step = parse_step(resolve_checkpoint(directory))
    (*_, found) = [one for one in iterate_evaluations(directory) if one["step"] == step]
    return {name: value for name, value in found.items() if name == "step" or name.startswith("val_")}


def embedding_settings(options: MoeOptions) -> Values:
    """Return the inputs of embeddings: the base's name, and the data options that choose and read utterances."""
    settings = training_settings(options)
    return {**settings, "data": {name: one for name, one in settings["data"].items() if name not in NOT_EMBEDDED}}


def training_settings(options: MoeOptions) -> Values:
    """Return the inputs of a stage that trains: the base's name, and the section data without its paths."""
    data = options.model_dump(mode="json", include={"data"})["data"]
    data.pop("cache_dir", None)
    name = VERSIONS.get(get_base(options), get_base(options))
    return {"whisper_model": "a folder" if _base_folder(options) else name, "data": data, **make_architecture(options)}


def data_digest(options: MoeOptions) -> Any:
    """Return a value that changes with the data, and with a base in a folder.

    Manifests, texts and the base count by content; audio, and labels in separate files, by their names in the
    manifest and their sizes: a recording that is replaced by one of the same size isn't noticed.
    """
    folder = _base_folder(options)
    found = {"the data it reads": _digest_of_data(make_datasets(options))}
    if folder is not None:
        files = sorted(path for path in folder.iterdir() if path.suffix in BASE_FILES and path.is_file())
        weights = [path for path in files if path.suffix == ".safetensors"]
        others = [path for path in files if path not in weights]
        for name, paths in (("weights", weights), ("configuration or the vocabulary", others)):
            found[f"the {name} of the base"] = compute_fingerprint([[path.name, _hash_file(path)] for path in paths])
    return found


def _digest_of_data(datasets: list[Values]) -> str:
    from vaak.audio.audio_file import is_audio
    from vaak.audio.config import AudioConfig
    from vaak.audio.corpora.corpus import AudioCorpus, get_size

    digest = hashlib.sha256()

    def add(name: str, content: Any) -> None:
        # Names of files needn't be UTF-8.
        digest.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))

    for one in datasets:
        if one == DIGIT_VOICES:
            add("voices", compute_fingerprint(one))
        corpus = AudioCorpus(DatasetConfig(**one), AudioConfig())
        files = corpus.files
        together = os.path.commonpath([path.absolute().parent for path in files] or [Path("/")])
        root = Path(one.get("corpus_dir") or together).expanduser()
        for path in files:
            # Paths within the data's folder: a copy of it elsewhere has the same digest.
            add(os.path.relpath(path, root), get_size(path) if is_audio(path) else _hash_file(path))
        add("named", corpus.digest_of_named())
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    """Return the hash of a file's content, which several stages ask for."""
    about = path.stat()
    return _find_version_digest(path.absolute(), about.st_size, about.st_mtime_ns)


@cache
def _find_version_digest(path: Path, size: int, changed: int) -> str:
    return hash_file(path)


BASE_STEPS = {"quick": 100, "full": 1000}
BASE_FOLDER = "whisper"


def base_values(options: MoeOptions) -> Values:
    """The run's configuration of stage ``base``."""
    return {
        "task": "asr",
        "model": {
            "scratch": {
                "d_model": 96,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "max_target_length": 64,
                "dropout": 0.0,
            }
        },
        "datasets": [DIGIT_VOICES],
        "data": {
            "group": "accent",
            "groups": BASE_ACCENTS,
            "max_duration": get_seconds(options),
            "tokenizer": {"type": "bpe", "vocab_size": 400},
        },
        "training": {
            "max_steps": BASE_STEPS[options.mode],
            "random_seed": options.seed,
            "device": options.device,
            "optimizer": {"lr": 2e-3},
            "scheduler": {"type": "linear", "warmup_steps": 30},
            "validation": {"interval": BASE_STEPS[options.mode] // 2, "interval_epochs": None},
            "checkpoint": {"interval": 50, "interval_epochs": None},
        },
    }


def base_settings(options: MoeOptions) -> Values:
    """Return the settings of the data that change the base: the maximum duration."""
    return {"data": {"max_duration": get_seconds(options)}}


def base(work: StageWork) -> dict[str, Any]:
    """Train a small Whisper from scratch on built-in voices."""
    from vaak.runs.open_run import open_run

    warn_fallbacks(work.options)
    outcome = work.train(base_values(work.options), work.options.base_config)
    folder = work.folder / BASE_FOLDER
    # A file of it may have been lost.
    shutil.rmtree(folder, ignore_errors=True)
    opened = open_run(outcome.directory, device="cpu")
    opened.task.export_hf(opened.model, folder)
    return {"wer": best_metrics(outcome.directory)["val_wer"]}
