"""Reads a compressed file from its beginning, whichever part is wanted.

After a seek, decoders of Vorbis, Opus and MP3 give other samples, and those of GSM can't seek at all. So the file is
decoded in order, and the latest samples are kept: windows that move forward decode everything once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

log = logging.getLogger("vaak")

PIECE = 2**18
"""Frames that are decoded at once."""
KEPT = 2**24
"""Samples that are kept: more than five minutes at 48 kHz."""
LONG_WAY = 600
"""Seconds; to decode more of a file for nothing is worth a warning."""

_warned: set[Path] = set()


class FromStart:
    """The samples of a file, mixed to one channel by ``mix``."""

    def __init__(self, path: Path, reopen: Callable[[], Any], mix: Callable[[np.ndarray], np.ndarray]) -> None:
        """``reopen`` gives the file at its beginning, a ``soundfile.SoundFile``."""
        self.path, self.reopen, self.mix = path, reopen, mix
        self.file = reopen()
        self.pieces: deque[np.ndarray] = deque()
        self.first = self.last = 0
        """The samples that are kept."""

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples ``first`` to ``last``; fewer where the file ends before.

        Raises soundfile.LibsndfileError where it is damaged.
        """
        if first < self.first:
            self._restart()
        if first - self.last > LONG_WAY * self.file.samplerate:
            self._say_the_long_way(first)
        while self.last < last:
            frames = self.file.read(PIECE, dtype="float32", always_2d=True)
            if not len(frames):
                break
            self.pieces.append(np.array(self.mix(frames), np.float32))
            self.last += len(frames)
            while self.last - self.first > KEPT and self.first + len(self.pieces[0]) <= first:
                self.first += len(self.pieces.popleft())
        found, start = [np.zeros(0, np.float32)], self.first
        for piece in self.pieces:
            found.append(piece[max(0, first - start) : max(0, last - start)])
            start += len(piece)
        return np.concatenate(found)

    def close(self) -> None:
        self.file.close()

    def _restart(self) -> None:
        self.file.close()
        self.file = self.reopen()
        self.pieces.clear()
        self.first = self.last = 0

    def _say_the_long_way(self, first: int) -> None:
        if self.path not in _warned:
            _warned.add(self.path)
            log.warning(
                "%s: compressed audio is decoded from its beginning: %d s to read a window; convert long recordings to "
                "FLAC, or store features (global_config.storage_path)",
                self.path,
                first // self.file.samplerate,
            )
