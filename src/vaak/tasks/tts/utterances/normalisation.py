"""Means and deviations of the training data, which a model is stored with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from vaak.tasks.tts.utterances.store import UtteranceStore

SMALLEST = 1e-3
"""A deviation that a constant gets, so that dividing by it does nothing wild; and the least energy."""


@dataclass(frozen=True)
class Normalisation:
    """Of each mel bin; of the base-2 logarithms of F0 in Hz, where it is voiced, and of energy."""

    mel_mean: list[float]
    mel_deviation: list[float]
    pitch: Sequence[float] = (0.0, 1.0)
    """Mean and deviation."""
    energy: Sequence[float] = (0.0, 1.0)

    @classmethod
    def of(cls, store: UtteranceStore) -> Self:
        """Of all frames of the utterances, in one pass."""
        mel, pitch, energy = _Moments(), _Moments(), _Moments()
        for index in range(len(store)):
            frames, prosody = store.frames(index)
            mel.add(frames)
            if store.features.has_pitch:
                loudness, f0 = prosody.T
                energy.add(np.log2(loudness.clip(min=SMALLEST)))
                pitch.add(np.log2(f0[f0 > 0]))
        mean, deviation = mel.result()
        return cls(mean.tolist(), deviation.tolist(), _numbers(pitch), _numbers(energy))

    @classmethod
    def none(cls, num_bins: int) -> Self:
        """One that changes nothing, until there are data."""
        return cls([0.0] * num_bins, [1.0] * num_bins)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Moments:
    """Adds up values ``(frame, ...)`` for their means and deviations."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, np.zeros(()), np.zeros(())

    def add(self, values: np.ndarray) -> None:
        exact = values.astype(np.float64)
        self.count += len(exact)
        self.total, self.squares = self.total + exact.sum(0), self.squares + np.square(exact).sum(0)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each value."""
        mean = self.total / self.count
        return mean, np.sqrt((self.squares / self.count - np.square(mean)).clip(min=0)).clip(min=SMALLEST)


def _numbers(moments: _Moments) -> tuple[float, float]:
    """Mean and deviation of one value; those that change nothing where there is none."""
    if not moments.count:
        return (0.0, 1.0)
    mean, deviation = moments.result()
    return float(mean), float(deviation)
