r"""Random access to the lines of a file, without loading it into memory.

NAME.jsonl     the lines
offsets.bin    int64, one more than lines: line i is the bytes offsets[i]:offsets[i + 1]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from vaak.core.errors import DataError
from vaak.core.storage.files import sync_file

OFFSETS, OFFSET = "offsets.bin", "<i8"


class MappedLines:
    """The lines of a file; ``lines[i]`` is one, with its end of line."""

    def __init__(self, path: Path, what: str) -> None:
        """Map the lines. Raises DataError if there are none, naming ``what`` they are, or they are incomplete."""
        try:
            self.offsets = mapped(path.with_name(OFFSETS), OFFSET)
            self._bytes = mapped(path, "u1")
        except OSError as error:
            raise DataError(f"{path.parent}: no {what}s here: {error.strerror}") from error
        except ValueError as error:
            # It isn't a whole number of offsets.
            raise cut_short(path.parent) from error
        if not len(self.offsets) or self.offsets[-1] != len(self._bytes):
            raise cut_short(path.parent)
        self.what = what

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.what} {index} of {len(self)}")
        return self._bytes[self.offsets[index] : self.offsets[index + 1]].tobytes()


class LineWriter:
    """Writes lines and their offsets."""

    def __init__(self, lines: IO[bytes], offsets: IO[bytes]) -> None:
        self._lines, self._offsets = lines, offsets
        self._place = 0
        self._note()

    def write(self, line: bytes) -> None:
        """Write a line, with its end."""
        self._place += self._lines.write(line)
        self._note()

    def _note(self) -> None:
        self._offsets.write(np.asarray(self._place, OFFSET).tobytes())


@contextmanager
def writing_lines(path: Path) -> Iterator[LineWriter]:
    """A writer for lines at ``path``; on exit, they are on the disk."""
    offsets = path.with_name(OFFSETS)
    with open(path, "wb") as lines_file, open(offsets, "wb") as offsets_file:
        yield LineWriter(lines_file, offsets_file)
    for written in (path, offsets):
        sync_file(written)


def mapped(path: Path, kind: str) -> np.ndarray:
    """Return the values of a file, memory-mapped; an empty file, which can't be mapped, has none.

    Raises OSError if the file is missing, and ValueError if it doesn't hold a whole number of values.
    """
    return np.asarray(np.memmap(path, kind, mode="r")) if path.stat().st_size else np.empty(0, kind)


def cut_short(folder: Path) -> DataError:
    """Return the error for a folder that doesn't hold all it should."""
    return DataError(f"{folder}: this is incomplete; delete the folder and run again")
