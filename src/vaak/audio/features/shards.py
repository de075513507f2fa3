"""One file of stored features: those of some recordings, one after another. It is written completely or not at all.

::

    float32, float16   (frame, dims) of all recordings, little-endian
    lilcom             blocks of 500 frames of a recording, each compressed; then int64, where each block ends
    all                then int64, the frames of each recording: the last 8 bytes a recording of the file
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import remedy_of, sync_directory, sync_file

BLOCK_FRAMES = 500
TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}


def lilcom_module() -> Any:
    """The codec, by Lhotse. Raises UserError if it isn't installed."""
    try:
        from lhotse.features.io import get_lilcom_module

        return get_lilcom_module()
    except (ImportError, OSError) as error:
        raise UserError("storage_type lilcom requires the package lilcom: pip install lilcom") from error


def write_shard(path: Path, recordings: Iterable[np.ndarray], storage_type: str) -> None:
    """Stream the features ``(frame, dims)`` of recordings to ``path``.

    If anything fails, including ``recordings``, nothing is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    lengths: list[int] = []
    ends: list[int] = []
    try:
        with open(temporary, "wb") as file:
            for frames in recordings:
                lengths.append(len(frames))
                if storage_type != "lilcom":
                    file.write(frames.astype(TYPES[storage_type]).tobytes())
                    continue
                for start in range(0, len(frames), BLOCK_FRAMES):
                    file.write(lilcom_module().compress(frames[start : start + BLOCK_FRAMES], tick_power=-5))
                    ends.append(file.tell())
            file.write(np.array([*ends, *lengths], "<i8").tobytes())
        sync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


class Shard:
    """A shard's features, memory-mapped: ``lengths`` are the frames of each of its recordings."""

    def __init__(self, path: Path, num_recordings: int, dims: int, storage_type: str) -> None:
        """Raises DataError if the file is missing or incomplete."""
        self.dims, self.storage_type = dims, storage_type
        try:
            size = path.stat().st_size
            self._bytes = np.asarray(np.memmap(path, "u1", mode="r")) if size else np.empty(0, "u1")
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; {remedy_of(error)}") from error
        if not self._tables_fit(size - 8 * num_recordings):
            raise DataError(f"{path}: this is truncated; delete the folder and run again")

    def _tables_fit(self, begin: int) -> bool:
        """Read the tables, the last one of which begins there; whether the features end where they begin."""
        if begin < 0:
            return False
        self.lengths = self._bytes[begin:].copy().view("<i8")
        if not all(0 <= length <= begin for length in self.lengths.tolist()):
            return False
        if self.storage_type != "lilcom":
            self._offsets = np.concatenate([[0], np.cumsum(self.lengths)])
            return int(self._offsets[-1]) * self.dims * TYPES[self.storage_type].itemsize == begin
        self._offsets = np.concatenate([[0], np.cumsum(-(-self.lengths // BLOCK_FRAMES))])
        end, begin = begin, begin - 8 * int(self._offsets[-1])
        if begin < 0:
            return False
        self._ends = np.concatenate([[0], self._bytes[begin:end].copy().view("<i8")])
        return bool(self._ends[-1] == begin and (np.diff(self._ends) > 0).all())

    def frames(self, index: int, first: int, last: int) -> np.ndarray:
        """Frames ``first`` to ``last`` of a recording, ``(frame, dims)`` float32, its own memory."""
        if self.storage_type == "lilcom":
            return self._decompressed(index, first, last)
        dtype = TYPES[self.storage_type]
        width = self.dims * dtype.itemsize
        start = int(self._offsets[index]) * width
        part = self._bytes[start + first * width : start + last * width]
        return part.view(dtype).reshape(-1, self.dims).astype(np.float32)

    def _decompressed(self, index: int, first: int, last: int) -> np.ndarray:
        first_block, last_block = first // BLOCK_FRAMES, -(-last // BLOCK_FRAMES)
        blocks = [np.empty((0, self.dims), np.float32)]
        for block in range(int(self._offsets[index]) + first_block, int(self._offsets[index]) + last_block):
            blocks.append(lilcom_module().decompress(self._bytes[self._ends[block] : self._ends[block + 1]].tobytes()))
        skipped = first_block * BLOCK_FRAMES
        return np.concatenate(blocks)[first - skipped : last - skipped]
