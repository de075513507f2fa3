r"""The dialect of a table, told by evidence, and its lines and rows in that dialect; ``tables`` reads them.

given       options (``GivenDialect``) take precedence over evidence
delimiter   that of the ending, unless another one gives rows of one width and it doesn't
quotes      syntax, or text, whichever leaves fewer rows of another width than the first. Where both leave none, lines
            are counted: text such as ``"mi su`` in one row and ``"do ba`` two rows later takes no row away
            (``_decide_quotes``)

A table whose quotes around cells leave all rows one width, and that no other reading could take for its own, is
``clean``: the csv module reads it alone, four times as fast (``_count_clean``).
Source: van den Burg, Nazábal and Sutton 2019, "Wrangling Messy CSV Files by Detecting Row and Type Patterns", for the
idea to try each dialect and to compare the shapes of rows and cells.
"""

from __future__ import annotations

import codecs
import csv
import functools
import gzip
import io
import logging
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from vaak.core.errors import DataError
from vaak.core.storage.archives import find_archive, open_file
from vaak.core.storage.text_lines import detect_encoding

log = logging.getLogger("vaak")

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
ENDINGS = {".csv": ",", ".tsv": "\t"}
"""Endings of files that are tables, and their usual delimiters."""
SAMPLE_LINES = 1000
MOST_LINES = 100_000
"""Most lines of one row: quotes that stay open for longer aren't quotes."""
Quotes = Literal["text", "cells", "lines"]
"""``cells``: around cells, which may have several lines; ``lines``: the same in a line that has no more than one."""
_RETURN = "\udfff"
"""For a carriage return inside a line, which the csv module takes for its end; no decoded text has this character."""
_ESCAPED = re.compile("[\udc80-\udcff]")
_BACKSLASHES = re.compile(r'\\(["\\])|\\')
_WRAPPED = re.compile('"(?:[^"]|"")*"')
Numbered = tuple[int, str]


class GivenDialect(NamedTuple):
    """The given parts of a dialect: evidence decides those that are None. Options may give them if ``can_be_said``."""

    delimiter: str | None = None
    quotes: Quotes | None = None
    encoding: str | None = None
    can_be_said: bool = False

    def advise(self, name: str, value: str) -> str:
        """Return how to set one of these, for the end of a message; empty if it is set, or can't be.

        >>> GivenDialect(can_be_said=True).advise("quotes", "text")
        ', or set dialect: {quotes: text} (vaak init, vaak data check: --quotes text)'
        >>> GivenDialect("|", can_be_said=True).advise("delimiter", "';'"), GivenDialect().advise("quotes", "text")
        ('', '')
        """
        if not self.can_be_said or getattr(self, name) is not None:
            return ""
        return f", or set dialect: {{{name}: {value}}} (vaak init, vaak data check: --{name} {value})"


AS_FOUND = GivenDialect()
"""All is decided by evidence."""


class Dialect(NamedTuple):
    """How cells are written; without a ``delimiter`` a line is a cell. ``escaped``: a backslash protects a quote."""

    delimiter: str
    quotes: Quotes = "text"
    escaped: bool = False
    encoding: str = "utf-8"


class Decision(NamedTuple):
    """The dialect of a table and the width of its rows; ``is_clean``: ``read_clean_rows`` reads it."""

    dialect: Dialect
    width: int
    is_clean: bool = False


class _Tally(NamedTuple):
    """A file's reading in a dialect; ``spans`` are the first and last lines of rows of several."""

    rows: int
    bad: int
    width: int
    spans: list[tuple[int, int]]


def find_ending(path: Path) -> str:
    names = [one.lower() for one in path.suffixes]
    return (names[-2:-1] if names[-1:] == [".gz"] else names[-1:] or [""])[0] if names else ""


def open_bytes(path: Path) -> IO[bytes]:
    if path.suffix.lower() != ".gz":
        return open_file(path)
    if find_archive(path) is None:
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return gzip.GzipFile(fileobj=open_file(path))  # type: ignore[return-value]


def read_lines(path: Path, encoding: str) -> Iterator[tuple[int, str, tuple[int, str] | None, int]]:
    """Each line's number, its text, how many of its bytes are invalid and which is the first, and its size in bytes."""
    if _is_wide(encoding):
        for number, text in _text_lines(path, encoding, "strict"):
            yield number, text, None, 2 * len(text) + 2
        return
    offset = 0
    with open_bytes(path) as file:
        # bytes are split before they are decoded: only \n ends a line, and an invalid one stays a single line
        for number, line in enumerate(file, start=1):
            content = line.removesuffix(b"\n").removesuffix(b"\r")
            content, bad = content.removeprefix(codecs.BOM_UTF8) if number == 1 else content, None
            try:
                text = content.decode(encoding)
            except UnicodeDecodeError as error:
                # each escaped surrogate is one invalid byte, so their number is the count
                text, count = _ESCAPED.subn("\ufffd", content.decode(encoding, "surrogateescape"))
                bad = count, f"byte {offset + error.start} (0x{content[error.start]:02X})"
            yield number, text, bad, len(line)
            offset += len(line)


def read_plain_rows(
    path: Path, dialect: Dialect, count_bytes: Callable[[int], None]
) -> Iterator[tuple[int, list[str], tuple[int, str] | None]]:
    """Yield the lines of a table whose quotes are text, as ``read_lines`` has them, in cells; without blank ones."""
    delimiter, told = dialect.delimiter, 0
    for number, text, bad, size in read_lines(path, dialect.encoding):
        told += size
        if not number % 256:
            # Telling the progress takes as long as splitting a line.
            count_bytes(told)
            told = 0
        cells = text.split(delimiter) if delimiter else [text]
        if len(cells) > 1 or text.strip(" "):
            yield number, cells, bad
    count_bytes(told)


def _is_wide(encoding: str) -> bool:
    """Return whether a line's end isn't the byte 10."""
    return encoding.startswith(("utf-16", "utf-32"))


def _text_lines(path: Path, encoding: str, errors: str) -> Iterator[Numbered]:
    with open_bytes(path) as file, io.TextIOWrapper(file, encoding, errors, newline="\n") as text:
        for number, line in enumerate(text, start=1):
            yield number, line.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff" if number == 1 else "\0")


def split_rows(lines: Iterable[Numbered], dialect: Dialect) -> Iterator[tuple[int, list[str] | None, int]]:
    """The first line of each row, its cells (None: they can't be told), and its last line; without blank lines."""
    if dialect.quotes == "cells":
        yield from _quoted_rows(iter(lines), dialect)
        return
    for number, line in lines:
        if line.strip(" "):
            cells = line.split(dialect.delimiter) if dialect.delimiter else [line]
            if dialect.quotes == "lines" and '"' in line:
                [(_, own, _)] = list(_quoted_rows(iter([(number, line)]), dialect))
                cells = cells if own is None else own
            yield number, cells, number


def _quoted_rows(lines: Iterator[Numbered], dialect: Dialect) -> Iterator[tuple[int, list[str] | None, int]]:
    """Rows whose cells may be in quotes. After one that can't be read, reading resumes at the line below its first."""
    # The default refuses documents of more than 128 KiB.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    again, used = deque[Numbered](), list[Numbered]()

    def feed() -> Iterator[str]:
        while (line := again.popleft() if again else next(lines, None)) is not None:
            used.append(line)
            if len(used) > MOST_LINES:
                raise csv.Error("the cell doesn't end")
            text = line[1].replace("\r", _RETURN)
            if dialect.escaped:
                # A backslash is an escape only before a quote or a backslash; csv takes each for one.
                text = _BACKSLASHES.sub(lambda found: found[0] if found[1] else r"\\", text)
            yield f"{text}\n"

    escapes: dict[str, Any] = {"escapechar": "\\", "doublequote": False} if dialect.escaped else {}
    rows = csv.reader(feed(), delimiter=dialect.delimiter or "\0", strict=True, **escapes)
    while True:
        used.clear()
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:
            first, *others = used
            again.extendleft(reversed(others))
            rows = csv.reader(feed(), delimiter=dialect.delimiter or "\0", strict=True, **escapes)
            yield first[0], None, first[0]
            continue
        if used[0][1].strip(" "):
            yield used[0][0], [cell.replace(_RETURN, "\r") if _RETURN in cell else cell for cell in cells], used[-1][0]


def fits(cells: list[str], width: int) -> bool:
    """Return whether a row has ``width`` cells, not counting empty ones that a spreadsheet adds at its end."""
    return len(cells) == width or (len(cells) > width and not any(cells[width:]))


class _Facts(NamedTuple):
    """Facts about a file, before anything is decided."""

    encoding: str
    lines: int
    quotes: bool
    escapes: bool
    returns: bool = False
    r"""Whether a ``\r`` is within a line."""


def _scan(path: Path, given: str | None) -> _Facts:
    """Read a file for its quotes and its lines. Raises DataError for one that can't be a table."""
    with open_bytes(path) as file:
        head = file.read(1 << 16)
        encoding, lines, returns, ends, quotes, escapes, last = (
            given or detect_encoding(head),
            0,
            0,
            0,
            False,
            False,
            b"",
        )
        chunk = head
        while chunk:
            lines, returns = lines + chunk.count(b"\n"), returns + chunk.count(b"\r")
            ends += chunk.count(b"\r\n") + (last == b"\r" and chunk[:1] == b"\n")
            quotes = quotes or b'"' in chunk
            # The second is UTF-16's.
            escapes = escapes or b'\\"' in chunk or b'\\\0"' in chunk
            last = chunk[-1:]
            chunk = file.read(1 << 20)
    if encoding == "utf-32" and given is None:
        raise DataError(f"{path}: this is UTF-32; convert the file: iconv -f utf-32 -t utf-8")
    if _is_wide(encoding):
        return _Facts(encoding, sum(1 for _ in _text_lines(path, encoding, "replace")), quotes, escapes)
    if not lines and returns > 1:
        raise DataError(rf"{path}: its lines end with \r alone; convert the file: tr '\r' '\n' < {path.name}")
    return _Facts(encoding, lines + (last not in (b"\n", b"")), quotes, escapes, returns != ends)


@functools.lru_cache(maxsize=1 << 14)
def decide(path: Path, key: tuple[int, int], has_header: bool, given: GivenDialect) -> Decision:
    """The dialect of a file and the width of its rows; ``key`` is the file's state, by which this is remembered."""
    facts, usual = _scan(path, given.encoding), ENDINGS.get(find_ending(path), "\t")
    usual = usual if given.delimiter is None else given.delimiter
    sample = list(islice(_text_lines(path, facts.encoding, "replace"), SAMPLE_LINES))
    delimiter = _choose_delimiter(sample, usual, has_header) if given.delimiter is None else given.delimiter
    dialect = Dialect(delimiter, encoding=facts.encoding)
    is_usual = facts.encoding.startswith("utf-8") or given.encoding is not None
    read = functools.partial(_text_lines, path, facts.encoding, "replace")
    if not facts.quotes or given.quotes is not None:
        dialect = dialect._replace(quotes=given.quotes if given.quotes and facts.quotes else "text")
        tally = _tally(sample, dialect, has_header)
        if delimiter != usual or not is_usual:
            _tell(path, dialect, _tally(read(), dialect, has_header), facts)
        return Decision(dialect, tally.width)
    if (clean := _count_clean(path, dialect, facts, sample, has_header)) is not None:
        dialect = dialect._replace(quotes="cells")
        if (delimiter, clean.rows + has_header, is_usual) != (usual, facts.lines, True):
            _tell(path, dialect, clean, facts)
        return Decision(dialect, clean.width, is_clean=True)
    marks = _look_at_marks(read(), dialect)
    dialect, tally = _decide_quotes(read, dialect, marks, has_header, facts.escapes)
    is_plain = (delimiter, tally.rows + has_header, tally.bad) == (usual, facts.lines, 0)
    if not (is_plain and is_usual and (dialect.quotes == "cells" or not marks.opening)):
        _tell(path, dialect, tally, facts)
    return Decision(dialect, tally.width)


def _count_clean(path: Path, plain: Dialect, facts: _Facts, sample: list[Numbered], has_header: bool) -> _Tally | None:
    """Count the rows where they are clean: ``_decide_quotes`` would find the same, reading a file several times.

    None if quotes around cells leave a row of another width, or leave doubt: a reading of them as text that could
    leave none, too (a row of the sample proves that it can't), with another number of rows; or, in tabs or bars,
    where no column of the sample and no cell needs them.
    """
    if facts.returns or _is_wide(facts.encoding):
        return None
    try:
        with open_bytes(path) as file, _open_text(file, plain) as text:
            widths = Counter(map(len, _csv_reader(text, plain)))
    except (csv.Error, UnicodeDecodeError):
        return None
    # A width of 0 is that of blank lines.
    widths.pop(0, None)
    if len(widths) != 1:
        return None
    [(width, rows)] = widths.items()
    is_text_bad = _tally(sample, plain, has_header, most_bad=0).bad > 0
    if width < 2 or facts.lines - rows >= MOST_LINES:
        return None
    if not is_text_bad and (rows != facts.lines or not (plain.delimiter in ",;" or _needs_quotes(path, plain, sample))):
        return None
    return _Tally(rows - has_header, 0, width, [])


def _needs_quotes(path: Path, plain: Dialect, sample: list[Numbered]) -> bool:
    """Whether all cells of a column of the sample are in quotation marks, or a cell anywhere that doubles some."""
    if _look_at_marks(iter(sample), plain).column:
        return True
    with open_bytes(path) as file, _open_text(file, plain) as text:
        doubling = ((0, line.removesuffix("\n")) for line in text if '""' in line)
        return any(_look_at_marks(iter([one]), plain).doubled for one in doubling)


def read_clean_rows(
    path: Path, dialect: Dialect, count_bytes: Callable[[int], None]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each row of a clean table, and its cells. Raises csv.Error where it is clean no more."""
    last = told = 0
    with open_bytes(path) as file, _open_text(file, dialect) as text:
        rows = _csv_reader(text, dialect)
        for cells in rows:
            if cells:
                yield last + 1, cells
            last = rows.line_num
            if not last % 256:
                # Asking for the place takes as long as reading a row.
                place = file.tell()
                count_bytes(place - told)
                told = place
        count_bytes(file.tell() - told)


def _open_text(file: IO[bytes], dialect: Dialect) -> io.TextIOWrapper:
    r"""Return the text of a file whose lines end with ``\n`` or ``\r\n``, which becomes ``\n``."""
    return io.TextIOWrapper(file, "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding, newline=None)


def _csv_reader(lines: Iterable[str], dialect: Dialect) -> Any:
    # The default refuses documents of more than 128 KiB.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    return csv.reader(lines, delimiter=dialect.delimiter or "\0", strict=True)


def _tell(path: Path, dialect: Dialect, tally: _Tally, facts: _Facts) -> None:
    """Log what was decided."""
    between = f"cells separated by {DELIMITERS.get(dialect.delimiter, repr(dialect.delimiter))}"
    quoted = {"text": "quotation marks are text", "cells": "quotation marks around cells", "lines": "quotation marks "
              "around cells within a line, others are text"}[dialect.quotes]  # fmt: skip
    parts = [between if dialect.delimiter else "a line is a cell", *([quoted] if facts.quotes else ())]
    parts += ["protected by backslashes"] if dialect.escaped else []
    parts += [] if dialect.encoding.startswith("utf-8") else [dialect.encoding.upper()]
    bad = f", {tally.bad:,} of which can't be told" if tally.bad else ""
    log.warning("%s: %s: %s rows in %s lines%s", path, ", ".join(parts), f"{tally.rows:,}", f"{facts.lines:,}", bad)


def _tally(lines: Iterable[Numbered], dialect: Dialect, has_header: bool, most_bad: float = float("inf")) -> _Tally:
    """Count the rows, without the header, and those that don't have the width of the header, or of most.

    Stops where more than ``most_bad`` are bad.
    """
    rows = split_rows(lines, dialect)
    first = list(islice(rows, 1 if has_header else SAMPLE_LINES))
    widths = Counter(len(cells) for _, cells, _ in first if cells is not None)
    width = widths.most_common(1)[0][0] if widths else 0
    number, bad, spans = 0, 0, list[tuple[int, int]]()
    for begins, cells, ends in chain(first, rows):
        number, bad = number + 1, bad + (cells is None or not fits(cells, width))
        if begins != ends:
            spans.append((begins, ends))
        if bad > most_bad:
            break
    return _Tally(number - bool(has_header and first), bad, width, spans)


def _choose_delimiter(sample: list[Numbered], usual: str, has_header: bool) -> str:
    """Return the usual delimiter, unless its rows have different widths, or one cell each, and those of another don't.

    None ("") where the first row is one cell, and others would have more.
    """
    # The last row of the sample may be half of one.
    cut = len(sample) == SAMPLE_LINES
    found: dict[str, tuple[int, int]] = {}
    for delimiter in (usual, *(one for one in DELIMITERS if one != usual)):
        kinds: tuple[Quotes, ...] = ("text", "cells", "lines")
        tallies = [_tally(sample, Dialect(delimiter, quotes), has_header) for quotes in kinds]
        best = min(tallies, key=lambda one: (one.bad, -one.width))
        found[delimiter] = max(best.bad - cut, 0), best.width
        if delimiter == usual and best.width > 1 and not found[usual][0]:
            return usual
    bad, width = found[usual]
    others = [one for one in found if found[one][1] > 1 and (width < 2 or found[one][0] < bad)]
    if others:
        return min(others, key=lambda one: found[one][0])
    return "" if width < 2 and bad else usual


def _decide_quotes(
    read: Callable[[], Iterator[Numbered]], plain: Dialect, marks: _Marks, has_header: bool, has_escapes: bool
) -> tuple[Dialect, _Tally]:
    """Decide the meaning of quotation marks in a file that has some; return it with the number of rows.

    no row is bad if they are around cells, but some if they are text     around cells
    the other way round                                                   text; around cells in lines that double some
    none in both cases, and as many rows                                  around cells with commas, with tabs and bars
                                                                          only where a cell or a column needs them
    none in both cases, but fewer rows if they are around cells           by what the lines look like that would be
                                                                          within a cell (``_spans_are_rows``)
    some in both cases                                                    what leaves the fewest
    """
    quoted = plain._replace(quotes="cells")
    cells = _tally(read(), quoted, has_header)
    if has_escapes:
        escaped = _tally(read(), quoted._replace(escaped=True), has_header, cells.bad)
        if escaped.bad < cells.bad:
            quoted, cells = quoted._replace(escaped=True), escaped
    if cells.width < 2 and not cells.bad:
        # Each line is as wide as this: it says nothing of quotes.
        return quoted, cells
    text = _tally(read(), plain, has_header)
    by_line = plain._replace(quotes="lines")
    if not text.bad:
        kept = by_line if marks.doubled or (plain.delimiter in ",;" and marks.wrapped) else plain
        if cells.bad:
            return kept, text
        if cells.rows == text.rows:
            is_needed = plain.delimiter in ",;" or marks.doubled or marks.column
            return (quoted, cells) if is_needed else (plain, text)
        return (kept, text) if _spans_are_rows(read(), plain, cells, has_header) else (quoted, cells)
    if not cells.bad:
        return quoted, cells
    lines = _tally(read(), by_line, has_header)
    return min(((quoted, cells), (by_line, lines), (plain, text)), key=lambda one: one[1].bad)


class _Marks(NamedTuple):
    """Kinds of quoted cells in a file: that begin with a mark, end with one too, double it, or fill a column."""

    opening: bool
    wrapped: bool
    doubled: bool
    column: bool


def _look_at_marks(lines: Iterator[Numbered], plain: Dialect) -> _Marks:
    number, columns, opening, doubled = 0, Counter[int](), False, False
    for _, cells, _ in split_rows(lines, plain):
        number += 1
        for place, cell in enumerate(cells or ()):
            opening = opening or cell[:1] == '"'
            if cell[:1] == '"' and _WRAPPED.fullmatch(cell):
                columns[place] += 1
                doubled = doubled or '""' in cell[1:-1]
    return _Marks(opening, bool(columns), doubled, number > 1 and number in columns.values())


def _spans_are_rows(lines: Iterator[Numbered], plain: Dialect, cells: _Tally, has_header: bool) -> bool:
    """Return whether lines that would be within a cell are rows: their numbers and files are where those of others are.

    Where no column has numbers or files, they are where cells are separated by tabs or bars, or there are three or
    more: prose has no tab, and seldom as many commas in each of its lines.
    """
    inside = {number for first, last in cells.spans[:SAMPLE_LINES] for number in range(first + 1, last + 1)}
    shapes: dict[bool, list[Counter[str]]] = {kind: [Counter() for _ in range(cells.width)] for kind in (True, False)}
    for number, own, _ in islice(split_rows(lines, plain), int(has_header), 100 * SAMPLE_LINES):
        for counts, cell in zip(shapes[number in inside], own or (), strict=False):
            counts[_shape(cell)] += 1
    telling = 0
    for outside, within in zip(shapes[False], shapes[True], strict=True):
        for shape in ("number", "file"):
            if outside[shape] and outside[shape] >= 0.9 * outside.total():
                telling += 1
                if within[shape] < within.total():
                    return False
    return telling > 0 or plain.delimiter in "\t|" or cells.width > 2


def _shape(cell: str) -> str:
    cell = cell.strip('" ')
    if re.fullmatch(r"[-+]?\d+(?:[.,]\d+)?", cell):
        return "number"
    return "file" if re.fullmatch(r"\S+\.\w{2,5}", cell) else "other"
