"""Values of frames, such as F0 and energy, as values of phonemes; times as numbers of frames."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vaak.audio.mel_config import MelConfig


def phoneme_means(values: np.ndarray, durations: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
    """The mean value of the frames of each phoneme, ``(phoneme,)`` float32.

    ``durations`` ``(phoneme,)`` are in frames, and add up to those of ``values`` ``(frame,)``. Only frames that are
    ``counted`` ``(frame,)`` do; where a phoneme has none, its mean is 0. Of F0, count what is voiced: ``values > 0``.

    >>> phoneme_means(np.array([4.0, 2.0, 0.0, 5.0]), np.array([2, 0, 1, 1])).tolist()
    [3.0, 0.0, 0.0, 5.0]
    """
    if durations.sum() != len(values):
        raise ValueError(f"phonemes of {durations.sum()} frames, values of {len(values)}")
    weights = np.ones(len(values)) if counted is None else counted.astype(np.float64)
    phonemes = np.repeat(np.arange(len(durations)), durations)
    totals = np.bincount(phonemes, values * weights, len(durations))
    numbers = np.bincount(phonemes, weights, len(durations))
    means: np.ndarray = totals / np.maximum(numbers, 1)
    return means.astype(np.float32)


def frame_durations(ends: Sequence[float], mel: MelConfig, num_samples: int) -> np.ndarray:
    """How many frames of a mel spectrogram belong to each of consecutive intervals, ``(interval,)`` int64.

    ``ends`` are seconds; the first interval begins with the audio. A frame belongs to the interval of its centre; those
    after the last end belong to the last interval: so they always add up to the frames of ``num_samples``.

    >>> frame_durations([0.3, 0.3, 0.75, 1.0], MelConfig(sampling_rate=20000, hop_length=1000), 20000).tolist()
    [6, 0, 9, 6]
    """
    num_frames = mel.num_frames(num_samples)
    beyond = [min(math.ceil(round(end / mel.frame_shift, 6)), num_frames) for end in ends]
    return np.diff([0, *beyond[:-1], num_frames])
