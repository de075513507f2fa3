"""Audio with who speaks when, and what: the output of every source, input and output of augmentation and of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Segment(NamedTuple):
    """A segment of speech of one speaker, in seconds."""

    start: float
    end: float
    speaker: str


class Interval(NamedTuple):
    """A labelled stretch of time, in seconds; a point in time ends where it starts."""

    start: float
    end: float
    text: str


PAUSE = ""
"""The text of an interval in which nothing is said. Where a tier has no interval, nothing is said either."""

Alignment = Mapping[str, tuple[Interval, ...]]
"""When each ``word`` and each ``phone`` is spoken: tiers of intervals by start."""


@dataclass(frozen=True)
class LabelledAudio:
    """Samples ``(time,)`` of one channel, float32 within about ±1, and its labels, from the first sample on."""

    name: str
    samples: np.ndarray
    sampling_rate: int
    segments: tuple[Segment, ...] = ()
    text: str | None = None
    uem: tuple[tuple[float, float], ...] | None = None
    """The annotated regions, in seconds; None: all of it."""
    language: str | None = None
    alignment: Alignment | None = None

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sampling_rate

    @property
    def speaker(self) -> str | None:
        """The only one who speaks; None if nobody does, or several."""
        speakers = {segment.speaker for segment in self.segments}
        return next(iter(speakers)) if len(speakers) == 1 else None


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
