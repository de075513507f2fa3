"""Examine a file's channels before they are averaged: silence, an inverted channel, a wrong scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

HIGHEST = 32.0
"""The largest sample of audio in floating point, where 1 is full scale: 30 dB above it. Whole numbers are larger."""
LOUD = 2.0
"""A peak above this much of full scale is reported: it is clipped wherever 16 bits are written."""
SILENT = 10 ** (-50 / 20)
"""Half of the range of samples below which nobody can be heard: -50 dB."""
CANCELLED = 0.02
"""The part of the channels' power that is left in their mean, below which they cancel; of 8 unlike ones it is 0.12."""


class ChannelLevels:
    """Range and power of each channel, and of their mean, added up block by block."""

    def __init__(self, num_channels: int) -> None:
        self.num_samples = 0
        self.least = np.full(num_channels, np.inf)
        self.most = np.full(num_channels, -np.inf)
        self.power = np.zeros(num_channels)
        self.mean_power = 0.0

    def add(self, frames: np.ndarray, mixed: np.ndarray) -> None:
        """Add frames ``(time, channel)``, and their mean ``(time,)``."""
        if not len(frames):
            return
        self.num_samples += len(frames)
        self.least = np.minimum(self.least, frames.min(axis=0))
        self.most = np.maximum(self.most, frames.max(axis=0))
        self.power += np.einsum("tc,tc->c", frames, frames)
        self.mean_power += float(np.dot(mixed, mixed))

    def describe_odd(self) -> Iterator[tuple[str, str]]:
        """Oddities of the channels with their kind and a remedy; none if all channels are silent."""
        number, ranges = len(self.power), (self.most - self.least) / 2
        silent = [channel + 1 for channel in range(number) if ranges[channel] < SILENT]
        if not self.num_samples or number < 2 or len(silent) == number:
            return
        if silent:
            level = 20 * np.log10((number - len(silent)) / number)
            yield (
                "silent channel",
                f"channel {', '.join(map(str, silent))} of {number} is silent, so the mean of all is {level:.0f} dB "
                "quieter; take the channel that has sound",
            )
        # NaN or infinite samples are reported by whoever reads the file.
        if not np.isfinite(self.power).all():
            return
        left = self.mean_power / self.power.mean()
        if left < CANCELLED:
            yield (
                "cancelling",
                f"its {number} channels cancel: their mean has {left:.1%} of their power, since one is the other "
                "inverted; set global_config.channels to first, or invert one",
            )


def describe_scale(peak: float) -> str:
    """Return why a file with this largest sample isn't audio in floating point, and what to do."""
    bits = next((bits for bits in (8, 16, 24, 32) if peak <= 2 ** (bits - 1)), 32)
    return (
        f"a sample is {peak:,.0f}, where 1 is full scale: whole numbers of {bits} bits, saved as floats; divide them "
        f"by {2 ** (bits - 1):,}"
    )
