"""The configuration of the English TTS trainer, by its names and with its defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.audio.corpora.ljspeech import TEXTGRIDS
from vaak.config.load import Loaded, load_layers

if TYPE_CHECKING:
    from vaak.runs.start import Outcome

ALWAYS: dict[str, Any] = {
    "task": "tts",
    "name": "english-tts",
    "training": {
        "scheduler": {"type": "CosineAnnealingWarmRestarts"},
        "logging": {"interval": 10},
        "checkpoint": {"interval_epochs": 5},
    },
}
"""What the trainer does, and has no name for."""
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
