"""Conversations of JSON files: a list, or JSON lines, of rows in one of four forms.

    {"messages": [{"role": "system" | "user" | "assistant" | "tool", "content": text}, …]}
    {"conversations": [{"from": "system" | "human" | "gpt" | "tool", "value": text}, …]}      ShareGPT's
    {"prompt": text, "completion": text}
    {"instruction": text, "input": text, "output": text}      Alpaca's; the input may be empty or missing

The last two are a question of the user and the assistant's answer. A ``tool`` says what a function returned. Other
keys are not read, but a message with ``tool_calls`` is refused: an answer without them would be learned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vaak.core.errors import DataError
from vaak.text.corpora.readers import BytesOptions, Document, checked, json_entries
from vaak.text.tokenizers.normalise import normalise

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


def _demand_json(path: Path) -> None:
    """Raises DataError for a file of another kind, such as Parquet or CSV."""
    with open(path, "rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:16]
    if start and start[:1] not in b"[{":
        raise DataError(
            f"{path}: conversations are read from a JSON list or JSON lines of objects, but this file begins with "
            f"{_shown(start.decode('utf-8', 'replace'))}; convert it"
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
        messages = _asked(row["prompt"], row["completion"])
    elif "instruction" in row and "output" in row:
        given = row.get("input") or ""
        question = (
            f"{row['instruction']}\n\n{given}" if isinstance(given, str) and given.strip() else row["instruction"]
        )
        messages = _asked(question, row["output"])
    else:
        raise DataError(f"{where}: no messages; expected {FORMS}; the keys are: {', '.join(row) or 'none'}")
    if not isinstance(messages, list) or not messages:
        expected = f"expected a list of messages with {keys.role} and {keys.content}"
        raise DataError(f"{where}: {keys.messages} is {_shown(messages)}; {expected}")
    return [_message(message, keys, f"{where}: message {number}") for number, message in enumerate(messages, start=1)]


def _asked(question: Any, answer: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _message(message: Any, keys: Keys, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f"{where} is {_shown(message)}; expected an object with {keys.role} and {keys.content}")
    role, content = message.get(keys.role), message.get(keys.content)
    if not isinstance(role, str) or role not in keys.roles:
        raise DataError(f"{where}: {keys.role} is {_shown(role)}; expected one of {', '.join(keys.roles)}")
    if message.get("tool_calls"):
        raise DataError(f"{where}: tool_calls are not read; write the calls as text into the content, or drop the row")
    if not isinstance(content, str):
        raise DataError(f"{where}: {keys.content} is {_shown(content)}; expected text")
    if not content.strip():
        raise DataError(f"{where}: {keys.content} is empty; give it text, or leave the message out")
    return {"role": keys.roles[role], "content": normalise(content)}


def _shown(value: Any) -> str:
    """A value as JSON, its beginning if it is long."""
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 40 else f"{written[:40]}…"
