"""Documents from files: plain text, JSON, CSV and Parquet, read as streams; conversations are in conversations.py.

type      files                    a document
text      UTF-8, UTF-16            a line, a paragraph (separated by blank lines) or a whole file
json      a list, or JSON lines    a string, or an object's ``text_column``
csv       tables, spreadsheets     the column ``text_column``: a name in the first row, or a number from 0 without one
parquet   Parquet                  the column ``text_column``
"""

from __future__ import annotations

import glob
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from vaak.config.base import DialectConfig, given_dialect
from vaak.core.class_names import ClassNames, class_names_in, name_classes
from vaak.core.errors import DataError, optional_import
from vaak.core.left_out import report_files
from vaak.core.names import nearest_name
from vaak.core.storage.archives import find_archive, find_in_archives, is_archive, open_file, read_state
from vaak.core.storage.dialects import AS_FOUND
from vaak.core.storage.remote import is_url
from vaak.core.storage.tables import Table, is_table
from vaak.core.storage.text_lines import open_utf8
from vaak.core.storage.url_cache import fetch_matches
from vaak.text.corpora.tool_calls import NO_OPTIONS, Options

log = logging.getLogger("vaak")

REPLACEMENT = "\ufffd"
_ESCAPED_BYTES = re.compile("[\udc80-\udcff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Read:
    """How much this process has read, for those who show progress."""

    num_bytes = 0.0


class BytesOptions(Protocol):
    """How bytes become text."""

    @property
    def on_invalid_utf8(self) -> str: ...


class ReadingOptions(BytesOptions, Protocol):
    """How files become documents."""

    @property
    def type(self) -> str: ...
    @property
    def text_column(self) -> str: ...
    @property
    def document(self) -> str: ...


OnBad = Callable[[DataError], None]
"""Is told of a row that can't be read, which is then left out; None: it is an error."""


class Document(NamedTuple):
    """An unchanged document, and the number of its bytes that were not UTF-8 and became U+FFFD.

    A conversation has its ``messages``, too, and its place; its text is what they say. A pair of answers has
    ``messages`` with the chosen one, and ``rejected`` with the other: the first ``num_asked`` of both are the same.
    ``unlearned`` are places of messages that aren't to be learned, ``asked`` of those that ask for it and aren't
    answers; ``tools`` is what an answer may call, ``options`` what the template is given besides. ``source`` is the
    number of the pattern that its file is named by. A ``problem`` is why it can't be used, where it has nothing else.
    """

    text: str
    replaced_bytes: int = 0
    where: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    rejected: tuple[dict[str, Any], ...] = ()
    num_asked: int = 0
    source: int = 0
    unlearned: frozenset[int] = frozenset()
    tools: tuple[dict[str, Any], ...] = ()
    problem: str = ""
    asked: frozenset[int] = frozenset()
    options: Options = NO_OPTIONS

    @property
    def identity(self) -> str:
        """A document's key for finding duplicates; a conversation's has all that its answers are learned by.

        That is its text, who says what, which answers are learned, and what the template is given.
        """
        if not self.messages:
            return self.text
        learned = [self.num_asked, sorted(self.unlearned), sorted(self.asked)]
        about = [[one["role"] for one in self.messages], learned, dict(self.options)]
        return f"{self.text}\0{json.dumps(about, sort_keys=True, default=str)}"


class JsonEntry(NamedTuple):
    """A value of a JSON file, its place, and the number of bytes since the previous entry that were not UTF-8."""

    value: Any
    where: str
    replaced_bytes: int


class Record(NamedTuple):
    """The values of the columns that were asked for, the place of their row, and replaced bytes."""

    values: dict[str, Any]
    where: str
    replaced_bytes: int = 0


def read_documents(
    paths: Iterable[Path],
    options: ReadingOptions,
    read: Callable[[Path, ReadingOptions], Iterator[Document]] | None = None,
) -> Iterator[Document]:
    """Yield the documents of the files, in order; ``options.type``, or ``read``, says how a file is read.

    Raises DataError naming file and line for what can't be read.
    """
    read = read or _READERS[options.type]
    for path in paths:
        try:
            yield from read(path, options)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error


def find_files(patterns: Iterable[str], option: str) -> list[Path]:
    """The files that match the names and glob patterns, sorted within each pattern, none twice; local copies of URLs.

    Raises DataError, naming the ``option`` of the pattern, if one matches nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        if is_url(pattern):
            found.update(dict.fromkeys(fetch_matches(pattern, option)))
            continue
        path = Path(pattern).expanduser()
        if path.is_dir():
            raise DataError(f"{option}: {pattern} is a folder; give its files, for example {pattern.rstrip('/')}/*.txt")
        matches = _find_matches(path)
        if is_archive(path) and path.is_file():
            raise DataError(f"{option}: {pattern} is an archive; give files in it, for example {pattern}/**/*.txt")
        files = [match for match in matches if find_archive(match) or match.is_file()]
        if not files:
            is_pattern = glob.has_magic(pattern)
            raise DataError(
                f"{option}: no file matches {pattern}" if is_pattern else f"{option}: no such file: {pattern}"
            )
        if len(files) < len(matches) and "**" not in pattern:
            others = {str(one): "not a file" for one in matches if one not in files}
            report_files(f"{option}: {pattern}", len(files), others)
        # A file that two patterns match is read once, at its first place.
        found.update(dict.fromkeys(files))
    return list(found)


def _find_matches(path: Path) -> list[Path]:
    """Return the matches of a name or a pattern: files and folders, or members of archives."""
    if path.is_file():
        return [path]
    members = find_in_archives(str(path))
    return [Path(name) for name in sorted(glob.glob(str(path), recursive=True))] if members is None else members


def _read_text(path: Path, options: ReadingOptions) -> Iterator[Document]:
    pieces: Callable[[Path], Iterator[LocatedBytes]] = {
        "line": file_lines,
        "paragraph": _paragraphs,
        "file": whole_file,
    }[options.document]
    for piece in pieces(path):
        yield decoded(piece, path, options)


def _read_json(path: Path, options: ReadingOptions, on_bad: OnBad | None = None) -> Iterator[Document]:
    def document(value: Any, where: str, replaced: int) -> Document:
        return checked(_to_text(value, where, options), replaced, where, options)

    yield from parse_json_values(path, options, document, on_bad)


def json_entries(path: Path, options: BytesOptions, on_bad: OnBad | None = None) -> Iterator[JsonEntry]:
    """Yield the values of a JSON list, or of JSON lines; blank lines are skipped.

    Raises DataError for what isn't JSON in UTF-8; with ``on_bad``, that is told of such lines.
    """
    with open_utf8(path) as file:
        # By content, not by ending: .json is used for lists and for lines.
        is_list = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    for piece in whole_file(path) if is_list else file_lines(path):
        try:
            content, replaced = decoded(piece, path, options)[:2]
            value = _json_value(content.removeprefix("\ufeff"), path, piece.line)
        except DataError as error:
            if on_bad is None or is_list:
                raise
            on_bad(error)
            continue
        if value is _BLANK:
            continue
        for number, entry in enumerate(value) if is_list else ((None, value),):
            where = f"{path}:{piece.line}" if number is None else f"{path}: entry {number}"
            yield JsonEntry(entry, where, replaced)
            # Replaced bytes of a whole file count once, with its first entry.
            replaced = 0


_BLANK = object()


def _json_value(content: str, path: Path, line: int) -> Any:
    """Return the value of a text that begins at a line of a file, or ``_BLANK``."""
    if not content.strip():
        return _BLANK
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        raise DataError(f"{where}: this is not JSON: {error.msg} at column {error.colno}") from error


def _read_csv(path: Path, options: ReadingOptions, on_bad: OnBad | None = None) -> Iterator[Document]:
    for record in _csv_records(path, {options.text_column: "text_column"}, options, on_bad):
        yield Document(record.values[options.text_column], record.replaced_bytes)


TYPES_WITH_ROWS = ("csv", "json")
"""Types of text whose bad rows ``data.on_bad_example`` may leave out."""


def read_with_problems(path: Path, options: ReadingOptions) -> Iterator[Document]:
    """Yield the documents of a table or of JSON; a row or a line that can't be read is one with a ``problem``."""
    problems: list[str] = []
    read = _read_csv if options.type == "csv" else _read_json
    for document in read(path, options, lambda error: problems.append(str(error))):
        yield from (Document("", problem=one) for one in problems)
        problems.clear()
        yield document
    yield from (Document("", problem=one) for one in problems)


def _read_parquet(path: Path, options: ReadingOptions) -> Iterator[Document]:
    for record in _parquet_records(path, {options.text_column: "text_column"}, options):
        yield checked(_to_text(record.values, record.where, options), 0, record.where, options)


def read_records(
    paths: Iterable[Path], columns: Mapping[str, str], options: BytesOptions, on_bad: OnBad | None = None
) -> Iterator[Record]:
    """Yield the rows of the files, each read by its ending: tables, Parquet, and JSON or JSON lines otherwise.

    ``columns`` are the columns or keys to read, each with the option that names it. Raises DataError naming file and
    line for what can't be read, or lacks one of them; with ``on_bad``, that is told of such rows and lines, and they
    are left out.
    """
    for path in paths:
        is_parquet = path.suffix.lower() == ".parquet"
        try:
            if is_parquet:
                yield from _parquet_records(path, columns, options)
            else:
                yield from (_csv_records if is_table(path) else _json_records)(path, columns, options, on_bad)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error


def _json_records(
    path: Path, columns: Mapping[str, str], options: BytesOptions, on_bad: OnBad | None = None
) -> Iterator[Record]:
    def record(value: Any, where: str, replaced: int) -> Record:
        if not isinstance(value, dict):
            keys = " and ".join(columns)
            raise DataError(f"{where}: expected an object with the keys {keys}, not a {type(value).__name__}")
        for column, option in columns.items():
            if column not in value:
                raise missing_column(where, column, value, option)
        return Record({column: value[column] for column in columns}, where, replaced)

    yield from parse_json_values(path, options, record, on_bad)


Made = TypeVar("Made")


def parse_json_values(
    path: Path, options: BytesOptions, make: Callable[[Any, str, int], Made], on_bad: OnBad | None = None
) -> Iterator[Made]:
    """Yield the results of ``make`` for each value of a JSON file, its place and its replaced bytes.

    Raises DataError for a line that isn't JSON, and what ``make`` raises; with ``on_bad``, that is told of such lines,
    unless ``make`` fails for all: then the file lacks the requested keys.
    """
    first, has_any = list[DataError](), False
    for entry in json_entries(path, options, on_bad):
        try:
            made = make(*entry)
        except DataError as error:
            if on_bad is None:
                raise
            first = first or [error]
            on_bad(error)
            continue
        has_any = True
        yield made
    # If every row fails, the option or the file is wrong: skipping all would leave an empty corpus without a reason.
    if first and not has_any:
        raise first[0]


@runtime_checkable
class TableOptions(Protocol):
    """How tables are written."""

    @property
    def dialect(self) -> DialectConfig | None: ...


def open_table(path: Path, options: BytesOptions, *, has_header: bool = True) -> Table:
    """Return the table in a file, whose bytes are read as ``options`` say and counted for those who show progress.

    Where they say nothing of its dialect (``TableOptions``), evidence decides.
    """

    def count(number: int) -> None:
        Read.num_bytes += number

    given = given_dialect(options.dialect) if isinstance(options, TableOptions) else AS_FOUND
    return Table(path, has_header=has_header, given=given, on_invalid_utf8=options.on_invalid_utf8, count_bytes=count)


def _csv_records(
    path: Path, columns: Mapping[str, str], options: BytesOptions, on_bad: OnBad | None = None
) -> Iterator[Record]:
    table = open_table(path, options)
    # Numbers mean a file without a header, unless the header has such names.
    if all(map(str.isdecimal, columns)) and not set(columns) <= set(table.names):
        table = open_table(path, options, has_header=False)
        table.names = [str(number) for number in range(table.width)]
    for column in columns:
        table.require_one(column)
    places = {column: _place(table.names, str(path), column, option) for column, option in columns.items()}
    for row in table.rows():
        if row.problem is not None:
            if on_bad is None:
                raise row.problem
            on_bad(row.problem)
            continue
        yield Record({column: row.cells[place] for column, place in places.items()}, row.where, row.replaced)


def read_class_names(path: Path) -> ClassNames:
    """Return the names of classes that a Parquet file has in its metadata, by column; of another file, none."""
    if path.suffix.lower() != ".parquet":
        return {}
    import pyarrow.parquet

    with open_file(path) as content, pyarrow.parquet.ParquetFile(content) as file:
        return class_names_in(file.schema_arrow)


def _parquet_records(path: Path, columns: Mapping[str, str], options: BytesOptions) -> Iterator[Record]:
    with optional_import(f"{path}: reading Parquet requires pyarrow", "hf"):
        import pyarrow
        import pyarrow.parquet
    try:
        with open_file(path) as content, pyarrow.parquet.ParquetFile(content) as file:
            for column, option in columns.items():
                _place(file.schema_arrow.names, str(path), column, option)
            names = class_names_in(file.schema_arrow)
            # Parquet is compressed and read by column, so progress is counted in average bytes per row.
            row, bytes_per_row = 0, read_state(path)[0] / max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=1024, columns=list(columns)):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    yield Record(name_classes(dict(zip(columns, values, strict=True)), names), f"{path}: row {row}")
                    row += 1
                    Read.num_bytes += bytes_per_row
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: this is not a readable Parquet file: {error}") from error


_READERS: dict[str, Callable[[Path, ReadingOptions], Iterator[Document]]] = {
    "text": _read_text,
    "json": _read_json,
    "csv": _read_csv,
    "parquet": _read_parquet,
}


class LocatedBytes(NamedTuple):
    """Bytes of a file, and the line and the byte at which they begin."""

    content: bytes
    line: int
    offset: int


def file_lines(path: Path) -> Iterator[LocatedBytes]:
    r"""Yield each line without its end; only ``\n`` ends one, so that U+2028 and form feeds stay text."""
    offset = 0
    with open_utf8(path) as file:
        for number, line in enumerate(file, start=1):
            yield LocatedBytes(line.rstrip(b"\r\n"), number, offset)
            offset += len(line)
            Read.num_bytes += len(line)


def _paragraphs(path: Path) -> Iterator[LocatedBytes]:
    """Lines up to a blank one, joined."""
    lines: list[LocatedBytes] = []
    for line in file_lines(path):
        if line.content.strip():
            lines.append(line)
        elif lines:
            yield _join_lines(lines)
            lines = []
    if lines:
        yield _join_lines(lines)


def _join_lines(lines: list[LocatedBytes]) -> LocatedBytes:
    return lines[0]._replace(content=b"\n".join(line.content for line in lines))


def whole_file(path: Path) -> Iterator[LocatedBytes]:
    """Yield the whole content of a file, once."""
    with open_utf8(path) as file:
        content = file.read()
    Read.num_bytes += len(content)
    yield LocatedBytes(content, 1, 0)


def decoded(piece: LocatedBytes, path: Path, options: BytesOptions) -> Document:
    """Return the piece's text; each byte that is not UTF-8 is an error that names its place, or U+FFFD."""
    try:
        return Document(piece.content.decode("utf-8"))
    except UnicodeDecodeError as error:
        if options.on_invalid_utf8 == "fail":
            line = piece.line + piece.content[: error.start].count(b"\n")
            raise DataError(
                f"{path}:{line}: byte {piece.offset + error.start} (0x{piece.content[error.start]:02X}) is not UTF-8; "
                "convert the file, or set on_invalid_utf8: replace"
            ) from error
    # Through surrogate escapes: one U+FFFD for each bad byte, so that they can be counted.
    return Document(*_ESCAPED_BYTES.subn(REPLACEMENT, piece.content.decode("utf-8", "surrogateescape")))


def checked(text: str, replaced: int, where: str, options: BytesOptions) -> Document:
    r"""Return the document, unless it contains half a surrogate pair (``\ud800``), which is not UTF-8 either."""
    text, halves = _SURROGATES.subn(REPLACEMENT, text)
    if halves and options.on_invalid_utf8 == "fail":
        raise DataError(f"{where}: half a surrogate pair is not a character; fix it, or set on_invalid_utf8: replace")
    return Document(text, replaced + halves)


def _to_text(entry: Any, where: str, options: ReadingOptions) -> str:
    """Return the text of a JSON value or a cell; null is the empty text."""
    if isinstance(entry, dict):
        if options.text_column not in entry:
            raise missing_column(where, options.text_column, entry)
        entry = entry[options.text_column]
    if entry is None:
        return ""
    if not isinstance(entry, str):
        raise DataError(
            f"{where}: the text is a {type(entry).__name__}, not a string (text_column: {options.text_column})"
        )
    return entry


def _place(names: list[str], where: str, column: str, option: str) -> int:
    if column not in names:
        raise missing_column(where, column, names, option)
    return names.index(column)


def missing_column(where: str, column: str, names: Iterable[str], option: str = "text_column") -> DataError:
    """Return the error that lists the columns, with a suggestion."""
    names = [str(name) for name in names]
    hint = f"set {option}{nearest_name(column, names)}"
    return DataError(f"{where}: no column {column!r}; the columns are: {', '.join(names) or 'none'} ({hint})")
