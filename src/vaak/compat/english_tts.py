"""Names of the English TTS trainer, for programs that were written for it.

    config = EnglishTrainingConfig(data_dir="LJSpeech-1.1", batch_size=32, learning_rate=5e-5, use_wandb=True)
    outcome = config.train()

It is the run of the same options in a YAML. The rest of the trainer (profiler, memory manager, checkpoints) is the
engine's, under the trainer's names.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vaak.audio.corpora.folders import TEXTGRIDS
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiler import InterbatchProfiler
from vaak.compat.loop_checkpoints import load_checkpoint, save_checkpoint
from vaak.config.load import Loaded, load_layers
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import find_latest_checkpoint
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.precision import LossScale
from vaak.text.speech.processor import PROCESSOR_FILE, PhonemeProcessor

if TYPE_CHECKING:
    from vaak.runs.start import Outcome

__all__ = [
    "AdaptiveMemoryManager",
    "DeviceType",
    "EnglishTrainingConfig",
    "InterbatchProfiler",
    "MPSGradScaler",
    "find_latest_checkpoint",
    "get_default_config",
    "get_small_config",
    "load_checkpoint",
    "load_phoneme_processor",
    "save_checkpoint",
    "save_phoneme_processor",
]


OPTIONS_OF_EVERY_RUN: dict[str, Any] = {"task": "tts", "name": "english-tts"}
ALIGNED: dict[str, Any] = {
    "model": {"durations": "given"},
    "data": {"front_end": {"alphabet": "arpabet", "punctuation": "pause", "word_boundaries": False}},
}
"""With TextGrids of the Montreal Forced Aligner, whose symbols these are; without them, durations are learned."""
OPTIONS = {
    "batch_size": "training.batch_size",
    "num_workers": "training.performance.num_workers",
    "hidden_dim": "model.global_config.d_model",
    "n_encoder_layers": "model.encoder.num_layers",
    "n_decoder_layers": "model.decoder.num_layers",
    "n_heads": "model.global_config.num_heads",
    "encoder_ff_dim": "model.encoder.d_ff",
    "decoder_ff_dim": "model.decoder.d_ff",
    "dropout": "model.global_config.dropout",
    "learning_rate": "training.optimizer.lr",
    "num_epochs": "training.epochs",
    "optimizer": "training.optimizer.type",
    "weight_decay": "training.optimizer.weight_decay",
    "scheduler": "training.scheduler.type",
    "first_cycle_epochs": "training.scheduler.first_cycle_epochs",
    "cycle_growth": "training.scheduler.cycle_growth",
    "min_learning_rate": "training.scheduler.min_lr",
    "max_grad_norm": "training.gradient_clipping.norm",
    "gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "seed": "training.random_seed",
    "sample_rate": "global_config.mel.sampling_rate",
    "n_fft": "global_config.mel.n_fft",
    "win_length": "global_config.mel.win_length",
    "hop_length": "global_config.mel.hop_length",
    "n_mels": "global_config.mel.n_mels",
    "f_min": "global_config.mel.f_min",
    "f_max": "global_config.mel.f_max",
    "device": "training.device",
    "use_mixed_precision": "training.mixed_precision",
    "gradient_checkpointing": "training.performance.gradient_checkpointing",
    "adaptive_memory": "training.memory.manager",
    "memory_thresholds": "training.memory.thresholds",
    "memory_cleanup_interval": "training.memory.cleanup_interval",
    "checkpoint_dir": "training.checkpoint.save_dir",
    "save_every": "training.checkpoint.interval_epochs",
    "save_total_limit": "training.checkpoint.save_total_limit",
    "resume": "training.checkpoint.resume",
    "output_dir": "run_dir",
    "use_wandb": "training.logging.wandb",
    "wandb_project": "wandb.project",
    "wandb_entity": "wandb.entity",
    "wandb_run_name": "wandb.name",
    "wandb_tags": "wandb.tags",
    "log_interval": "training.logging.interval",
    "enable_profiling": "training.profiling",
}
"""The option that each field is."""
OTHER_NAMES = {
    "alignments_dir": "alignment_dir",
    "num_encoder_layers": "n_encoder_layers",
    "encoder_layers": "n_encoder_layers",
    "num_decoder_layers": "n_decoder_layers",
    "decoder_layers": "n_decoder_layers",
    "num_heads": "n_heads",
    "lr": "learning_rate",
    "epochs": "num_epochs",
    "T_0": "first_cycle_epochs",
    "T_mult": "cycle_growth",
    "eta_min": "min_learning_rate",
    "gradient_clip": "max_grad_norm",
    "random_seed": "seed",
    "sampling_rate": "sample_rate",
    "num_mels": "n_mels",
    "fmin": "f_min",
    "fmax": "f_max",
    "mixed_precision": "use_mixed_precision",
    "save_interval": "save_every",
    "checkpoint_interval": "save_every",
    "save_every_n_epochs": "save_every",
    "resume_checkpoint": "resume",
    "wandb_name": "wandb_run_name",
    "log_every": "log_interval",
    "profiling": "enable_profiling",
}
"""Other names of fields, as arguments and as attributes."""


@dataclass
class EnglishTrainingConfig:
    """A voice of the corpus in ``data_dir``: ``metadata.csv``, ``wavs`` and, for given durations, ``TextGrid``.

    Every field is an option of a YAML (``OPTIONS``); None leaves it to Vaak. Anything else is set by ``options``,
    sections as in a YAML: ``{"training": {"ema": {"decay": 0.999}}}``; they go over the fields.
    """

    # data
    data_dir: str = "LJSpeech-1.1"
    alignment_dir: str | None = None
    batch_size: int = 16
    num_workers: int | None = 2
    # model
    hidden_dim: int = 512
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    n_heads: int = 8
    encoder_ff_dim: int | None = None
    decoder_ff_dim: int | None = None
    dropout: float = 0.1
    # training
    learning_rate: float = 1e-4
    num_epochs: int = 100
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    scheduler: str = "CosineAnnealingWarmRestarts"
    first_cycle_epochs: int | None = None
    cycle_growth: int | None = None
    min_learning_rate: float | None = None
    max_grad_norm: float | None = 1.0
    gradient_accumulation_steps: int = 1
    seed: int = 42
    # audio
    sample_rate: int = 22050
    n_fft: int = 1024
    win_length: int = 1024
    hop_length: int = 256
    n_mels: int = 80
    f_min: float = 0.0
    f_max: float | None = 8000.0
    # the machine
    device: str = "auto"
    use_mixed_precision: bool = True
    gradient_checkpointing: bool = True
    adaptive_memory: bool = True
    memory_thresholds: tuple[float, float, float] | None = None
    memory_cleanup_interval: int | None = None
    # checkpoints and tracking
    checkpoint_dir: str | None = None
    save_every: int = 5
    save_total_limit: int | None = 3
    resume: str | None = None
    output_dir: str | None = None
    use_wandb: bool = False
    wandb_project: str = "vaak"
    wandb_entity: str | None = None
    wandb_run_name: str | None = None
    wandb_tags: Sequence[str] | None = None
    log_interval: int = 10
    enable_profiling: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def loaded(self) -> Loaded:
        """The experiment that it stands for. Raises ConfigError that lists every mistake."""
        corpus = {"name": "ljspeech", "type": "ljspeech", "corpus_dir": str(self.data_dir)}
        if self.alignment_dir is not None:
            corpus["alignments"] = str(self.alignment_dir)
        is_aligned = "alignments" in corpus or (Path(self.data_dir).expanduser() / TEXTGRIDS).is_dir()
        durations = ALIGNED if is_aligned else {"model": {"durations": "learned"}}
        return load_layers([OPTIONS_OF_EVERY_RUN, durations, {"datasets": [corpus], **self._sections()}, self.options])

    def _sections(self) -> dict[str, Any]:
        """The fields as sections of a YAML; those that are None, where None is not a value, are left out."""
        found: dict[str, Any] = {}
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is None and name not in NONE_IS_A_VALUE:
                continue
            *sections, last = option.split(".")
            section = found
            for key in sections:
                section = section.setdefault(key, {})
            section[last] = os.fspath(value) if isinstance(value, os.PathLike) else value
        return found

    def train(self) -> Outcome:
        """Train it, into runs/english-tts; ``vaak speak`` and the others then use the run like any other."""
        from vaak.runs.start import train

        return train(self.loaded)


NONE_IS_A_VALUE = ("f_max", "max_grad_norm", "save_total_limit")


def _accept_other_names(kind: type[EnglishTrainingConfig]) -> None:
    """Make ``OTHER_NAMES`` arguments and attributes of the class."""
    made: Any = kind.__init__

    @functools.wraps(made)
    def initialise(self: EnglishTrainingConfig, *values: Any, **named: Any) -> None:
        for other in [name for name in named if name in OTHER_NAMES]:
            name = OTHER_NAMES[other]
            if name in named:
                raise UserError(f"{other} is another name of {name}: give one of them")
            named[name] = named.pop(other)
        made(self, *values, **named)

    kind.__init__ = initialise  # type: ignore[method-assign]
    for other, name in OTHER_NAMES.items():
        getter = operator.attrgetter(name)
        setattr(kind, other, property(getter, functools.partial(_set_field, name)))


def _set_field(name: str, config: EnglishTrainingConfig, value: Any) -> None:
    setattr(config, name, value)


_accept_other_names(EnglishTrainingConfig)


def get_default_config(**changes: Any) -> EnglishTrainingConfig:
    """The usual sizes."""
    return EnglishTrainingConfig(**changes)


def get_small_config(**changes: Any) -> EnglishTrainingConfig:
    """Small sizes, for tests."""
    sizes = {"batch_size": 8, "hidden_dim": 256, "n_encoder_layers": 4, "n_decoder_layers": 4}
    changes = {OTHER_NAMES.get(name, name): value for name, value in changes.items()}
    return EnglishTrainingConfig(**{**sizes, **changes})


class DeviceType(StrEnum):
    """A kind of device, by the name that ``training.device`` and torch have for it."""

    CUDA = "cuda"
    MPS = "mps"
    CPU = "cpu"

    @classmethod
    def best(cls) -> DeviceType:
        """The fastest device of this machine, which ``training.device: auto`` picks."""
        return cls(pick_device("auto").type)

    @property
    def device(self) -> torch.device:
        return torch.device(self.value)


class MPSGradScaler:
    """Scales fp16 losses, skips steps whose gradients overflow, and adapts the scale: the engine's ``LossScale``.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)          only where gradients are clipped or read before the step
        scaler.step(optimizer)
        scaler.update()

    Differs from torch's: below a scale of 1 it doesn't go, and one decision serves all optimizers of an update.
    """

    def __init__(self, init_scale: float = 65536.0, enabled: bool = True) -> None:
        self._scale = LossScale(enabled)
        if enabled:
            self._scale.value = init_scale
        self._unscaled: set[int] = set()
        self._overflow = False

    def scale(self, outputs: Tensor) -> Tensor:
        """The loss times the scale."""
        return outputs * self._scale.value

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place. Raises UserError when called twice for an update."""
        if id(optimizer) in self._unscaled:
            raise UserError("unscale_ has already been called on this optimizer since the last update()")
        self._unscaled.add(id(optimizer))
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self._scale.unscale(gradients)
        if self._scale.enabled and not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self._overflow = True

    def step(self, optimizer: Optimizer) -> Any:
        """Take the optimizer's step and return what it returns; None if a gradient overflowed and none is taken."""
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        return None if self._overflow else optimizer.step()

    def update(self) -> None:
        """Halve the scale after an overflow; double it after 2,000 updates without."""
        self._scale.update("overflow" if self._overflow else None)
        self._unscaled, self._overflow = set(), False

    def get_scale(self) -> float:
        return self._scale.value

    def is_enabled(self) -> bool:
        return self._scale.enabled

    def state_dict(self) -> dict[str, Any]:
        return self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scale.load_state_dict(state)


def save_phoneme_processor(processor: PhonemeProcessor, checkpoint_dir: str | Path) -> Path:
    """Write the processor to a folder of checkpoints, and return the file."""
    path = Path(checkpoint_dir) / PROCESSOR_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    processor.save(path)
    return path


def load_phoneme_processor(checkpoint_dir: str | Path) -> PhonemeProcessor:
    """The processor in such a folder, or in a run's. Raises DataError if there is none."""
    folder = Path(checkpoint_dir)
    prepared = folder / "prepared" / PROCESSOR_FILE
    return PhonemeProcessor.load(prepared if prepared.exists() else folder / PROCESSOR_FILE)
