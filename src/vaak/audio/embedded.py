"""Audio inside of another file, read where it is: nothing is unpacked, and no name in it becomes a path.

/data/a.tar@bytes=512+40044        40,044 bytes from byte 512 on: a member of a tar, an entry of Kaldi's ark
/data/a.zip@deflated=99+301+44044  44,044 bytes that are 301 compressed ones from byte 99 on: a member of a zip
/data/b.parquet@cell=3.17.audio    row 17 of row group 3, column audio

So a cut names it (a source of type ``part``). To read a cell takes the pages of its row group up to it: some
milliseconds, where a row group has the 100 rows of Hugging Face's audio.
"""

from __future__ import annotations

import functools
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vaak.core.errors import DataError, optional_import

PART = "part"
"""The type of such a source, where that of a whole file is ``file``."""
BUFFER = 2**16
ROWS_AT_ONCE = 8
"""Rows of Parquet that are in memory at once."""


class ByteRange(NamedTuple):
    """``size`` bytes of a file, from ``offset`` on."""

    path: Path
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}@bytes={self.offset}+{self.size}"

    def open(self) -> BinaryIO:
        """Yield the bytes as a file."""
        return io.BufferedReader(_RawRange(self), BUFFER)


class DeflatedRange(NamedTuple):
    """``size`` bytes, which are ``packed`` compressed ones of a file from ``offset`` on, as in a zip."""

    path: Path
    offset: int
    packed: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}@deflated={self.offset}+{self.packed}+{self.size}"

    def open(self) -> BinaryIO:
        """The bytes, unpacked in memory. Raises DataError where they aren't so many, or are damaged."""
        with ByteRange(self.path, self.offset, self.packed).open() as file:
            packed = file.read()
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = unpacking.decompress(packed, self.size + 1)  # one more than there may be: no bomb goes off
        except zlib.error as error:
            raise DataError(f"{self}: the compressed data are damaged: {error}") from error
        if len(content) != self.size:
            raise DataError(f"{self}: {len(content):,} bytes come out, not {self.size:,}; was the file replaced?")
        return io.BytesIO(content)


class ParquetCell(NamedTuple):
    """A cell of a column of bytes; of a struct's field, ``column`` is ``audio.bytes``."""

    path: Path
    group: int
    row: int
    column: str

    def __str__(self) -> str:
        return f"{self.path}@cell={self.group}.{self.row}.{self.column}"

    def open(self) -> BinaryIO:
        """The bytes of the cell. Raises DataError where the file has no such cell."""
        first = 0
        try:
            for batch in rows_of(open_parquet(self.path), [self.column], self.group):
                if self.row < first + batch.num_rows:
                    return io.BytesIO(value_in(batch, self.column, self.row - first))
                first += batch.num_rows
        except (KeyError, TypeError, OSError, ValueError) as error:  # pyarrow's errors are ValueError and OSError
            raise DataError(f"{self}: can't be read: {error}; was the file replaced?") from error
        raise DataError(f"{self}: the file has no such row; was it replaced?")


Part = ByteRange | DeflatedRange | ParquetCell


class _RawRange(io.RawIOBase):
    """A range of bytes; no handle stays open, so processes share nothing and nothing has to be closed."""

    def __init__(self, part: ByteRange) -> None:
        self.part, self.place = part, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.part.size}[whence]
        self.place = max(0, start + offset)
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer: Any) -> int:
        number = max(0, min(len(buffer), self.part.size - self.place))
        with open(self.part.path, "rb", buffering=0) as file:
            file.seek(self.part.offset + self.place)
            done = file.readinto(memoryview(buffer)[:number])
        self.place += done
        return done


def part_of(text: str) -> Part:
    """The part that a source names. Raises DataError for a text that names none.

    >>> str(part_of("/data/a.tar@bytes=512+44"))
    '/data/a.tar@bytes=512+44'
    """
    path, _, place = str(text).rpartition("@")
    kind, _, value = place.partition("=")
    if path and kind == "bytes" and len(numbers := value.split("+")) == 2 and all(map(_is_count, numbers)):
        return ByteRange(Path(path), *map(int, numbers))
    if path and kind == "deflated" and len(numbers := value.split("+")) == 3 and all(map(_is_count, numbers)):
        return DeflatedRange(Path(path), *map(int, numbers))
    fields = value.split(".", 2)
    if path and kind == "cell" and len(fields) == 3 and all(map(_is_count, fields[:2])):
        return ParquetCell(Path(path), int(fields[0]), int(fields[1]), fields[2])
    raise DataError(
        f"{text!r} names no part of a file; expected FILE@bytes=OFFSET+SIZE, "
        "FILE@deflated=OFFSET+PACKED+SIZE or FILE@cell=GROUP.ROW.COLUMN"
    )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def place_of_source(kind: str, source: str) -> Path | Part:
    """Return where a cut's source is: a file, or a part of one."""
    return part_of(source) if kind == PART else Path(source)


def open_parquet(path: Path) -> Any:
    """A ``pyarrow.parquet.ParquetFile``. Raises DataError for a file that isn't one."""
    try:
        stamp = path.stat()
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error
    return _open_parquet(path, stamp.st_size, stamp.st_mtime_ns)


@functools.lru_cache(16)
def _open_parquet(path: Path, size: int, changed: int) -> Any:
    """The file, kept open: its footer may be long. It is mapped, so processes that are forked share no position."""
    with optional_import(f"{path}: Parquet requires pyarrow", "hf"):
        import pyarrow.lib
        import pyarrow.parquet
    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise DataError(f"{path}: this is not Parquet, or it is cut short: {str(error).splitlines()[0]}") from error


def rows_of(file: Any, columns: list[str], group: int) -> Any:
    """Record batches of some columns of a row group, a few rows each."""
    return file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns, use_threads=False)


def value_in(batch: Any, column: str, row: int) -> Any:
    """A cell of a record batch; of a field of a struct, where ``column`` has a dot. None where it is null."""
    name, _, field = column.partition(".")
    value = batch.column(batch.schema.get_field_index(name))[row].as_py()
    return value[field] if field and value is not None else value
