"""Names of the English TTS trainer, for programs that were written for it.

    config = EnglishTrainingConfig(data_dir="LJSpeech-1.1", batch_size=32, learning_rate=5e-5, use_wandb=True)
    outcome = config.train()

It is the run of the same options in a YAML. The rest of the trainer (profiler, memory manager, checkpoints) is the
engine's, under the trainer's names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vaak.audio.corpora.folders import TEXTGRIDS
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiler import InterbatchProfiler
from vaak.config.load import Loaded, load_layers
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import find_latest_checkpoint, load_checkpoint, save_checkpoint
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


ALWAYS: dict[str, Any] = {
    "task": "tts",
    "name": "english-tts",
    "training": {
        "scheduler": {"type": "CosineAnnealingWarmRestarts"},
        "logging": {"interval": 10},
        "checkpoint": {"interval_epochs": 5},
    },
}
"""Options that the trainer sets, and has no name for."""
ALIGNED: dict[str, Any] = {
    "model": {"durations": "given"},
    "data": {"front_end": {"alphabet": "arpabet", "punctuation": "pause", "word_boundaries": False}},
}
"""With TextGrids of the Montreal Forced Aligner, whose symbols these are; without them, durations are learned."""


@dataclass
class EnglishTrainingConfig:
    """A voice of the corpus in ``data_dir``: ``metadata.csv``, ``wavs`` and, for given durations, ``TextGrid``.

    Anything else is set by ``options``, sections as in a YAML: ``{"training": {"max_steps": 1000}}``.
    """

    data_dir: str = "LJSpeech-1.1"
    batch_size: int = 16
    num_workers: int = 2
    hidden_dim: int = 512
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    learning_rate: float = 1e-4
    num_epochs: int = 100
    max_grad_norm: float = 1.0
    use_mixed_precision: bool = True
    gradient_checkpointing: bool = True
    use_wandb: bool = False
    enable_profiling: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def loaded(self) -> Loaded:
        """The experiment that it stands for. Raises ConfigError that lists every mistake."""
        flat = asdict(self)
        options, folder = flat.pop("options"), flat.pop("data_dir")
        aligned = ALIGNED if (Path(folder).expanduser() / TEXTGRIDS).is_dir() else {"model": {"durations": "learned"}}
        corpus = {"datasets": [{"name": "ljspeech", "type": "ljspeech", "corpus_dir": str(folder)}]}
        return load_layers([ALWAYS, aligned, {**flat, **corpus}, options])

    def train(self) -> Outcome:
        """Train it, into runs/english-tts; ``vaak speak`` and the others then use the run like any other."""
        from vaak.runs.start import train

        return train(self.loaded)


def get_default_config(**changes: Any) -> EnglishTrainingConfig:
    """The usual sizes."""
    return EnglishTrainingConfig(**changes)


def get_small_config(**changes: Any) -> EnglishTrainingConfig:
    """Small sizes, for tests."""
    sizes = {"batch_size": 8, "hidden_dim": 256, "n_encoder_layers": 4, "n_decoder_layers": 4}
    return EnglishTrainingConfig(**{**sizes, **changes})


class DeviceType(StrEnum):
    """A kind of device, by the name that ``training.device`` and torch have for it."""

    CUDA = "cuda"
    MPS = "mps"
    CPU = "cpu"

    @classmethod
    def best(cls) -> DeviceType:
        """The fastest one that this machine has: what ``training.device: auto`` picks."""
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
        """Take the optimizer's step and return what it returns; None where a gradient overflowed and none is taken."""
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
    """The processor in such a folder, or in a run's. Raises DataError where there is none."""
    folder = Path(checkpoint_dir)
    prepared = folder / "prepared" / PROCESSOR_FILE
    return PhonemeProcessor.load(prepared if prepared.exists() else folder / PROCESSOR_FILE)
