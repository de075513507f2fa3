"""Conversations are read in three forms, and what isn't one is an error that names file and line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vaak.core.errors import DataError
from vaak.text.corpora.chats import read_chats

STRICT = SimpleNamespace(on_invalid_utf8="fail")
ASKED, ANSWERED = {"role": "user", "content": "कौन?"}, {"role": "assistant", "content": "राम।"}


def chats(path: Path, *rows: Any) -> list[tuple[dict[str, str], ...]]:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return [document.messages for document in read_chats(path, STRICT)]


def test_three_forms_are_conversations(tmp_path: Path):
    rows = [
        {"messages": [ASKED, ANSWERED], "id": 7},
        {"prompt": "कौन?", "completion": "राम।"},
        {"instruction": "कौन?", "input": " ", "output": "राम।"},
        {"instruction": "कौन?", "output": "राम।"},
    ]
    assert chats(tmp_path / "chats.jsonl", *rows) == [(ASKED, ANSWERED)] * 4
    with_input = {"instruction": "Count.\r\n", "input": "a b", "output": "2"}
    assert chats(tmp_path / "chats.jsonl", with_input)[0][0]["content"] == "Count.\n\n\na b"
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (first, *_) = read_chats(tmp_path / "list.json", STRICT)
    assert (first.text, first.where) == ("कौन?\nराम।", f"{tmp_path / 'list.json'}: entry 0")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"text": "राम"},
            "no messages; expected messages, prompt and completion, or instruction and output; the keys are",
        ),
        (["राम"], "expected an object with messages"),
        ({"messages": []}, "messages is []; expected a list"),
        ({"messages": ["राम"]}, 'message 1 is "राम"; expected an object'),
        (
            {"messages": [ASKED, {**ANSWERED, "role": "gpt"}]},
            'message 2: the role is "gpt"; expected one of system, user',
        ),
        ({"messages": [ASKED]}, "no turn of the assistant"),
        ({"messages": [ASKED, {**ANSWERED, "content": " \n"}]}, "message 2: the content is empty"),
        ({"messages": [{**ASKED, "content": None}, ANSWERED]}, "message 1: the content is null; expected text"),
        ({"prompt": ["कौन?"], "completion": "राम।"}, 'message 1: the content is ["कौन?"]; expected text'),
        ({"prompt": "\ud800", "completion": "राम।"}, "half a surrogate pair"),
    ],
)
def test_what_is_no_conversation_is_an_error_in_a_line(tmp_path: Path, row: Any, said: str):
    with pytest.raises(DataError) as error:
        chats(tmp_path / "chats.jsonl", {"prompt": "कौन?", "completion": "राम।"}, row)
    assert str(error.value).startswith(f"{tmp_path / 'chats.jsonl'}:2: {said}")
    assert "\n" not in str(error.value)
