"""Conversations are read in four forms, and what isn't one is an error that names file and line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vaak.core.errors import DataError
from vaak.text.corpora.readers import read_chats

STRICT = SimpleNamespace(on_invalid_utf8="fail")
ASKED, ANSWERED = {"role": "user", "content": "कौन?"}, {"role": "assistant", "content": "राम।"}


def chats(path: Path, *rows: Any) -> list[tuple[dict[str, str], ...]]:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return [document.messages for document in read_chats(path, STRICT)]


def test_four_forms_are_conversations(tmp_path: Path):
    rows = [
        {"messages": [ASKED, ANSWERED], "id": 7},
        {"conversations": [{"from": "human", "value": "कौन?"}, {"from": "gpt", "value": "राम।", "weight": 1}]},
        {"prompt": "कौन?", "completion": "राम।"},
        {"instruction": "कौन?", "input": " ", "output": "राम।"},
        {"instruction": "कौन?", "output": "राम।"},
    ]
    assert chats(tmp_path / "chats.jsonl", *rows) == [(ASKED, ANSWERED)] * 5
    with_input = {"instruction": "Count.\r\n", "input": "a b", "output": "2"}
    assert chats(tmp_path / "chats.jsonl", with_input)[0][0]["content"] == "Count.\n\n\na b"
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (first, *_) = read_chats(tmp_path / "list.json", STRICT)
    assert (first.text, first.where) == ("कौन?\nराम।", f"{tmp_path / 'list.json'}: entry 0")


def test_roles_of_sharegpt_are_those_of_messages(tmp_path: Path):
    ours, theirs = ("system", "user", "assistant", "tool", "assistant"), ("system", "human", "gpt", "tool", "gpt")
    talk = [{"role": role, "content": f"{number}।"} for number, role in enumerate(ours)]
    shared = [{"from": role, "value": f"{number}।"} for number, role in enumerate(theirs)]
    read = chats(tmp_path / "chats.jsonl", {"messages": talk}, {"conversations": shared})
    assert read == [tuple(talk), tuple(talk)]


def test_a_message_that_calls_no_tool_may_say_so(tmp_path: Path):
    row = {"messages": [ASKED, {**ANSWERED, "tool_calls": []}, {**ASKED, "tool_calls": None}]}
    assert chats(tmp_path / "chats.jsonl", row) == [(ASKED, ANSWERED, ASKED)]


@pytest.mark.parametrize("content", [b"PAR1\x15\x04\xff", b"prompt,completion\na,b\n", b"\x1f\x8b\x08", b"\xff\xfe[\0"])
def test_a_file_of_another_kind_is_an_error_in_a_line(tmp_path: Path, content: bytes):
    (tmp_path / "chats").write_bytes(content)
    with pytest.raises(
        DataError, match=r"chats: conversations are read from a JSON list or JSON lines of.*convert it$"
    ):
        list(read_chats(tmp_path / "chats", STRICT))


def test_a_byte_order_mark_and_blank_lines_may_come_first(tmp_path: Path):
    (tmp_path / "chats.json").write_text("\ufeff\n " + json.dumps([{"messages": [ASKED, ANSWERED]}]), encoding="utf-8")
    assert len(list(read_chats(tmp_path / "chats.json", STRICT))) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"text": "राम"},
            "no messages; expected messages, conversations, prompt and completion, or instruction and output; the keys",
        ),
        (["राम"], "expected an object with messages"),
        ({"messages": []}, "messages is []; expected a list"),
        ({"messages": ["राम"]}, 'message 1 is "राम"; expected an object'),
        (
            {"messages": [ASKED, {**ANSWERED, "role": "gpt"}]},
            'message 2: role is "gpt"; expected one of system, user, assistant, tool',
        ),
        ({"messages": [ASKED]}, "no turn of the assistant"),
        ({"messages": [ASKED, {**ANSWERED, "content": " \n"}]}, "message 2: content is empty"),
        ({"messages": [{**ASKED, "content": None}, ANSWERED]}, "message 1: content is null; expected text"),
        ({"prompt": ["कौन?"], "completion": "राम।"}, 'message 1: content is ["कौन?"]; expected text'),
        ({"messages": [ASKED, {**ANSWERED, "role": ["gpt"]}]}, 'message 2: role is ["gpt"]; expected one of'),
        (
            {"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}]},
            "message 2: tool_calls are not read; write the calls as text",
        ),
        ({"conversations": {}}, "conversations is {}; expected a list of messages with from and value"),
        ({"conversations": ["राम"]}, 'message 1 is "राम"; expected an object with from and value'),
        (
            {"conversations": [{"from": "user", "value": "कौन?"}]},
            'message 1: from is "user"; expected one of system, human, gpt, tool',
        ),
        ({"conversations": [{"from": "human", "content": "कौन?"}]}, "message 1: value is null; expected text"),
        ({"prompt": "\ud800", "completion": "राम।"}, "half a surrogate pair"),
    ],
)
def test_what_is_no_conversation_is_an_error_in_a_line(tmp_path: Path, row: Any, said: str):
    with pytest.raises(DataError) as error:
        chats(tmp_path / "chats.jsonl", {"prompt": "कौन?", "completion": "राम।"}, row)
    assert str(error.value).startswith(f"{tmp_path / 'chats.jsonl'}:2: {said}")
    assert "\n" not in str(error.value)
