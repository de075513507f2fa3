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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vaak.core.errors import DataError, optional_import
from vaak.core.storage.archives import ByteRange, DeflatedRange, PackedRange

EMBEDDED_TYPE = "part"
"""The type of such a source, where that of a whole file is ``file``."""
ROWS_AT_ONCE = 8
"""Rows of Parquet that are in memory at once."""


class ParquetCell(NamedTuple):
    """A cell of a column of bytes; for a field of a struct, ``column`` is ``audio.bytes``."""

    path: Path
    group: int
    row: int
    column: str

    def __str__(self) -> str:
        return f"{self.path}@cell={self.group}.{self.row}.{self.column}"

    def open(self) -> BinaryIO:
        """Return the bytes of the cell. Raises DataError if the file has no such cell."""
        first = 0
        try:
            for batch in read_rows(open_parquet(self.path), [self.column], self.group):
                if self.row < first + batch.num_rows:
                    return io.BytesIO(value_in(batch, self.column, self.row - first))
                first += batch.num_rows
        except (KeyError, TypeError, OSError, ValueError) as error:
            # Pyarrow's errors are ValueError and OSError.
            raise DataError(f"{self}: can't be read: {error}; was the file replaced?") from error
        raise DataError(f"{self}: the file has no such row; was it replaced?")


Part = ByteRange | DeflatedRange | PackedRange | ParquetCell


def parse_part(text: str) -> Part:
    """Return the part that a source names. Raises DataError for a text that names none.

    >>> str(parse_part("/data/a.tar@bytes=512+44"))
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


def find_bytes(place: Path | Part) -> tuple[Path, int, int]:
    """The file that has an audio, and its first byte and number of bytes there; of Parquet, those of its row group.

    Raises DataError for Parquet that can't be opened, OSError for a file that isn't there.
    """
    if isinstance(place, ByteRange):
        return place.path, place.offset, place.size
    if isinstance(place, DeflatedRange):
        return place.path, place.offset, place.packed
    if isinstance(place, ParquetCell):
        group = open_parquet(place.path).metadata.row_group(place.group)
        chunks = [group.column(number) for number in range(group.num_columns)]
        [chunk] = [chunk for chunk in chunks if chunk.path_in_schema == place.column]
        first = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
        return place.path, first, chunk.total_compressed_size
    path = place if isinstance(place, Path) else place.path
    return path, 0, path.stat().st_size


def place_of_source(kind: str, source: str) -> Path | Part:
    """Return where a cut's source is: a file, or a part of one."""
    return parse_part(source) if kind == EMBEDDED_TYPE else Path(source)


def open_parquet(path: Path) -> Any:
    """Return a ``pyarrow.parquet.ParquetFile``. Raises DataError for a file that isn't one."""
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


def read_rows(file: Any, columns: list[str], group: int) -> Any:
    """Record batches of some columns of a row group, a few rows each."""
    return file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns, use_threads=False)


def value_in(batch: Any, column: str, row: int) -> Any:
    """Return a cell of a record batch, or of a field of a struct, where ``column`` has a dot. None if it is null."""
    name, _, field = column.partition(".")
    value = batch.column(batch.schema.get_field_index(name))[row].as_py()
    return value[field] if field and value is not None else value
