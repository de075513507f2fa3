"""Templates that are shipped write what the published ones write, of which hashes are kept, not the texts.

``chat_originals.json`` says where each original is from. ``VAAK_CHAT_TEMPLATES=FOLDER`` (files NAME.jinja, by the names
there) computes the hashes again, and compares them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from vaak.core.errors import DataError, UserError
from vaak.text.chat_template import ChatTemplate
from vaak.text.shipped_templates import SHIPPED, template_for
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

RECORDED = Path(__file__).with_name("chat_originals.json")
OURS = {
    "llama3": "llama3", "llama3_1": "llama3_1", "llama3_3": "llama3_1", "gemma2": "gemma", "gemma3": "gemma",
    "mistral": "mistral", "nemo": "mistral_nemo", "qwen3": "qwen3", "glm4": "glm4",
}  # fmt: skip
"""Of each original, the name of ours."""
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, *called: str, **more: Any) -> Message:
    calls = [
        {"id": f"abcdefgh{place}", "type": "function", "function": {"name": name, "arguments": {"x": 'é"y', "z": 1}}}
        for place, name in enumerate(called)
    ]
    return {"role": "assistant", "content": text, **more, **({"tool_calls": calls} if calls else {})}


def result(text: str, place: int = 0) -> Message:
    return {"role": "tool", "content": text, "name": "f", "tool_call_id": f"abcdefgh{place}"}


SYSTEMS: list[list[Message]] = [
    [],
    [{"role": "system", "content": " be brief \n"}],
    [{"role": "system", "content": ""}],
    [{"role": "developer", "content": "do"}],
]
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d é",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
OTHER_TOOL = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}
TOOLS: list[tuple[dict[str, Any], ...]] = [(), (TOOL,), (TOOL, OTHER_TOOL)]
THOUGHT = "<think>\nt\n</think>\n\n"
CONVERSATIONS: dict[str, list[Message]] = {
    "question": [user(" a? ")],
    "answer": [user("a"), answer("b")],
    "white space": [user(" a? \n\nb"), answer("\n\n b \n\nc\n")],
    "two questions": [user("a"), answer("b"), user("c")],
    "the same question twice": [user("a"), answer("b\n"), user("a"), answer("d")],
    "empty answer": [user("a"), answer(""), user("c"), answer("d")],
    "call": [user("a"), answer("", "f")],
    "call and text": [user("a"), answer("let me", "f")],
    "result": [user("a"), answer("", "f"), result("7")],
    "result and answer": [user("a"), answer("", "f"), result('{"t": 7}'), answer("it is 7")],
    "two calls": [user("a"), answer("", "f", "g"), result("7"), result("8", 1), answer("d")],
    "calls for two questions": [
        *(user("a"), answer("", "f"), result("7"), answer("d")),
        *(user("e"), answer("", "g"), result("8"), answer("i")),
    ],
    "thought": [user("a"), answer("b", reasoning_content="t\n")],
    "two thoughts": [user("a"), answer("b", reasoning_content="t"), user("c"), answer("d", reasoning_content=" v ")],
    "thought and call": [
        *(user("a"), answer("", "f", reasoning_content="t"), result("7"), answer("d", reasoning_content="u"))
    ],
    "thought inside": [user("a"), answer(f"{THOUGHT}b"), user("c"), answer(f"{THOUGHT}d")],
    "two answers": [user("a"), answer("b"), answer("c")],
    "two turns of the user": [user("a"), user("b"), answer("c")],
    "answer first": [answer("hi"), user("a"), answer("b")],
    "system later": [user("a"), answer("b"), {"role": "system", "content": "now"}, user("c"), answer("d")],
    "result as a question": [user("<tool_response>\n7\n</tool_response>"), answer("d")],
}


def iterate_asked(name: str, conversation: list[Message]) -> Iterator[tuple[list[Message], tuple[Any, ...], bool]]:
    """Messages, tools, and whether a prompt is asked for, but for what ours write otherwise (docs/chat.md)."""
    for system, tools, prompt in product(SYSTEMS, TOOLS, (False, True)):
        if name in ("mistral", "nemo"):
            # Mistral's lose what the system says unless a question is last.
            loses_system = bool(system) and conversation[-1]["role"] != "user"
            # They write tools before each question that is the last one's equal.
            repeats_tools = bool(tools) and conversation == CONVERSATIONS["the same question twice"]
            if loses_system or repeats_tools:
                continue
        yield [*system, *conversation], tools, prompt


def hash_renderings(template: ChatTemplate, name: str, conversation: list[Message], accepted: int | None) -> list[int]:
    """``[accepted, hash]``: a bit for each request that is written, and the hash of those texts.

    With ``accepted``, these alone are written.
    """
    texts, bits = [], 0
    for place, (messages, tools, prompt) in enumerate(iterate_asked(name, conversation)):
        if accepted is not None and not accepted >> place & 1:
            continue
        try:
            text = template.render(messages, tools, prompt=prompt)
        except DataError:
            if accepted is not None:
                raise
            continue
        bits |= 1 << place
        ends = messages[-1]["role"] == "assistant" and not prompt
        texts.append(text.removesuffix("<|user|>") if name == "glm4" and ends else text)
    return [bits, int(hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12], 16)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer with the tokens of all templates."""
    options = SimpleNamespace(type="byte_level", vocab_size=261, min_frequency=1, training_characters=None, path=None)
    found = TokenizerFactory(options).create_tokenizer(["a b c"] * 3)
    names = dict.fromkeys(token for tokens in SHIPPED.values() for token in tokens)
    found.backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    return Tokenizer.from_json(found.to_json())


@pytest.mark.parametrize("name", OURS)
def test_ours_write_what_the_published_ones_do_wherever_those_accept(tokenizer: Tokenizer, name: str):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[name]["hashes"]
    ours = ChatTemplate(template_for(tokenizer, OURS[name], None), tokenizer)
    assert recorded.keys() == CONVERSATIONS.keys()
    found = {
        case: hash_renderings(ours, name, conversation, recorded[case][0])
        for case, conversation in CONVERSATIONS.items()
    }
    assert {case: found[case] for case in found if found[case] != recorded[case]} == {}


@pytest.mark.skipif("VAAK_CHAT_TEMPLATES" not in os.environ, reason="VAAK_CHAT_TEMPLATES names no folder of originals")
@pytest.mark.parametrize("name", OURS)
def test_recorded_hashes_are_those_of_the_originals(tokenizer: Tokenizer, name: str):
    content = (Path(os.environ["VAAK_CHAT_TEMPLATES"]) / f"{name}.jinja").read_text(encoding="utf-8")
    original = ChatTemplate(content, tokenizer)
    found = {case: hash_renderings(original, name, one, None) for case, one in CONVERSATIONS.items()}
    assert found == json.loads(RECORDED.read_text(encoding="utf-8"))[name]["hashes"], json.dumps(found)


CALLED = '[{"name": "f", "arguments": {"x": "é\\"y", "z": 1}, "id": "abcdefgh0"}]</s>'
RESULT = '{"content": {"t": 7}, "call_id": "abcdefgh0"}[/TOOL_RESULTS]'


@pytest.mark.parametrize(("name", "space"), [("mistral", " "), ("mistral_nemo", "")])
def test_mistrals_system_is_where_mistral_common_writes_it(tokenizer: Tokenizer, name: str, space: str):
    """The texts are those of mistral-common 1.13.1, ``MistralTokenizer.v3``, in its mode for training."""
    template = ChatTemplate(template_for(tokenizer, name, None), tokenizer)
    says = {"role": "system", "content": "s"}
    asked = [user("a"), answer("b"), user("a"), answer("d")]
    written = f"<s>[INST]{space}a[/INST]{space}b</s>[INST]{space}s\n\na[/INST]{space}d</s>"
    assert template.render([says, *asked]) == written
    written = f"<s>[INST]{space}s\n\na[/INST][TOOL_CALLS]{space}{CALLED}[TOOL_RESULTS]{space}{RESULT}{space}it is 7</s>"
    assert template.render([says, *CONVERSATIONS["result and answer"]]) == written


@pytest.mark.parametrize("name", ["mistral", "llama3_1"])
def test_what_an_answer_says_next_to_its_call_is_counted_where_it_is_not_written(tokenizer: Tokenizer, name: str):
    template = ChatTemplate(template_for(tokenizer, name, None), tokenizer)
    template.encoded(CONVERSATIONS["call and text"], "here")
    template.encoded(CONVERSATIONS["call"], "here")
    assert template.num_unwritten_words == 1
    writing = ChatTemplate(template_for(tokenizer, "qwen3", None), tokenizer)
    writing.encoded(CONVERSATIONS["call and text"], "here")
    assert writing.num_unwritten_words == 0


def test_options_of_a_template_are_those_of_all_and_then_of_a_conversation(tokenizer: Tokenizer):
    content, talk = template_for(tokenizer, "qwen3", None), CONVERSATIONS["question"]
    quiet = ChatTemplate(content, tokenizer, options={"enable_thinking": False})
    thought = "<think>\n\n</think>\n\n"
    assert quiet.render(talk, prompt=True).endswith(f"<|im_start|>assistant\n{thought}")
    assert not quiet.render(talk, prompt=True, options={"enable_thinking": True}).endswith(thought)
    loud = ChatTemplate(content, tokenizer)
    assert loud.prompt(talk, "here", options={"enable_thinking": False}) == quiet.prompt(talk, "here")
    found = [
        one.encoded(CONVERSATIONS["answer"], "here", options=given).ids
        for one, given in (
            (ChatTemplate(template_for(tokenizer, "glm4", None), tokenizer), given)
            for given in ({}, {"enable_thinking": False})
        )
    ]
    assert tokenizer.decode(found[1]) == tokenizer.decode(found[0]).replace("a", "a/nothink", 1)
    loud.encoded(CONVERSATIONS["answer"], "here", options={"verbosity": "low", "enable_thinking": True})
    assert dict(loud.unused_options) == {"verbosity": 1}
    with pytest.raises(UserError, match=r"^data.chat_template_kwargs: data.chat_template doesn't name verbosity"):
        ChatTemplate(content, tokenizer, options={"verbosity": "low"})
    with pytest.raises(UserError, match=r"^data.chat_template_kwargs: messages is the conversation's own"):
        ChatTemplate(content, tokenizer, options={"messages": []})


@pytest.mark.parametrize(
    ("name", "ends"),
    [("glm4", ["<|user|>", "<|observation|>"]), ("llama3_1", ["<|eot_id|>"]), ("mistral", ["</s>"])],
)
def test_what_follows_a_call_ends_an_answer_too(tokenizer: Tokenizer, name: str, ends: list[str]):
    template = ChatTemplate(template_for(tokenizer, name, None), tokenizer)
    assert [tokenizer.backend.id_to_token(one) for one in template.end_ids] == ends
