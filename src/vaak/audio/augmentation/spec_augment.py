"""SpecAugment: masks bands of frequency and intervals of time.

Source: Park et al. 2019, "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition", section 2.
Differs: no time warping; what is masked becomes the mean of the features instead of zero, which their features have as
mean; a width may reach its limit; widths are seconds for time.
"""

from __future__ import annotations

import numpy as np

from vaak.audio.config import SpecAugmentConfig


def masked(features: np.ndarray, config: SpecAugmentConfig, frame_shift: float, rng: np.random.Generator) -> np.ndarray:
    """A copy of the features ``(frame, bin)`` with random bands and intervals set to the mean of all.

    Each width is drawn uniformly from 0 to its limit, then its place.
    """
    found = features.copy()
    if rng.random() >= config.probability or not features.size:
        return found
    num_frames, num_bins = features.shape
    mean = features.mean(dtype=np.float64)
    for _ in range(config.num_frequency_masks):
        first, last = _drawn(config.frequency_mask, num_bins, rng)
        found[:, first:last] = mean
    for _ in range(config.num_time_masks):
        first, last = _drawn(round(config.time_mask / frame_shift), num_frames, rng)
        found[first:last] = mean
    return found


def _drawn(widest: int, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """First and last of an interval within ``length``."""
    width = int(rng.integers(0, min(widest, length), endpoint=True))
    first = int(rng.integers(0, length - width, endpoint=True))
    return first, first + width
