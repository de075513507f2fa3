"""How much audio a file holds, counted without decoding it, and how much its header says.

==========================  ==========================================================================
WAV, RF64, W64, AIFF, AU    the bytes of samples up to the end of the file (``containers.pcm``)
MP3, MP2                    its frames, one after another; a Xing, Info or VBRI frame is only compared
FLAC                        the number in the header of the last frame, at the end of the file
Ogg Opus, Ogg Vorbis        the position on the last page; Opus is shifted to begin at 0
other formats               libsndfile or FFmpeg
==========================  ==========================================================================

Where a header is wrong, libsndfile reads the file with another one in its place (``pieces``): nothing is written.
A count is kept for a file as long as its size and its time of change are the same, so training counts once.
"""

from __future__ import annotations

import bisect
import functools
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vaak.audio.embedded import ByteRange, ParquetCell, Part
from vaak.core.errors import DataError

HEAD = 64
"""Bytes that tell formats apart."""
Piece = bytes | tuple[int, int]
"""Bytes, or ``(offset, size)`` of the file."""


class Contents(NamedTuple):
    """What was counted; all None for a format that isn't looked into, or a header that says nothing."""

    said: int | None = None
    """Samples by the header."""
    held: int | None = None
    """Samples that are there; None: as many as libsndfile finds in the pieces."""
    pieces: tuple[Piece, ...] = ()
    """What libsndfile is to read in place of the file; empty: the file as it is."""


def open_bytes(path: Path | Part) -> BinaryIO:
    """The file, or the part of one, to be read."""
    return open(path, "rb") if isinstance(path, Path) else path.open()


def count_contents(path: Path | Part) -> Contents:
    """What the file holds. Raises DataError for one that can't be read or ends in the middle of its last page."""
    file = path if isinstance(path, Path) else path.path
    try:
        stamp = file.stat()
        return _count_contents(path, stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


@functools.lru_cache(2**16)
def _count_contents(path: Path | Part, size: int, changed: int) -> Contents:
    from vaak.audio.containers import flac, mpeg, ogg, pcm

    with open_bytes(path) as file:
        head = file.read(HEAD)
        if head[:4] == b"OggS":
            return ogg.count_pages(file, path)
        if head[:4] == b"fLaC":
            return flac.count_frames(file)
        if (found := pcm.count_bytes(file, head)) is not None:
            return found
        if mpeg.may_begin(head) or file_name(path).endswith((".mp3", ".mp2", ".mpga")):
            return mpeg.count_frames(file)
        return Contents()


def file_name(path: Path | Part) -> str:
    """The name of the file, in lower case; of a part of a file, nothing."""
    return path.name.lower() if isinstance(path, Path) else ""


def open_pieces(path: Path | Part, pieces: Sequence[Piece]) -> BinaryIO:
    """The pieces, one after another, as one file."""
    if isinstance(path, ParquetCell):
        with path.open() as file:
            content = file.read()
        return io.BytesIO(b"".join(p if isinstance(p, bytes) else content[p[0] : p[0] + p[1]] for p in pieces))
    whole = path if isinstance(path, ByteRange) else ByteRange(path, 0, path.stat().st_size)
    parts = [p if isinstance(p, bytes) else ByteRange(whole.path, whole.offset + p[0], p[1]) for p in pieces]
    return io.BufferedReader(_Joined(parts), 2**16)


class _Joined(io.RawIOBase):
    """Bytes and ranges of files, one after another; no handle stays open."""

    def __init__(self, parts: Sequence[bytes | ByteRange]) -> None:
        self.parts, self.place = parts, 0
        sizes = (len(part) if isinstance(part, bytes) else part.size for part in parts)
        self.ends = list(itertools.accumulate(sizes))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.ends[-1]}[whence]
        self.place = max(0, start + offset)
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer: Any) -> int:
        number = bisect.bisect_right(self.ends, self.place)
        if number == len(self.parts):
            return 0
        start = self.ends[number - 1] if number else 0
        content = self._read(self.parts[number], self.place - start, len(buffer))
        buffer[: len(content)] = content
        self.place += len(content)
        return len(content)

    @staticmethod
    def _read(part: bytes | ByteRange, offset: int, number: int) -> bytes:
        if isinstance(part, bytes):
            return part[offset : offset + number]
        with open(part.path, "rb", buffering=0) as file:
            file.seek(part.offset + offset)
            return file.read(min(number, part.size - offset)) or b""


def measure(file: BinaryIO) -> int:
    """The size of an open file in bytes."""
    return file.seek(0, os.SEEK_END)
