"""The features of audio that a recogniser reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor


class AudioFeatures(Protocol):
    """Features of audio of at most ``seconds``: ``(bin, frame)`` float32 of samples ``(time,)``.

    ``key`` is what they depend on, and ``lengths`` are the seconds that a model reads of utterances of ``durations``.
    """

    seconds: float
    sampling_rate: int
    frame_shift: float
    key: list[Any]
    on_device: bool
    """Whether a device makes them, ``of_batch``; then this gives ``(time,)``, what they are made of."""

    def __call__(self, samples: np.ndarray) -> np.ndarray: ...

    def shape(self, found: np.ndarray) -> tuple[int, int]:
        """Frames and bins of what this gave."""
        ...

    def of_batch(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the features ``(row, bin, frame)`` of a batch's samples and masks, on their device."""
        ...

    def lengths(self, durations: np.ndarray) -> np.ndarray: ...

    def num_bytes(self, durations: np.ndarray) -> float: ...
