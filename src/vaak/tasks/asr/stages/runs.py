"""What the stages' runs have in common: their data, their base, how they are trained. Imports no torch.

Without data, mode quick reads built-in voices; without weights, it trains a base from scratch. The accents of voices
are their groups: a base never hears those that are adapted to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of, sha256_of
from vaak.tasks.asr.config import SCRATCH, VERSIONS
from vaak.tasks.asr.stages.options import QUICK_VALID, MoeOptions

if TYPE_CHECKING:
    from vaak.pipeline.stage import Work
    from vaak.tasks.asr.task import AsrTask

log = logging.getLogger("vaak")

Values = dict[str, Any]
DATASET_ROOT = Path("Data/extracted_data")
BASE_ACCENTS = ("en", "en-029", "en-gb-x-rp", "en-us")
ADAPTED_ACCENTS = ("en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc")
VOICES: Values = {
    "name": "voices", "type": "voices", "say": "digits", "num_voices": 32, "num_sentences": 12,
    "train_fraction": 0.8, "valid_fraction": 0.1,
}  # fmt: skip
VOICES_SECONDS = 4.0
"""Of the longest utterance of voices."""
WHISPER_SECONDS = 30.0
QUICK_SECONDS = 10.0
"""The same of a base that is trained from scratch in mode quick."""
MINUTES_BETWEEN_SAVES = 30
"""The most that a killed stage loses, however long its epochs are."""


def datasets_of(options: MoeOptions) -> list[Values]:
    """The data, as in a run's configuration. Raises UserError where there are none, and mode is full."""
    if options.datasets:
        return [{"name": one.name, **one.model_dump(mode="json", exclude_defaults=True)} for one in options.datasets]
    root = options.dataset_root or (DATASET_ROOT if DATASET_ROOT.is_dir() else None)
    if root is not None:
        if not root.is_dir():
            raise UserError(f"--dataset-root: no such folder: {root}")
        return [{"name": root.name, "type": "splits", "corpus_dir": str(root)}]
    if options.mode == "full":
        raise UserError(
            f"there are no data: give --dataset-root, a folder with Train and Dev ({DATASET_ROOT} isn't there), or "
            "datasets in --config; mode quick needs none"
        )
    return [VOICES]


def base_of(options: MoeOptions) -> str:
    """The base: a name, a folder, or scratch."""
    if options.whisper_model is not None:
        return options.whisper_model
    return SCRATCH if options.mode == "quick" and not _is_on_this_machine(VERSIONS["v2"]) else "v2"


def _is_on_this_machine(name: str) -> bool:
    """Whether the Hub's cache has a model."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return False
    return isinstance(try_to_load_from_cache(name, "model.safetensors"), str)


def trains_base(options: MoeOptions) -> bool:
    """Whether the base is trained first."""
    return base_of(options) == SCRATCH


def pretrains(options: MoeOptions) -> bool:
    """Whether gate and experts are trained one after another before they are trained together."""
    return not options.skip_pretraining


def base_for(work: Work) -> str:
    """The base that a stage reads: what the first stage made, or what is asked for."""
    return str(work.inputs["base"] / "whisper") if "base" in work.inputs else base_of(work.options)


def say_fallbacks(options: MoeOptions) -> None:
    """Warn of what stands in for data and weights that aren't there."""
    if datasets_of(options) == [VOICES]:
        log.warning("there are no data (--dataset-root): built-in voices say digits; their accents are the groups")
    if options.whisper_model is None and trains_base(options):
        log.warning("there is no Whisper on this machine: a tiny one is trained from scratch (--whisper-model)")


def data_of(options: MoeOptions, stage: str) -> Values:
    """The sections task, datasets and data of a run of a stage; ``stage`` decides how much of the data it reads."""
    datasets, part = datasets_of(options), options.part_of(stage)
    data: Values = {"sampling_seed": options.seed, "percent": part.percent, "max_samples": part.most}
    if options.mode == "quick":
        data |= {"max_valid_samples": QUICK_VALID}
    if datasets == [VOICES]:
        data |= {"group": "accent", "groups": ADAPTED_ACCENTS}
    return {
        "task": "asr", "datasets": datasets, "data": {**data, "max_duration": seconds_of(options), **options.data},
    }  # fmt: skip


def seconds_of(options: MoeOptions) -> float:
    """What the encoder reads at once, in seconds."""
    default = VOICES_SECONDS if datasets_of(options) == [VOICES] else WHISPER_SECONDS
    if options.mode == "quick" and trains_base(options):
        default = min(default, QUICK_SECONDS)
    return float(options.data.get("max_duration", default))


def training_of(options: MoeOptions, stage: str, metric: str) -> Values:
    """The section training of a run of a stage; ``metric`` decides which checkpoint is the best, and when to stop."""
    values: Values = {
        "epochs": options.epochs_of(stage),
        "batch_size": options.batch_size_of(stage),
        "random_seed": options.seed,
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
        values["mixed_precision"] = precision_of(options)
        values["performance"] = {"num_workers": options.num_workers}
    return values


def metric_of(options: MoeOptions) -> str:
    """The figure of speech recognition that decides which checkpoint is the best."""
    return f"val_{options.best_by}"


def precision_of(options: MoeOptions) -> str:
    """no, fp16 or bf16."""
    import torch

    if options.bf16:
        return "bf16"
    return "fp16" if (torch.cuda.is_available() if options.fp16 is None else options.fp16) else "no"


def prepared_task(values: Mapping[str, Any], directory: Path) -> AsrTask:
    """The task of a run's configuration, with its data prepared in a directory, unless they are there."""
    from vaak.config.load import load_layers
    from vaak.runs.prepared import is_prepared
    from vaak.tasks.asr.task import AsrTask

    loaded: Any = load_layers([values, {"name": "data", "run_dir": str(directory)}])
    task = AsrTask(loaded.experiment, directory, loaded.folder)
    if not is_prepared(directory):
        task.prepare()
    return task


def best_figures(directory: Path) -> dict[str, float]:
    """The figures of a run's best checkpoint, with its ``step``."""
    from vaak.engine.checkpoint.files import resolve_checkpoint
    from vaak.engine.checkpoint.names import step_of
    from vaak.engine.records.metrics_file import read_records

    step = step_of(resolve_checkpoint(directory))
    records = read_records(directory / "metrics.jsonl")
    (*_, found) = [one for one in records if one["kind"] == "evaluation" and one["step"] == step]
    return {name: value for name, value in found.items() if name == "step" or name.startswith("val_")}


def reads(options: MoeOptions) -> Any:
    """What changes with the data and the base that aren't made here: manifests by content, audio by name and size."""
    from vaak.audio.config import AudioConfig, DatasetConfig
    from vaak.audio.corpora.corpus import AudioCorpus
    from vaak.audio.waveforms.suffixes import is_audio

    datasets = datasets_of(options)
    found: list[Any] = [one for one in datasets if one == VOICES]
    for one in datasets:
        for path in AudioCorpus(DatasetConfig(**one), AudioConfig()).files:
            found.append([path.name, path.stat().st_size if is_audio(path) else sha256_of(path)])
    base = base_of(options)
    if Path(base).is_dir():
        found += [[path.name, path.stat().st_size] for path in sorted(Path(base).glob("*.safetensors"))]
    return {"files": fingerprint_of(found), "base": Path(base).name}
