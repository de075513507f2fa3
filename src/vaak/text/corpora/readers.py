"""Documents from files: plain text, JSON, CSV, Parquet and conversations, read as streams.

type      files                    a document
text      anything in UTF-8        a line, a paragraph (separated by blank lines) or a whole file
json      a list, or JSON lines    a string, or an object's ``text_column``
csv       .csv, and .tsv by tabs   the column ``text_column``; the first row names the columns
parquet   Parquet                  the column ``text_column``
preferences                        a question and two answers: prompt, chosen, rejected (texts, or lists of messages)
chat      a list, or JSON lines    a conversation, in one of four forms:

    {"messages": [{"role": "system" | "user" | "assistant" | "tool", "content": text}, …]}
    {"conversations": [{"from": "system" | "human" | "gpt" | "tool", "value": text}, …]}      ShareGPT's
    {"prompt": text, "completion": text}
    {"instruction": text, "input": text, "output": text}      Alpaca's; the input may be empty or missing

The last two are a question of the user and the assistant's answer. A ``tool`` says what a function returned. Other
keys are not read, but a message with ``tool_calls`` is refused: an answer without them would be learned.
"""

from __future__ import annotations

import csv
import difflib
import glob
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vaak.core.errors import DataError, optional_import
from vaak.text.tokenizer import normalise

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


class Document(NamedTuple):
    """An unchanged document, and the number of its bytes that were not UTF-8 and became U+FFFD.

    A conversation has its ``messages``, too, and its place; its text is what they say. A pair of answers has
    ``messages`` with the chosen one, and ``rejected`` with the other: the first ``num_asked`` of both are the same.
    ``source`` is the number of the pattern that its file is named by.
    """

    text: str
    replaced_bytes: int = 0
    where: str = ""
    messages: tuple[dict[str, str], ...] = ()
    rejected: tuple[dict[str, str], ...] = ()
    num_asked: int = 0
    source: int = 0


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
    """The documents of the files, in order; ``options.type``, or ``read``, says how a file is read.

    Raises DataError naming file and line for what can't be read.
    """
    read = read or _READERS[options.type]
    for path in paths:
        try:
            yield from read(path, options)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error


def find_files(patterns: Iterable[str], option: str) -> list[Path]:
    """The files that match the names and glob patterns, sorted within each pattern, none twice.

    Raises DataError, naming the ``option`` of the pattern, if one matches nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            raise DataError(f"{option}: {pattern} is a folder; give its files, for example {pattern.rstrip('/')}/*.txt")
        matches = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        files = [match for match in matches if match.is_file()]
        if not files:
            is_pattern = glob.has_magic(pattern)
            raise DataError(
                f"{option}: no file matches {pattern}" if is_pattern else f"{option}: no such file: {pattern}"
            )
        found.update(dict.fromkeys(files))
    return list(found)


def _read_text(path: Path, options: ReadingOptions) -> Iterator[Document]:
    pieces: Callable[[Path], Iterator[LocatedBytes]] = {
        "line": file_lines,
        "paragraph": _paragraphs,
        "file": _whole_file,
    }[options.document]
    for piece in pieces(path):
        yield decoded(piece, path, options)


def _read_json(path: Path, options: ReadingOptions) -> Iterator[Document]:
    for value, where, replaced in json_entries(path, options):
        yield checked(_text_of(value, where, options), replaced, where, options)


def json_entries(path: Path, options: BytesOptions) -> Iterator[JsonEntry]:
    """The values of a JSON list, or of JSON lines; blank lines are skipped."""
    with open(path, "rb") as file:
        is_list = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    for piece in _whole_file(path) if is_list else file_lines(path):
        content, replaced = decoded(piece, path, options)[:2]
        content = content.removeprefix("\ufeff")
        if not content.strip():
            continue
        try:
            value = json.loads(content)
        except json.JSONDecodeError as error:
            line = piece.line + error.lineno - 1
            raise DataError(f"{path}:{line}: this is not JSON: {error.msg} at column {error.colno}") from error
        for number, entry in enumerate(value) if is_list else ((None, value),):
            where = f"{path}:{piece.line}" if number is None else f"{path}: entry {number}"
            yield JsonEntry(entry, where, replaced)
            replaced = 0


def _read_csv(path: Path, options: ReadingOptions) -> Iterator[Document]:
    for record in _csv_records(path, {options.text_column: "text_column"}, options):
        yield Document(record.values[options.text_column], record.replaced_bytes)


def _read_parquet(path: Path, options: ReadingOptions) -> Iterator[Document]:
    for record in _parquet_records(path, {options.text_column: "text_column"}, options):
        yield checked(_text_of(record.values, record.where, options), 0, record.where, options)


def read_records(paths: Iterable[Path], columns: Mapping[str, str], options: BytesOptions) -> Iterator[Record]:
    """The rows of the files, each read by its ending: .csv, .tsv, .parquet, and JSON or JSON lines otherwise.

    ``columns`` are the columns or keys to read, each with the option that names it. Raises DataError naming file and
    line for what can't be read, or lacks one of them.
    """
    for path in paths:
        read = {".csv": _csv_records, ".tsv": _csv_records, ".parquet": _parquet_records}.get(path.suffix)
        try:
            yield from (read or _json_records)(path, columns, options)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error


def _json_records(path: Path, columns: Mapping[str, str], options: BytesOptions) -> Iterator[Record]:
    for value, where, replaced in json_entries(path, options):
        if not isinstance(value, dict):
            keys = " and ".join(columns)
            raise DataError(f"{where}: expected an object with the keys {keys}, not a {type(value).__name__}")
        for column, option in columns.items():
            if column not in value:
                raise missing_column(where, column, value, option)
        yield Record({column: value[column] for column in columns}, where, replaced)


def _csv_records(path: Path, columns: Mapping[str, str], options: BytesOptions) -> Iterator[Record]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses documents of more than 128 KiB
    replaced = 0

    def lines() -> Iterator[str]:
        nonlocal replaced
        for piece in file_lines(path):
            content, bad = decoded(piece, path, options)[:2]
            replaced += bad
            yield content.removeprefix("\ufeff") + "\n"

    rows = csv.reader(lines(), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    try:
        header = next(rows, [])
        places = {column: _place(header, str(path), column, option) for column, option in columns.items()}
        for row in rows:
            if row and len(row) <= max(places.values()):
                raise DataError(f"{path}:{rows.line_num}: {len(row)} columns, but the first row has {len(header)}")
            if row:
                values = {column: row[place] for column, place in places.items()}
                yield Record(values, f"{path}:{rows.line_num}", replaced)
                replaced = 0
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: this is not CSV: {error}") from error


def _parquet_records(path: Path, columns: Mapping[str, str], options: BytesOptions) -> Iterator[Record]:
    with optional_import(f"{path}: reading Parquet requires pyarrow", "hf"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for column, option in columns.items():
                _place(file.schema_arrow.names, str(path), column, option)
            row, bytes_per_row = 0, path.stat().st_size / max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=1024, columns=list(columns)):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    yield Record(dict(zip(columns, values, strict=True)), f"{path}: row {row}")
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
    r"""Each line without its end; only ``\n`` ends one, so that U+2028 and form feeds stay text."""
    offset = 0
    with open(path, "rb") as file:
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


def _whole_file(path: Path) -> Iterator[LocatedBytes]:
    content = path.read_bytes()
    Read.num_bytes += len(content)
    yield LocatedBytes(content, 1, 0)


def decoded(piece: LocatedBytes, path: Path, options: BytesOptions) -> Document:
    """The piece's text; each byte that is not UTF-8 is an error that names its place, or U+FFFD."""
    try:
        return Document(piece.content.decode("utf-8"))
    except UnicodeDecodeError as error:
        if options.on_invalid_utf8 == "fail":
            line = piece.line + piece.content[: error.start].count(b"\n")
            raise DataError(
                f"{path}:{line}: byte {piece.offset + error.start} (0x{piece.content[error.start]:02X}) is not UTF-8; "
                "convert the file, or set on_invalid_utf8: replace"
            ) from error
    return Document(*_ESCAPED_BYTES.subn(REPLACEMENT, piece.content.decode("utf-8", "surrogateescape")))


def checked(text: str, replaced: int, where: str, options: BytesOptions) -> Document:
    r"""The document, unless it contains half a surrogate pair (``\ud800``), which is not UTF-8 either."""
    text, halves = _SURROGATES.subn(REPLACEMENT, text)
    if halves and options.on_invalid_utf8 == "fail":
        raise DataError(f"{where}: half a surrogate pair is not a character; fix it, or set on_invalid_utf8: replace")
    return Document(text, replaced + halves)


def _text_of(entry: Any, where: str, options: ReadingOptions) -> str:
    """The text of a JSON value or a cell; null is the empty text."""
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
    """The error that lists the columns, with a suggestion."""
    names = [str(name) for name in names]
    close = difflib.get_close_matches(column, names, n=1)
    hint = f"set {option}; did you mean {close[0]!r}?" if close else f"set {option}"
    return DataError(f"{where}: no column {column!r}; the columns are: {', '.join(names) or 'none'} ({hint})")


FORMS = "messages, conversations, prompt and completion, or instruction and output"


class Keys(NamedTuple):
    """How a form calls its list of messages, who speaks and what is said; and the roles by its names of them."""

    messages: str
    role: str
    content: str
    roles: dict[str, str]


ROLES = ("system", "user", "assistant", "tool")
OPENAI = Keys("messages", "role", "content", dict(zip(ROLES, ROLES, strict=True)))
SHAREGPT = Keys("conversations", "from", "value", dict(zip(("system", "human", "gpt", "tool"), ROLES, strict=True)))


def read_chats(path: Path, options: BytesOptions) -> Iterator[Document]:
    """The conversations of a file; the text of each is what its messages say, one after another.

    Raises DataError naming file and line for what isn't a conversation, or has no answer.
    """
    _demand_json(path)
    for row, where, replaced in json_entries(path, options):
        messages = [
            (message["role"], checked(message["content"], 0, where, options)) for message in messages_of(row, where)
        ]
        if not any(role == "assistant" for role, _ in messages):
            raise DataError(f"{where}: no turn of the assistant, so there is no answer to learn; add one")
        replaced += sum(content.replaced_bytes for _, content in messages)
        text = "\n".join(content.text for _, content in messages)
        yield Document(text, replaced, where, tuple({"role": role, "content": said.text} for role, said in messages))


def read_preferences(path: Path, options: BytesOptions) -> Iterator[Document]:
    """The pairs of answers of a file; the text of each is what was asked and both answers, one after another.

    Raises DataError naming file and line for what isn't such a pair.
    """
    _demand_json(path)
    for row, where, replaced in json_entries(path, options):
        asked, *answers = _pair_of(row, where)
        said = []
        for message in (*asked, *answers[0], *answers[1]):
            content = checked(message["content"], 0, where, options)
            replaced += content.replaced_bytes
            said.append({"role": message["role"], "content": content.text})
        first = len(asked)
        question, chosen, rejected = said[:first], said[first:-1], said[-1:]  # each answer is one message
        text = "\n".join(message["content"] for message in said)
        yield Document(text, replaced, where, (*question, *chosen), (*question, *rejected), first)


def _pair_of(row: Any, where: str) -> tuple[list[dict[str, str]], list[dict[str, str]], list[dict[str, str]]]:
    """The messages before the answers, those of the preferred answer, and of the rejected one."""
    if not isinstance(row, dict) or not {"chosen", "rejected"} <= row.keys():
        keys = f"the keys are: {', '.join(row) or 'none'}" if isinstance(row, dict) else f"not a {type(row).__name__}"
        raise DataError(f"{where}: no pair of answers; expected an object with prompt, chosen and rejected; {keys}")

    def messages(name: str, role: str) -> list[dict[str, str]]:
        given = row.get(name) or []
        given = [{"role": role, "content": given}] if isinstance(given, str) else given
        if not isinstance(given, list):
            raise DataError(f"{where}: {name} is {_shorten_value(given)}; expected text, or a list of messages")
        return [_message(message, OPENAI, f"{where}: {name}") for message in given]

    asked, chosen, rejected = messages("prompt", "user"), messages("chosen", ANSWERS), messages("rejected", ANSWERS)
    if not asked:  # both are whole conversations
        same = takewhile(lambda pair: pair[0] == pair[1], zip(chosen[:-1], rejected[:-1], strict=False))
        asked = [one for one, _ in same]
        chosen, rejected = chosen[len(asked) :], rejected[len(asked) :]
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if [message["role"] for message in answer] != [ANSWERS]:
            raise DataError(f"{where}: {name} has to be one answer of the {ANSWERS} to what was asked (prompt)")
    if not asked:
        raise DataError(f"{where}: nothing was asked; give prompt, or conversations that begin with the same messages")
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are the same; leave the pair out")
    return asked, chosen, rejected


ANSWERS = "assistant"


def _demand_json(path: Path) -> None:
    """Raises DataError for a file of another kind, such as Parquet or CSV."""
    with open(path, "rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:16]
    if start and start[:1] not in b"[{":
        raise DataError(
            f"{path}: conversations are read from a JSON list or JSON lines of objects, but this file begins with "
            f"{_shorten_value(start.decode('utf-8', 'replace'))}; convert it"
        )


def messages_of(row: Any, where: str) -> list[dict[str, str]]:
    """The messages of a row, normalised, each ``{"role", "content"}``. Raises DataError where it has none."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with {FORMS}, not a {type(row).__name__}")
    keys = OPENAI
    if "messages" in row:
        messages = row["messages"]
    elif "conversations" in row:
        keys, messages = SHAREGPT, row["conversations"]
    elif "prompt" in row and "completion" in row:
        messages = _question_and_answer(row["prompt"], row["completion"])
    elif "instruction" in row and "output" in row:
        given = row.get("input") or ""
        question = (
            f"{row['instruction']}\n\n{given}" if isinstance(given, str) and given.strip() else row["instruction"]
        )
        messages = _question_and_answer(question, row["output"])
    else:
        raise DataError(f"{where}: no messages; expected {FORMS}; the keys are: {', '.join(row) or 'none'}")
    if not isinstance(messages, list) or not messages:
        expected = f"expected a list of messages with {keys.role} and {keys.content}"
        raise DataError(f"{where}: {keys.messages} is {_shorten_value(messages)}; {expected}")
    return [_message(message, keys, f"{where}: message {number}") for number, message in enumerate(messages, start=1)]


def _question_and_answer(question: Any, answer: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _message(message: Any, keys: Keys, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f"{where} is {_shorten_value(message)}; expected an object with {keys.role} and {keys.content}")
    role, content = message.get(keys.role), message.get(keys.content)
    if not isinstance(role, str) or role not in keys.roles:
        raise DataError(f"{where}: {keys.role} is {_shorten_value(role)}; expected one of {', '.join(keys.roles)}")
    if message.get("tool_calls"):
        raise DataError(f"{where}: tool_calls are not read; write the calls as text into the content, or drop the row")
    if not isinstance(content, str):
        raise DataError(f"{where}: {keys.content} is {_shorten_value(content)}; expected text")
    if not content.strip():
        raise DataError(f"{where}: {keys.content} is empty; give it text, or leave the message out")
    return {"role": keys.roles[role], "content": normalise(content)}


def _shorten_value(value: Any) -> str:
    """A value as JSON, its beginning if it is long."""
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 40 else f"{written[:40]}…"
