"""Documents from files of conversations, and of pairs of answers: JSON lists, JSON lines and Parquet.

What a row says, and which of its keys are read, is for ``conversations`` to tell; here rows come from files, and become
documents whose bytes are UTF-8. Keys that aren't read are counted, and named in one line of the log for each file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError, optional_import
from vaak.core.names import list_names
from vaak.core.storage.archives import open_file, read_state
from vaak.text.corpora.conversations import (
    ANSWERS,
    MESSAGE_KEYS,
    ROW_KEYS,
    Message,
    read_conversation,
    read_pair,
    says_something,
    shorten_value,
)
from vaak.text.corpora.readers import BytesOptions, Document, JsonEntry, Read, checked, json_entries
from vaak.text.corpora.tool_calls import read_options, read_tools

log = logging.getLogger("vaak")


def read_chats(path: Path, options: BytesOptions, skip_bad: bool = False) -> Iterator[Document]:
    """Yield the conversations of a file; the text of each is what its messages say, one after another.

    Raises DataError naming file and line for what isn't a conversation, or has no answer to learn; with ``skip_bad``,
    that is a document with a ``problem``.
    """
    yield from _read_rows(path, options, skip_bad, _chat)


def _chat(row: Any, where: str, options: BytesOptions) -> tuple[Document, int]:
    found = read_conversation(row, where)
    messages, unlearned, tools = found[:3]
    answers = {place for place, message in enumerate(messages) if message["role"] == ANSWERS}
    if not answers and not found.asked:
        raise DataError(f"{where}: no turn of the assistant, so no answer to learn; add one")
    # A row without an answer to learn would train nothing, unnoticed.
    if answers <= unlearned and not found.asked:
        raise DataError(f"{where}: each answer has weight 0 (or train: false), so there is none to learn")
    kept, replaced = _check_bytes(messages, where, options)
    document = Document(_join_texts(kept, tools), 0, where, tuple(kept), unlearned=unlearned, tools=tools)
    return document._replace(asked=found.asked, options=found.options), replaced


def _check_bytes(messages: Sequence[Message], where: str, options: BytesOptions) -> tuple[list[Message], int]:
    """Return the messages with bytes that aren't UTF-8 replaced, or refused, and how many were replaced."""
    kept, replaced = [], 0
    for message in messages:
        fixed = dict(message)
        for key in ("content", "reasoning_content"):
            if key in message:
                found = checked(message[key], 0, where, options)
                fixed[key], replaced = found.text, replaced + found.replaced_bytes
        kept.append(fixed)
    return kept, replaced


def _join_texts(messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
    """Return a conversation's texts, one a line, for tokenizers to learn and to find duplicates by."""
    texts = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    for message in messages:
        thoughts, calls = message.get("reasoning_content"), message.get("tool_calls", ())
        texts += [thoughts] if thoughts else []
        texts += [message["content"]] if message["content"] or not calls else []
        texts += [json.dumps(call["function"], ensure_ascii=False) for call in calls]
    return "\n".join(texts)


def read_preferences(path: Path, options: BytesOptions, skip_bad: bool = False) -> Iterator[Document]:
    """Yield the pairs of answers of a file; the text of each is the prompt and both answers, one after another.

    Raises DataError naming file and line for what isn't such a pair; with ``skip_bad``, that has a ``problem``.
    """
    yield from _read_rows(path, options, skip_bad, _preference)


def _preference(row: Any, where: str, options: BytesOptions) -> tuple[Document, int]:
    asked, *answers = read_pair(row, where)
    tools = read_tools(row, where)
    said, replaced = _check_bytes([*asked, *answers[0], *answers[1]], where, options)
    # Both answers are stored after the same question: this is where they begin.
    first = len(asked)
    # Each answer is one message.
    question, chosen, rejected = said[:first], said[first:-1], said[-1:]
    text = _join_texts(said, tools)
    found = Document(text, 0, where, (*question, *chosen), (*question, *rejected), first, tools=tools)
    return found._replace(options=read_options(row, where)), replaced


Make = Callable[[Any, str, BytesOptions], tuple[Document, int]]


def _read_rows(path: Path, options: BytesOptions, skip_bad: bool, make: Make) -> Iterator[Document]:
    """The documents that ``make`` builds from rows, with their replaced bytes; unread keys are logged at the end."""
    unread: dict[str, int] = {}
    problems: list[str] = []
    on_bad = (lambda error: problems.append(str(error))) if skip_bad else None
    for row, where, replaced in _rows(path, options, on_bad):
        # Lines that couldn't be read before this row come first, so that problems keep their order.
        while problems:
            yield Document("", 0, problem=problems.pop(0))
        _count_unread(row, unread)
        try:
            document, more = make(row, where, options)
        except DataError as error:
            if not skip_bad:
                raise DataError(f"{error}; to leave such rows out, set data.on_bad_example: skip") from error
            yield Document("", replaced, where, problem=str(error))
            continue
        yield document._replace(replaced_bytes=replaced + more)
    yield from (Document("", 0, problem=one) for one in problems)
    if unread:
        log.info("%s: keys that aren't read: %s", path, list_names(sorted(unread)))


def _count_unread(row: Any, unread: dict[str, int]) -> None:
    """Count the keys of a row, and of its messages, that aren't read and say something."""
    if not isinstance(row, dict):
        return
    pair = {"chosen", "rejected", "preferred_output", "non_preferred_output"}
    for key, value in row.items():
        rule = ROW_KEYS.get(key)
        if (rule is None or rule.outcome == "not read") and key not in pair and says_something(value):
            unread[key] = unread.get(key, 0) + 1
    for name in ("messages", "conversations", "prompt", "completion"):
        for message in row[name] if isinstance(row.get(name), list) else ():
            for key, value in message.items() if isinstance(message, dict) else ():
                rule = MESSAGE_KEYS.get(key)
                if (rule is None or rule.outcome == "not read") and says_something(value):
                    unread[f"{key} of messages"] = unread.get(f"{key} of messages", 0) + 1


def _rows(path: Path, options: BytesOptions, on_bad: Callable[[DataError], None] | None) -> Iterator[JsonEntry]:
    """Yield the rows of a file; ``on_bad`` is told of lines that can't be read.

    Raises DataError for a file that is neither JSON nor Parquet.
    """
    with open_file(path) as file:
        start = file.read(4096)
    # By content, not by ending, so a renamed file is read, too.
    if start.startswith(b"PAR1"):
        yield from _parquet_rows(path)
        return
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:16]
    if start and start[:1] not in b"[{":
        raise DataError(
            f"{path}: conversations are read from a JSON list or JSON lines of objects, or Parquet, but this file "
            f"begins with {shorten_value(start.decode('utf-8', 'replace'))}; convert it"
        )
    yield from json_entries(path, options, on_bad)


def _parquet_rows(path: Path) -> Iterator[JsonEntry]:
    """Yield the rows of a Parquet file as JSON would have them: keys that another row has are null."""
    with optional_import(f"{path}: reading Parquet requires pyarrow", "hf"):
        import pyarrow
        import pyarrow.parquet
    try:
        with open_file(path) as content, pyarrow.parquet.ParquetFile(content) as file:
            number, bytes_per_row = 0, read_state(path)[0] / max(file.metadata.num_rows, 1)
            # In small batches: rows with whole conversations can be large.
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    yield JsonEntry(_without_nulls(row), f"{path}: row {number}", 0)
                    number += 1
                    Read.num_bytes += bytes_per_row
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: this is not a readable Parquet file: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Return a value without keys that only other rows have, since a tool's null parameters would be written."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
