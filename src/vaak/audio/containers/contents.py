"""The counts of a file, and the file as libsndfile is to read it."""

from __future__ import annotations

import bisect
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vaak.audio.embedded import ParquetCell, Part
from vaak.core.storage.archives import ByteRange, DeflatedRange, PackedRange

Piece = bytes | tuple[int, int]
"""Bytes, or ``(offset, size)`` of the file."""


class Contents(NamedTuple):
    """The counts; all None for a format that isn't examined, or a header without a length."""

    said: int | None = None
    """Samples by the header."""
    held: int | None = None
    """Samples that are there; None: as many as libsndfile finds in the pieces."""
    pieces: tuple[Piece, ...] = ()
    """Bytes that libsndfile is to read in place of the file; empty: the file itself."""
    note: str = ""
    """Further oddities of the file, in words."""


def open_bytes(path: Path | Part) -> BinaryIO:
    """Return the file, or the part of one, to be read."""
    return open(path, "rb") if isinstance(path, Path) else path.open()


def open_pieces(path: Path | Part, pieces: Sequence[Piece]) -> BinaryIO:
    """Return the pieces, one after another, as one file."""
    # These are stored compressed or inside a column, so they have no byte ranges to refer to: unpack into memory.
    if isinstance(path, ParquetCell | DeflatedRange | PackedRange):
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
        # The first part that ends after the position, so empty parts are skipped.
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
    """Return the size of an open file in bytes."""
    return file.seek(0, os.SEEK_END)
