"""Conversations of JSON files: a list, or JSON lines, of rows in one of three forms.

    {"messages": [{"role": "system" | "user" | "assistant", "content": text}, …]}
    {"prompt": text, "completion": text}
    {"instruction": text, "input": text, "output": text}      Alpaca's; the input may be empty or missing

The last two are a question of the user and the assistant's answer. Other keys are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError
from vaak.text.corpora.readers import BytesOptions, Document, checked, json_entries
from vaak.text.tokenizers.normalise import normalise

ROLES = ("system", "user", "assistant")
FORMS = "messages, prompt and completion, or instruction and output"


def read_chats(path: Path, options: BytesOptions) -> Iterator[Document]:
    """The conversations of a file; the text of each is what its messages say, one after another.

    Raises DataError naming file and line for what isn't a conversation, or has no answer.
    """
    for row, where, replaced in json_entries(path, options):
        messages = [
            (message["role"], checked(message["content"], 0, where, options)) for message in messages_of(row, where)
        ]
        if not any(role == "assistant" for role, _ in messages):
            raise DataError(f"{where}: no turn of the assistant, so there is no answer to learn; add one")
        replaced += sum(content.replaced_bytes for _, content in messages)
        text = "\n".join(content.text for _, content in messages)
        yield Document(text, replaced, where, tuple({"role": role, "content": said.text} for role, said in messages))


def messages_of(row: Any, where: str) -> list[dict[str, str]]:
    """The messages of a row, normalised, each ``{"role", "content"}``. Raises DataError where it has none."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with {FORMS}, not a {type(row).__name__}")
    if "messages" in row:
        messages = row["messages"]
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
        raise DataError(f"{where}: messages is {_shown(messages)}; expected a list of messages with role and content")
    return [_message(message, f"{where}: message {number}") for number, message in enumerate(messages, start=1)]


def _asked(question: Any, answer: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f"{where} is {_shown(message)}; expected an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise DataError(f"{where}: the role is {_shown(role)}; expected one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise DataError(f"{where}: the content is {_shown(content)}; expected text")
    if not content.strip():
        raise DataError(f"{where}: the content is empty; give it text, or leave the message out")
    return {"role": role, "content": normalise(content)}


def _shown(value: Any) -> str:
    """A value as JSON, its beginning if it is long."""
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 40 else f"{written[:40]}…"
