"""Where speech begins and ends in audio that is still coming, by its energy, or by silero-vad where it is installed.

Neither knows a language. By energy, everything that is louder than the background is speech, and nothing else.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from vaak.audio.speech_regions import FRAME, SHORTEST_SPEECH

SMOOTHED_FRAMES = 5
"""Levels are averaged over 50 ms, of the past only."""
REMEMBERED_SECONDS = 8.0
"""The background is the lowest level of this time, as in Martin 2001, "Noise power spectral density estimation based
on optimal smoothing and minimum statistics": in speech, some moment of it is quiet."""
REMEMBERED_EVERY = 10
"""Frames from which one lowest and one highest level is remembered."""
LOWEST_DECIBELS, HIGHEST_AT_FIRST = -75.0, -50.0
FIRST_SECONDS = 2.0
"""Until then, audio that begins within speech shouldn't make this the background: it is HIGHEST_AT_FIRST at most."""
LEAST_ABOVE = 9.0
"""Decibels over the background that speech has at least."""


class VoiceActivity:
    """Whether somebody speaks, frame by frame of 10 ms.

    Speech is louder than a quarter of the way, in decibels, from the background to the loudest of the last seconds, for
    at least 0.1 s; it has ended after ``pause`` seconds without. The result depends on the samples alone, not on
    how they came.
    """

    name = "energy"

    def __init__(self, pause: float) -> None:
        self.pause_frames = max(1, round(pause / FRAME))
        self.num_frames = 0
        self.is_speech = False
        self.last_loud = 0
        """The frame after the last loud one."""
        self._run = 0
        """Loud frames in a row, up to now."""
        self._powers = deque[float](maxlen=SMOOTHED_FRAMES)
        blocks = round(REMEMBERED_SECONDS / FRAME / REMEMBERED_EVERY)
        self._lowest, self._highest = deque[float](maxlen=blocks), deque[float](maxlen=blocks)
        self._block = list[float]()

    def hear(self, frame: np.ndarray) -> bool:
        """Return whether somebody speaks, now that the next 10 ms of samples ``(time,)`` are known."""
        self._powers.append(float(np.square(frame, dtype=np.float64).mean()))
        level = float(10.0 * np.log10(sum(self._powers) / len(self._powers) + 1e-10))
        self.num_frames += 1
        self._block.append(level)
        is_loud = self._is_speech(frame, level)
        if len(self._block) == REMEMBERED_EVERY:
            self._lowest.append(min(self._block))
            self._highest.append(max(self._block))
            self._block.clear()
        self._run = self._run + 1 if is_loud else 0
        if is_loud:
            self.last_loud = self.num_frames
        if self._run >= round(SHORTEST_SPEECH / FRAME):
            self.is_speech = True
        elif self.num_frames - self.last_loud >= self.pause_frames:
            self.is_speech = False
        return self.is_speech

    def _is_speech(self, frame: np.ndarray, level: float) -> bool:
        """Return whether a frame with this level, in decibels, has speech."""
        return level > self._threshold()

    def _threshold(self) -> float:
        quiet = max(LOWEST_DECIBELS, min(*self._lowest, *self._block, np.inf))
        loud = max(*self._highest, *self._block, -np.inf)
        if self.num_frames * FRAME < FIRST_SECONDS:
            quiet = min(quiet, HIGHEST_AT_FIRST)
        return quiet + max(LEAST_ABOVE, (loud - quiet) / 4)
