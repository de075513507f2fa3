"""Speech at another speed, its pitch changed with it, as if a tape ran faster or slower.

Source: Ko et al. 2015, "Audio Augmentation for Speech Recognition".
"""

from __future__ import annotations

import numpy as np

from vaak.core.errors import optional_import


def at_speed(samples: np.ndarray, factor: float) -> np.ndarray:
    """``samples`` (time,), ``factor`` times as fast and as high: (round(time / factor),), float32.

    What was at second ``t`` is at ``t / factor``. Frequencies above half the rate are filtered out.
    """
    samples = np.asarray(samples, dtype=np.float32)
    num_samples = round(len(samples) / factor)
    faster = resampled(samples, factor, 1.0)[:num_samples]
    return np.pad(faster, (0, num_samples - len(faster)))


def resampled(samples: np.ndarray, rate: float, new_rate: float) -> np.ndarray:
    """``samples`` (time,) resampled from one rate in Hz to another, without delay; the length is right to a sample."""
    if rate == new_rate or not len(samples):
        return samples
    with optional_import("resampling requires soxr", "audio"):
        import soxr
    resampled: np.ndarray = soxr.resample(samples, rate, new_rate)
    return resampled
