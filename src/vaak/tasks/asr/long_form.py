"""Audio that is longer than a model's window, cut where it is quietest.

recording ──quietest stretch of each window's second half──▶ windows, all independent of each other
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vaak.audio.speech_regions import FRAME, find_speech, frame_levels


@dataclass(eq=False)
class Recording:
    """A file in work; ``duration`` in seconds, once it is open."""

    path: Path
    duration: float = 0.0


class Window(NamedTuple):
    """Speech from ``start`` to ``end`` seconds, as features ``(bin, frame)``, the first frame at ``begin`` seconds."""

    begin: float
    start: float
    end: float
    features: np.ndarray
    num_samples: int = 0
    """The number of samples, without padding."""


def speech_seconds(window: Window) -> float:
    """Seconds from the start of its speech to the end."""
    return window.end - window.start


def cut_windows(
    read: Callable[[float, float], np.ndarray], duration: float, longest: float, sampling_rate: int
) -> Iterator[tuple[float, float, float, np.ndarray]]:
    """Yield the windows of a recording, cut where it is quietest; silent ones are left out.

    Each is its beginning, where speech in it starts and ends, in seconds, and its samples.

    ``read(start, end)`` gives samples. A window is at most ``longest`` seconds, and at least half as long
    unless it is the last.
    """
    start = 0.0
    while start < duration:
        samples = read(start, min(start + longest, duration))
        end = start + len(samples) / sampling_rate
        # A duration is in floating-point seconds, and end comes from a number of samples: a difference by rounding
        # isn't more audio.
        if end < duration - 1e-3:
            # Only the second half is searched for a place to cut, so a window is never shorter than half the longest.
            kept = len(samples) // 2 + quietest(samples[len(samples) // 2 :], sampling_rate)
            samples, end = samples[:kept], start + kept / sampling_rate
        # A file may be shorter than its header says: without this, its end would be read forever.
        if not len(samples):
            return
        speech = find_speech(samples, sampling_rate)
        if speech:
            yield start, start + speech[0][0], start + speech[-1][1], samples
        start = end


def quietest(samples: np.ndarray, sampling_rate: int) -> int:
    """A place of samples ``(time,)`` in the middle of their longest quiet stretch, or at their quietest moment."""
    levels = frame_levels(samples, sampling_rate)
    if not len(levels):
        return len(samples)
    step = round(FRAME * sampling_rate)
    low, high = np.percentile(levels, (0, 95))
    edges = np.flatnonzero(np.diff((levels <= low + (high - low) / 5).astype(np.int8), prepend=0, append=0))
    stretches = edges.reshape(-1, 2)
    first, last = stretches[np.argmax(stretches[:, 1] - stretches[:, 0])]
    return int(first + last) * step // 2
