"""Conversations are read in four forms, and what isn't one is an error that names file and line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vaak.core.errors import DataError
from vaak.text.corpora.conversation_files import read_chats, read_preferences
from vaak.text.corpora.conversations import MESSAGE_KEYS, ROW_KEYS, key_table

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


@pytest.mark.parametrize("content", [b"prompt,completion\na,b\n", b"\x1f\x8b\x08", b"\xff\xfe[\0"])
def test_a_file_of_another_kind_is_an_error_in_a_line(tmp_path: Path, content: bytes):
    (tmp_path / "chats").write_bytes(content)
    with pytest.raises(
        DataError, match=r"chats: conversations are read from a JSON list or JSON lines of.*convert it$"
    ):
        list(read_chats(tmp_path / "chats", STRICT))


def test_parquet_has_the_rows_of_json(tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [
        {"messages": [ASKED, {**ANSWERED, "weight": 0}, ASKED, {**ANSWERED, "weight": 1}], "id": 1},
        {"messages": [ASKED, ANSWERED], "id": 2},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "chats.parquet")
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    theirs, ours = (list(read_chats(tmp_path / f"chats.{ending}", STRICT)) for ending in ("parquet", "jsonl"))
    assert [(one.messages, one.unlearned) for one in theirs] == [(one.messages, one.unlearned) for one in ours]
    assert [one.unlearned for one in theirs] == [{1}, set()]
    assert theirs[1].where == f"{tmp_path / 'chats.parquet'}: row 1"
    (tmp_path / "chats.parquet").write_bytes(b"PAR1\x15\x04\xff")
    with pytest.raises(DataError, match=r"chats.parquet: this is not a readable Parquet file"):
        list(read_chats(tmp_path / "chats.parquet", STRICT))


SAID = {"a": 1}
OF_ROW: dict[str, tuple[Any, str | None]] = {
    "messages": ([ASKED, ANSWERED], None),
    "conversations": ([{"from": "human", "value": "कौन?"}, {"from": "gpt", "value": "राम।"}], None),
    "prompt": ("कौन?", None),
    "completion": ("राम।", None),
    "instruction": ("कौन?", None),
    "input": ("", None),
    "output": ("राम।", None),
    "query": ("कौन?", None),
    "answers": ("[]", None),
    "system": ("", None),
    "history": ([], None),
    "label": (False, "label is false, so the completion isn't to be learned"),
    "weight": (0.5, "weight is 0.5; all conversations count alike"),
    "tools": (SAID, 'tools is {"a": 1}; expected a list of objects'),
    "functions": ("{", 'functions is "{", which is not JSON'),
    "chat_template_kwargs": ({"eos_token": "!"}, "chat_template_kwargs: eos_token is the tokenizer's"),
}
"""A value of each key that is read, with its message; any other key gives a message that it isn't read."""
WITH = {"completion": {"prompt": "कौन?"}, "output": {"instruction": "कौन?"}}
WITH |= {
    "prompt": {"completion": "राम।"},
    "instruction": {"output": "राम।"},
    "label": {"prompt": "कौन?", "completion": "राम।"},
}
TEXTS_OF_MESSAGES = ("reasoning_content", "reasoning", "thinking", "name", "tool_call_id")
OF_MESSAGE: dict[str, tuple[Any, str | None]] = {
    "role": ("assistant", None),
    "content": ([{"type": "text", "text": "राम"}, {"type": "text", "text": "।"}], None),
    "weight": (2, "weight is 2; expected 0"),
    "train": ("no", 'train is "no"; expected true or false'),
    "training": ("no", 'training is "no"; expected'),
    "loss": ("no", 'loss is "no"; expected'),
    "tool_calls": ([SAID], 'message 2: tool_calls, 1 is {"a": 1}; expected an object with the name of a function'),
    "function_call": (
        {"name": "so", "arguments": "[]"},
        "message 2: function_call: arguments is []; expected an object",
    ),
    **{key: (SAID, f'message 2: {key} is {{"a": 1}}; expected text') for key in TEXTS_OF_MESSAGES},
}


def tried(path: Path, row: Any) -> str | None:
    """The message of the error that a row is; None where it is one question and its answer."""
    try:
        path.write_text(json.dumps(row))
        [document] = read_chats(path, STRICT)
    except DataError as error:
        return str(error)
    assert document.messages == (ASKED, ANSWERED)
    return None


@pytest.mark.parametrize("key", ROW_KEYS)
def test_each_key_of_a_row_is_obeyed_or_refused_by_name(tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    value, said = OF_ROW.get(key, (SAID, f"{key} "))
    outcome = ROW_KEYS[key].outcome
    assert (outcome == "read") == (key in OF_ROW)
    rest = WITH.get(key, {} if key in ("messages", "conversations") else {"messages": [ASKED, ANSWERED]})
    found = tried(tmp_path / "chats.jsonl", {**rest, key: value})
    if outcome == "not read":
        assert (found, f"keys that aren't read: {key}" in caplog.text) == (None, True)
    else:
        assert (found or "").startswith(f"{tmp_path / 'chats.jsonl'}:1: {said}") if said else found is None, found
    empties: tuple[Any, ...] = (None, False, "", []) if outcome == "refused" else ()
    for empty in empties:
        assert tried(tmp_path / "chats.jsonl", {**rest, key: empty}) is None


@pytest.mark.parametrize("key", MESSAGE_KEYS)
def test_each_key_of_a_message_is_obeyed_or_refused_by_name(tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    if key in ("from", "value"):
        return  # of the other form, above
    value, said = OF_MESSAGE.get(key, (SAID, f"message 2: {key} "))
    outcome = MESSAGE_KEYS[key].outcome
    assert (outcome == "read") == (key in OF_MESSAGE)
    found = tried(tmp_path / "chats.jsonl", {"messages": [ASKED, {**ANSWERED, key: value}]})
    if outcome == "not read":
        assert (found, f"keys that aren't read: {key} of messages" in caplog.text) == (None, True)
    elif said is None:
        assert found is None
    else:
        assert said in str(found)


def test_the_table_of_keys_is_that_of_the_code():
    text = (Path(__file__).parents[4] / "docs" / "chat.md").read_text(encoding="utf-8")
    assert "\n".join(key_table()) in text, (
        "python -c 'from vaak.text.corpora import conversations as c; print(*c.key_table(), sep=chr(10))'"
    )


def test_what_isnt_to_be_learned_isnt(tmp_path: Path):
    talk = [
        ASKED,
        {**ANSWERED, "weight": 0},
        {**ASKED, "weight": 0},
        {**ANSWERED, "train": True},
        {**ANSWERED, "loss": False},
    ]
    rows = [
        {"messages": talk},
        {"system": "सुनो", "messages": talk},
        {"prompt": [ASKED, ANSWERED, ASKED], "completion": [ANSWERED]},
        {"prompt": "कौन?", "completion": "राम।", "label": True, "weight": 1},
        {"instruction": "कौन?", "output": "राम।", "history": [["क्या?", "हाँ।"]]},
    ]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = list(read_chats(tmp_path / "chats.jsonl", STRICT))
    assert [one.unlearned for one in found] == [{1, 2, 4}, {2, 3, 5}, {0, 1, 2}, set(), set()]
    assert found[1].messages[0] == {"role": "system", "content": "सुनो"}
    assert [one["content"] for one in found[4].messages] == ["क्या?", "हाँ।", "कौन?", "राम।"]


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "arguments": {"place": "दिल्ली"}}}
RETURNED = {"role": "tool", "content": "{}", "tool_call_id": "a1", "name": "weather"}


def test_tools_and_their_calls_are_those_of_openai_in_every_form(tmp_path: Path):
    """All of these were refused by name."""
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "a1", **CALL}]}
    as_openai = {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"], ensure_ascii=False)}
    given = [
        {**called, "content": None},
        {**called, "tool_calls": [{"id": "a1", "type": "function", "function": as_openai}]},
        {**called, "tool_calls": json.dumps(called["tool_calls"])},
    ]
    rows: list[dict[str, Any]] = [{"messages": [ASKED, one, RETURNED, ANSWERED], "tools": [TOOL]} for one in given]
    rows.append({**rows[0], "tools": json.dumps([TOOL])})
    rows.append({"messages": rows[0]["messages"], "functions": [TOOL["function"]]})
    assert chats(tmp_path / "chats.jsonl", *rows) == [(ASKED, called, RETURNED, ANSWERED)] * 5
    assert {repr(one.tools) for one in read_chats(tmp_path / "chats.jsonl", STRICT)} == {repr((TOOL,))}
    nameless = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    shared = {"from": "function_call", "value": json.dumps(CALL["function"])}
    rows = [
        {"messages": [ASKED, {"role": "assistant", "content": "", "function_call": as_openai}]},
        {"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL["function"]]}]},
        {"conversations": [{"from": "human", "value": ASKED["content"]}, shared]},
    ]
    assert chats(tmp_path / "chats.jsonl", *rows) == [(ASKED, nameless)] * 3
    texts = [one.text for one in read_chats(tmp_path / "chats.jsonl", STRICT)]
    assert texts == [f"{ASKED['content']}\n{json.dumps(CALL['function'], ensure_ascii=False)}"] * 3


def test_thoughts_developers_parts_and_an_empty_system_are_read(tmp_path: Path):
    thinking = {**ANSWERED, "reasoning_content": "सोच"}
    parts = [{"type": "thinking", "thinking": "सोच"}, {"type": "text", "text": ANSWERED["content"]}]
    answers = [*({**ANSWERED, key: "सोच"} for key in ("reasoning_content", "reasoning", "thinking"))]
    rows = [{"messages": [ASKED, one]} for one in (*answers, {**ANSWERED, "content": parts})]
    assert chats(tmp_path / "chats.jsonl", *rows) == [(ASKED, thinking)] * 4
    told = [{"role": role, "content": content} for role, content in (("developer", "सुनो"), ("system", ""))]
    rows = [{"messages": [one, ASKED, ANSWERED]} for one in told]
    assert chats(tmp_path / "chats.jsonl", *rows) == [(one, ASKED, ANSWERED) for one in told]


def test_a_parquet_file_has_no_keys_of_other_rows_in_its_tools(tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    calls = [{"function": {"name": "so", "arguments": {name: 1}}} for name in ("a", "b")]
    rows = [{"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [one]}]} for one in calls]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "chats.parquet")
    found = [one.messages[1]["tool_calls"][0]["function"] for one in read_chats(tmp_path / "chats.parquet", STRICT)]
    assert found == [one["function"] for one in calls]


def test_one_bad_row_among_many_is_left_out_where_that_is_asked_for(tmp_path: Path):
    good = json.dumps({"messages": [ASKED, ANSWERED]}).encode()
    bad = [b'{"messages": [', json.dumps({"messages": [ASKED]}).encode(), b'{"prompt": "\xff", "completion": "a"}']
    (tmp_path / "chats.jsonl").write_bytes(b"\n".join([good, bad[0], good, *bad[1:], good, bad[0], b""]))
    found = list(read_chats(tmp_path / "chats.jsonl", STRICT, skip_bad=True))
    assert [len(one.messages) for one in found if not one.problem] == [2, 2, 2]
    problems = [one.problem.removeprefix(f"{tmp_path / 'chats.jsonl'}:") for one in found if one.problem]
    assert [one.split(":")[0] for one in problems] == ["2", "4", "5", "7"]
    with pytest.raises(DataError, match=r"chats.jsonl:2: this is not JSON"):
        list(read_chats(tmp_path / "chats.jsonl", STRICT))


def test_a_byte_order_mark_and_blank_lines_may_come_first(tmp_path: Path):
    (tmp_path / "chats.json").write_text("\ufeff\n " + json.dumps([{"messages": [ASKED, ANSWERED]}]), encoding="utf-8")
    assert len(list(read_chats(tmp_path / "chats.json", STRICT))) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"text": "राम"},
            "no messages; expected messages, conversations, prompt and completion, instruction and output, or query",
        ),
        (["राम"], "expected an object with messages"),
        ({"messages": []}, "messages is []; expected a list"),
        ({"messages": ["राम"]}, 'message 1 is "राम"; expected an object'),
        (
            {"messages": [ASKED, {**ANSWERED, "role": "Gpt"}]},
            'message 2: role is "Gpt"; expected one of system, user, assistant, tool',
        ),
        ({"messages": [ASKED]}, "no turn of the assistant"),
        ({"messages": [ASKED, {**ANSWERED, "content": " \n"}]}, "message 2: content is empty"),
        ({"messages": [{**ASKED, "content": None}, ANSWERED]}, "message 1: content is null; expected text"),
        ({"prompt": ["कौन?"], "completion": "राम।"}, 'message 1: content is ["कौन?"]; expected text'),
        ({"messages": [ASKED, {**ANSWERED, "role": ["gpt"]}]}, 'message 2: role is ["gpt"]; expected one of'),
        (
            {"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}]},
            "message 2: tool_calls, 1 is {",
        ),
        ({"conversations": {}}, "conversations is {}; expected a list of messages with from and value"),
        ({"conversations": ["राम"]}, 'message 1 is "राम"; expected an object with from and value'),
        (
            {"messages": [ASKED, {**ANSWERED, "weight": 0}]},
            "each answer has weight 0 (or train: false), so there is none to learn",
        ),
        (
            {"messages": [ASKED, {**ANSWERED, "weight": 1, "train": False}]},
            "message 2: weight and train say different things",
        ),
        (
            {"messages": [{**ASKED, "content": [{"type": "image_url"}]}, ANSWERED]},
            'message 1: content has a part of type "image_url"; a language model reads text only',
        ),
        (
            {"conversations": [{"from": "User", "value": "कौन?"}]},
            'message 1: from is "User"; expected one of system, human, gpt, tool, observation, function_call',
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


def test_options_of_the_template_and_turns_that_ask_to_be_learned_are_read(tmp_path: Path):
    rows = [
        {"messages": [ASKED, ANSWERED], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [ASKED, ANSWERED], "chat_template_kwargs": '{"enable_thinking": false}'},
        {"system": "s", "messages": [{**ASKED, "weight": 1}, {**ANSWERED, "weight": 0}]},
        {"messages": [{**ASKED, "train": True}]},
    ]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = list(read_chats(tmp_path / "chats.jsonl", STRICT))
    assert [one.options for one in found] == [{"enable_thinking": False}] * 2 + [{}] * 2
    assert [(set(one.asked), set(one.unlearned)) for one in found[2:]] == [({1}, {2}), ({0}, set())]


FLAT_CALL = {"name": "f", "arguments": {"x": 1}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": FLAT_CALL}]}
BOTH = (ASKED, ANSWERED)
FLAT_TOOL = {"name": "f", "description": "d", "parameters": {}}
OUTER_TOOL = {"type": "function", "function": FLAT_TOOL}


@pytest.mark.parametrize(
    ("row", "messages", "tools"),
    [
        # ToolACE, OpenThoughts: ShareGPT's keys with OpenAI's roles
        ({"conversations": [{"from": "user", "value": "कौन?"}, {"from": "assistant", "value": "राम।"}]},
         (ASKED, ANSWERED), ()),
        # Gemma's and Llama's own names
        ({"messages": [ASKED, {"role": "ipython", "content": "7"}, {"role": "model", "content": "राम।"}]},
         (ASKED, {"role": "tool", "content": "7"}, ANSWERED), ()),
        # Parquet of rows that differ
        ({"messages": json.dumps([ASKED, ANSWERED]), "tools": json.dumps([FLAT_TOOL])}, BOTH, (OUTER_TOOL,)),
        # xLAM
        ({"query": "कौन?", "answers": json.dumps([FLAT_CALL]), "tools": json.dumps([FLAT_TOOL])},
         (ASKED, CALLING), (OUTER_TOOL,)),
        # OpenAI's responses
        ({"messages": [ASKED, ANSWERED], "tools": [{"type": "function", **FLAT_TOOL}]}, BOTH, (OUTER_TOOL,)),
    ],
)  # fmt: skip
def test_rows_of_published_data_are_read(tmp_path: Path, row: Any, messages: tuple[Any, ...], tools: tuple[Any, ...]):
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(row)}\n")
    [found] = read_chats(tmp_path / "chats.jsonl", STRICT)
    assert (found.messages, found.tools) == (messages, tools)


@pytest.mark.parametrize(
    "row",
    [
        # UltraFeedback: the prompt, and whole conversations
        {"prompt": "कौन?", "chosen": [ASKED, ANSWERED], "rejected": [ASKED, {**ANSWERED, "content": "घर।"}]},
        {"question": "कौन?", "chosen": "राम।", "rejected": "घर।"},  # Orca's pairs
        {"instruction": "कौन?", "input": "", "chosen": "राम।", "rejected": "घर।"},  # LLaMA-Factory
        {
            "conversations": [{"from": "human", "value": "कौन?"}],
            "chosen": {"from": "gpt", "value": "राम।"},
            "rejected": {"from": "gpt", "value": "घर।"},
        },
    ],
)
def test_pairs_of_published_data_are_read(tmp_path: Path, row: Any):
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(row)}\n")
    [found] = read_preferences(tmp_path / "pairs.jsonl", STRICT)
    assert found.messages == (ASKED, ANSWERED)
    assert found.rejected == (ASKED, {**ANSWERED, "content": "घर।"})
    assert found.num_asked == 1
