r"""The one reader of tables: cells in lines (CSV, TSV, ``;``, ``|``; ``.gz``, too), whose dialect is told by evidence.

Spreadsheets are such tables, too, whose dialect is their file's.

encoding    UTF-8, with a byte order mark or without; UTF-16 by its mark, or by where its zero bytes are. Bytes of
            another encoding, such as Latin-1, are refused by their place: which one it is can't be told
delimiter   that of the ending, or another one (``vaak.core.storage.dialects``)
quotes      syntax, or text
lines       end with ``\n`` or ``\r\n``, never with another character of Unicode

A row of another width than the first, or with quotes that don't end, is yielded as a problem with its file and line:
the caller decides. A decision that differs from the ending is logged in one line, with rows and lines.
"""

from __future__ import annotations

import csv
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vaak.core.errors import DataError
from vaak.core.storage.archives import read_state
from vaak.core.storage.dialects import (
    AS_FOUND,
    DELIMITERS,
    ENDINGS,
    Decision,
    Dialect,
    GivenDialect,
    Numbered,
    decide,
    find_ending,
    fits,
    read_clean_rows,
    read_lines,
    read_plain_rows,
    split_rows,
)
from vaak.core.storage.spreadsheets import is_spreadsheet, read_sheet
from vaak.core.storage.text_lines import CONVERT

log = logging.getLogger("vaak")


class TableRow(NamedTuple):
    """The cells of a row and its place; ``problem`` where they can't be told. ``replaced`` bytes were not UTF-8."""

    where: str
    cells: list[str]
    problem: DataError | None = None
    replaced: int = 0


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its ending.

    >>> [is_table(Path(name)) for name in ("a.csv", "a.TSV.gz", "a.xlsx", "a.jsonl.gz")]
    [True, True, True, False]
    """
    return find_ending(path) in ENDINGS or is_spreadsheet(path)


class Table:
    """A table: the ``names`` of its columns, and its rows. ``dialect`` is what was decided."""

    def __init__(
        self,
        path: Path,
        names: Sequence[str] | None = None,
        *,
        has_header: bool = True,
        given: GivenDialect = AS_FOUND,
        on_invalid_utf8: str | None = None,
        count_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Decide the dialect and read the header.

        names
            Names of the columns, if the file has no header.
        given
            The dialect as set by a format or an option; evidence decides the rest.
        on_invalid_utf8
            ``replace``: bytes that are not UTF-8 become U+FFFD and are counted; else they are a row's problem.
        count_bytes
            Called with the number of bytes of each line that is read.

        Raises DataError for a file that can't be read.
        """
        self.path, self.has_header = path, has_header and names is None
        self._on_invalid, self._count, self._given = on_invalid_utf8, count_bytes, given
        self._is_sheet = is_spreadsheet(path)
        with _reading(path):
            key = read_state(path)
            if self._is_sheet:
                self._decision = Decision(Dialect("\t", "cells"), _sheet_width(path, self.has_header))
            else:
                self._decision = decide(path, key, self.has_header, given)
        self.dialect, self.width = self._decision.dialect, self._decision.width
        self.names = list(names or ())
        if self.has_header and (first := next(self._all_rows(), None)) is not None:
            if first.problem is not None:
                raise first.problem
            self.names = [cell.strip() for cell in first.cells]
            if self.repeated:
                log.warning(
                    "%s: several columns are called %s; none of these can be read", path, ", ".join(self.repeated)
                )

    @property
    def repeated(self) -> list[str]:
        """The names that several columns have."""
        return [name for name, number in Counter(self.names).items() if number > 1 and name]

    def require_one(self, name: str) -> None:
        """Raise DataError if several columns have a name that is read: which is meant can't be told."""
        if name in self.repeated:
            raise DataError(f"{self.path}: several columns are called {name!r}; rename all but the one to read")

    @property
    def separator(self) -> str:
        """The separator of cells, for a message."""
        return DELIMITERS.get(self.dialect.delimiter, repr(self.dialect.delimiter))

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows, without the header and blank lines. Raises DataError for what can't be read at all."""
        return islice(self._all_rows(), int(self.has_header), None)

    def _all_rows(self) -> Iterator[TableRow]:
        width = len(self.names) or self.width
        if self._is_sheet:
            return self._sheet_rows(width)
        if self._decision.is_clean:
            return self._clean_rows()
        return self._plain_rows(width) if self.dialect.quotes == "text" else self._quoted_rows(width)

    def _plain_rows(self, width: int) -> Iterator[TableRow]:
        name = str(self.path)
        with _reading(self.path):
            for number, cells, bad in read_plain_rows(self.path, self.dialect, self._count):
                where = f"{name}:{number}"
                if bad is None and len(cells) == width:
                    yield TableRow(where, cells)
                    continue
                invalid = None if bad is None else self._invalid(where, bad)
                problem = invalid or self._problem(where, cells, width)
                own = [] if invalid else cells if problem else cells[:width]
                yield TableRow(where, own, None if problem is None else DataError(problem), bad[0] if bad else 0)

    def _quoted_rows(self, width: int) -> Iterator[TableRow]:
        replaced, invalid = 0, dict[int, str]()

        def lines() -> Iterator[Numbered]:
            nonlocal replaced
            for number, text, bad, size in read_lines(self.path, self.dialect.encoding):
                if bad is not None and (problem := self._invalid(f"{self.path}:{number}", bad)):
                    invalid[number] = problem
                replaced += bad[0] if bad is not None else 0
                self._count(size)
                yield number, text

        with _reading(self.path):
            for number, cells, last in split_rows(lines(), self.dialect):
                # a row may span several lines: any invalid one spoils it
                unread = [invalid.pop(line) for line in range(number, last + 1) if line in invalid] if invalid else []
                problem = unread[0] if unread else self._problem(f"{self.path}:{number}", cells, width)
                error = None if problem is None else DataError(problem)
                own = [] if unread else (cells or []) if error else (cells or [])[:width]
                yield TableRow(f"{self.path}:{number}", own, error, replaced)
                replaced = 0

    def _invalid(self, where: str, bad: tuple[int, str]) -> str | None:
        """Return the problem with a line that has ``bad`` bytes, unless they are replaced."""
        if self._on_invalid == "replace":
            return None
        advice = self._given.advise("encoding", "cp1252")
        advice += "" if self._on_invalid is None else ", or set on_invalid_utf8: replace"
        return f"{where}: {bad[1]} is not {self.dialect.encoding.removesuffix('-sig').upper()}; {CONVERT}{advice}"

    def _clean_rows(self) -> Iterator[TableRow]:
        name, width = str(self.path), self.width
        try:
            with _reading(self.path):
                for number, cells in read_clean_rows(self.path, self.dialect, self._count):
                    if len(cells) != width:
                        raise csv.Error
                    yield TableRow(f"{name}:{number}", cells)
        except csv.Error as error:
            raise DataError(f"{self.path}: the file changed while it was read; read it again") from error

    def _sheet_rows(self, width: int) -> Iterator[TableRow]:
        self._count(read_state(self.path)[0])
        for number, cells in read_sheet(self.path):
            where = f"{self.path}: row {number}"
            problem = self._problem(where, cells, width)
            yield TableRow(where, cells[:width], None if problem is None else DataError(problem))

    def _problem(self, where: str, cells: list[str] | None, width: int) -> str | None:
        if cells is None:
            wrong = f"{where}: a quotation mark opens a cell that doesn't end, or text follows its end; fix the row"
            return wrong + self._given.advise("quotes", "text")
        if fits(cells, width):
            return None
        expected = "the first row has" if self.has_header else "most rows have"
        return (
            f"{where}: {len(cells)} columns, but {expected} {width}"
            + (": " if self.names else "")
            + ", ".join(self.names)
            + self._given.advise("delimiter", "';'").replace(", or", "; fix the row, or")
        )

    def entries(self) -> Iterator[tuple[TableRow, dict[str, str]]]:
        """Yield each row with its cells by the names of their columns; those of a row with a problem are empty."""
        repeated = set(self.repeated)
        for row in self.rows():
            cells = {} if row.problem is not None else dict(zip(self.names, row.cells, strict=False))
            yield row, {name: cell for name, cell in cells.items() if name not in repeated} if repeated else cells


def _sheet_width(path: Path, has_header: bool) -> int:
    """Return the filled cells of the header of a spreadsheet; of one without, all columns."""
    first = next((cells for _, cells in read_sheet(path)), [])
    return max((place for place, cell in enumerate(first, 1) if cell or not has_header), default=0)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Within this context, errors of reading are DataErrors."""
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        # EOFError, zlib.error: half a .gz.
        raise DataError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
