"""Audio with who speaks when: the output of every source, input and output of augmentation, input of every task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Segment(NamedTuple):
    """A segment of speech of one speaker, in seconds."""

    start: float
    end: float
    speaker: str


@dataclass(frozen=True)
class LabelledAudio:
    """Samples ``(time,)`` of one channel, float32 within about ±1, and its segments, from the first sample on."""

    name: str
    samples: np.ndarray
    sampling_rate: int
    segments: tuple[Segment, ...] = ()
    text: str | None = None
    uem: tuple[tuple[float, float], ...] | None = None
    """The annotated regions, in seconds; None: all of it."""

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sampling_rate


class AudioSource(Protocol):
    """The examples of one split. ``durations`` are upper bounds in seconds, known without reading any audio.

    ``speakers`` are the names of all speakers, sorted; ``fingerprint`` changes with the content.
    """

    durations: np.ndarray
    speakers: tuple[str, ...]
    fingerprint: str

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        """Example ``index``; all randomness comes from ``rng``. Raises DataError, naming the file."""
        ...

    def describe(self, index: int) -> str:
        """Where example ``index`` comes from, for error messages."""
        ...
