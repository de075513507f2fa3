"""Rows of parallel text from files: both sides of each, unchanged, read as streams.

type   files                                a side of a row
json   a list of objects, or JSON lines     the value of a key, a string or a list of them; dots for nested keys
tsv    tab-separated cells; quotes are      the column of a name in the first line, or of a number from 0 if there is
       plain text                           no header
text   two files at a time                  line i of both files
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vaak.core.errors import DataError, UserError
from vaak.text.corpora.readers import BytesOptions, checked, decoded, file_lines, json_entries, missing_column


class ColumnOptions(BytesOptions, Protocol):
    """The columns of the two sides of a row."""

    @property
    def source_column(self) -> str: ...
    @property
    def target_column(self) -> str: ...


class Row(NamedTuple):
    """The variants of each side (one if it is not a list, none for null), their place, and replaced bytes."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    where: str
    replaced_bytes: int = 0


def read_rows(files: Iterable[tuple[Path, ...]], kind: str, options: ColumnOptions) -> Iterator[Row]:
    """The rows of files, in order; of ``text`` each is a file of sources and one of targets.

    Raises DataError naming file and line for what can't be read.
    """
    for paths in files:
        try:
            if kind == "text":
                yield from _read_lines(paths[0], paths[1], options)
            else:
                yield from (_read_json if kind == "json" else _read_tsv)(paths[0], options)
        except OSError as error:
            raise DataError(f"{error.filename or paths[0]}: {error.strerror or error}") from error


def _read_lines(source: Path, target: Path, options: ColumnOptions) -> Iterator[Row]:
    for left, right in zip_longest(file_lines(source), file_lines(target)):
        if left is None or right is None:
            raise DataError(
                f"{source} has {_count_lines(source)} lines and {target} has {_count_lines(target)}: "
                "line i of both must belong together"
            )
        first, second = decoded(left, source, options), decoded(right, target, options)
        replaced = first.replaced_bytes + second.replaced_bytes
        yield Row((first.text,), (second.text,), f"{source}:{left.line}", replaced)


def _count_lines(path: Path) -> int:
    return sum(1 for _ in file_lines(path))


def _read_json(path: Path, options: ColumnOptions) -> Iterator[Row]:
    for value, where, replaced in json_entries(path, options):
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: a pair is an object with the keys {options.source_column} and {options.target_column}, "
                f"not a {type(value).__name__}"
            )
        yield row_of(value, where, options, replaced)


def _read_tsv(path: Path, options: ColumnOptions) -> Iterator[Row]:
    columns = _numbers(options)
    for content, line, replaced in _tsv_lines(path, options):
        cells = content.split("\t")
        if columns is None:
            columns = _column(cells, path, options, "source_column"), _column(cells, path, options, "target_column")
            continue
        if len(cells) <= max(columns):
            raise DataError(
                f"{path}:{line}: this line has {len(cells)} cells separated by tabs, but column {max(columns)} "
                "(from 0) was requested"
            )
        yield Row((cells[columns[0]],), (cells[columns[1]],), f"{path}:{line}", replaced)


def _tsv_lines(path: Path, options: ColumnOptions) -> Iterator[tuple[str, int, int]]:
    """Text, number and replaced bytes of the lines that aren't blank."""
    for piece in file_lines(path):
        content, replaced = decoded(piece, path, options)[:2]
        content = content.removeprefix("\ufeff")
        if content:
            yield content, piece.line, replaced


def _numbers(options: ColumnOptions) -> tuple[int, int] | None:
    """The columns if they are numbers, None if they are names in the first line."""
    source, target = options.source_column, options.target_column
    if source.isdecimal() != target.isdecimal():
        raise UserError(
            f"corpus: source_column {source!r} and target_column {target!r}: give two names of the first line, or "
            "two numbers for a file without a header"
        )
    return (int(source), int(target)) if source.isdecimal() else None


def _column(names: list[str], path: Path, options: ColumnOptions, option: str) -> int:
    column = getattr(options, option)
    if column not in names:
        raise missing_column(f"{path}:1", column, names, option)
    return names.index(column)


def row_of(entry: dict[str, Any], where: str, options: ColumnOptions, replaced: int = 0) -> Row:
    """The row of an object with a key for each side.

    Raises DataError for a key that isn't there, and a value that is neither text, nor a list of texts, nor null.
    """
    sides: list[tuple[str, ...]] = []
    for option in ("source_column", "target_column"):
        column = getattr(options, option)
        value = _value(entry, column, where, option)
        texts = [checked(text, 0, where, options) for text in _texts(value, column, where)]
        replaced += sum(text.replaced_bytes for text in texts)
        sides.append(tuple(text.text for text in texts))
    return Row(sides[0], sides[1], where, replaced)


def _value(entry: dict[str, Any], column: str, where: str, option: str) -> Any:
    """The value of a key, or of nested keys separated by dots."""
    if column in entry:
        return entry[column]
    value: Any = entry
    for key in column.split("."):
        if not isinstance(value, dict) or key not in value:
            raise missing_column(where, column, column_names(entry), option)
        value = value[key]
    return value


def column_names(entry: dict[str, Any]) -> list[str]:
    """The keys of an object; nested keys after dots.

    >>> column_names({"id": 1, "translation": {"en": "a", "hi": "b"}})
    ['id', 'translation.en', 'translation.hi']
    """
    names: list[str] = []
    for key, value in entry.items():
        names += [f"{key}.{name}" for name in column_names(value)] if isinstance(value, dict) else [str(key)]
    return names


def _texts(value: Any, column: str, where: str) -> list[str]:
    if value is None:
        return []
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            listed = "a list with a" if isinstance(value, list) else "a"
            raise DataError(
                f"{where}: {column} is {listed} {type(text).__name__}; a side is a string or a list of strings"
            )
    return texts
