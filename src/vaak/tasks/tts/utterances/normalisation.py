"""Means and deviations of the training data, which a model is stored with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from vaak.tasks.tts.utterances.store import UtteranceStore

SMALLEST = 1e-3
"""A deviation that a constant bin gets, so that dividing by it does nothing wild."""


@dataclass(frozen=True)
class Normalisation:
    """Of each mel bin."""

    mel_mean: list[float]
    mel_deviation: list[float]

    @classmethod
    def of(cls, store: UtteranceStore) -> Self:
        """Of all frames of the utterances, in one pass."""
        count, total, squares = 0, np.zeros(store.num_bins), np.zeros(store.num_bins)
        for index in range(len(store)):
            mel = store.mel(index).astype(np.float64)
            count, total, squares = count + len(mel), total + mel.sum(0), squares + np.square(mel).sum(0)
        mean = total / count
        deviation = np.sqrt((squares / count - np.square(mean)).clip(min=0)).clip(min=SMALLEST)
        return cls(mean.tolist(), deviation.tolist())

    @classmethod
    def none(cls, num_bins: int) -> Self:
        """One that changes nothing, until there are data."""
        return cls([0.0] * num_bins, [1.0] * num_bins)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
