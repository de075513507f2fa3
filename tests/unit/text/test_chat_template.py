"""Chat templates write what transformers writes by them, and answers are the tokens that it says are answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from vaak.core.errors import DataError, UserError
from vaak.text.chat_template import ChatTemplate, Learned, Reasoning, keep_template, template_in
from vaak.text.shipped_templates import SHIPPED, given_template, template_for, template_text
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

TALK = [
    {"role": "system", "content": "Answer in a word."},
    {"role": "user", "content": "कौन जाता है?"},
    {"role": "assistant", "content": "राम  \n।"},
    {"role": "user", "content": "कहाँ?"},
    {"role": "assistant", "content": "घर।"},
]
HEAD = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
MARKED = (
    HEAD
    + "{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{ message.content + '<|im_end|>' }}{%- endif %}{{ '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
PLAIN = (
    HEAD + "{{ message.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN = (
    "{%- for message in messages %}{%- if message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""How Qwen's templates write what tools return: several together, as if the user said it."""
LLAMA2 = (
    "{% for message in messages if message.role != 'system' %}{% if message.role == 'user' %}"
    "{{ bos_token + '[INST] ' + message.content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TOOLS = [
    {"role": "user", "content": "मौसम?"},
    {"role": "assistant", "content": '<tool_call>{"name": "weather"}</tool_call>'},
    {"role": "tool", "content": '{"rain": true}'},
    {"role": "tool", "content": "<|im_end|> 7"},
    {"role": "assistant", "content": "बारिश।"},
]
FORGETFUL = "{{ messages | length }}" + PLAIN


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    options = SimpleNamespace(type="byte_level", vocab_size=300, min_frequency=1, training_characters=None, path=None)
    trained = TokenizerFactory(options).create_tokenizer([message["content"] for message in TALK] * 3)
    trained.backend.add_special_tokens([AddedToken(f"<|im_{end}|>", special=True) for end in ("start", "end")])
    return Tokenizer.from_json(trained.to_json())


def answers_of(template: ChatTemplate, messages: list[dict[str, Any]]) -> list[str]:
    """The text of each run of tokens that are answers."""
    found = template.encoded(messages, "here")
    assert found.answers is not None
    texts: list[list[int]] = []
    before = False
    for token, is_answer in zip(found.ids, found.answers, strict=True):
        if is_answer:
            texts += [] if before else [[]]
            texts[-1].append(token)
        before = bool(is_answer)
    return [template.tokenizer.decode(ids, skip_special_tokens=False) for ids in texts]


def peer_of(tokenizer: Tokenizer) -> Any:
    """The tokenizer as transformers has it."""
    transformers = pytest.importorskip("transformers")
    names: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **names)


@pytest.mark.parametrize("content", [MARKED, PLAIN, LLAMA2])
def test_tokens_and_answers_are_those_of_transformers(tokenizer: Tokenizer, content: str):
    peer = peer_of(tokenizer)
    theirs = peer.apply_chat_template(
        TALK, chat_template=content, return_dict=True, return_assistant_tokens_mask=content == MARKED
    )
    found = ChatTemplate(content, tokenizer).encoded(TALK, "here")
    assert found.ids == theirs["input_ids"]
    assert found.answers is not None
    if content == MARKED:
        assert found.answers.astype(int).tolist() == theirs["assistant_masks"]
    asked = peer.apply_chat_template(TALK[:4], chat_template=content, add_generation_prompt=True)["input_ids"]
    assert ChatTemplate(content, tokenizer).prompt(TALK[:4], "here") == asked


@pytest.mark.parametrize("content", [MARKED, PLAIN, QWEN])
def test_what_tools_return_is_read_as_transformers_writes_it_and_never_an_answer(tokenizer: Tokenizer, content: str):
    template, peer = ChatTemplate(content, tokenizer), peer_of(tokenizer)
    calm = [{**message, "content": message["content"].replace("<|im_end|>", "end")} for message in TOOLS]
    assert template.encoded(calm, "here").ids == peer.apply_chat_template(calm, chat_template=content)["input_ids"]
    asked = peer.apply_chat_template(calm[:4], chat_template=content, add_generation_prompt=True)["input_ids"]
    assert template.prompt(calm[:4], "here") == asked
    said = [TOOLS[place]["content"] + "<|im_end|>" for place in (1, 4)]
    assert answers_of(template, TOOLS) == answers_of(template, calm) == said


@pytest.mark.parametrize("content", [MARKED, PLAIN])
def test_answers_have_the_token_that_ends_them_and_not_the_newline_after_it(tokenizer: Tokenizer, content: str):
    template = ChatTemplate(content, tokenizer)
    assert answers_of(template, TALK) == ["राम  \n।<|im_end|>", "घर।<|im_end|>"]
    found = template.encoded(TALK, "here")
    assert (found.num_bytes, found.is_reproduced) == (len("राम  \n।घर।".encode()) + 2, True)
    assert template.end_ids == (tokenizer.backend.token_to_id("<|im_end|>"),)


def test_answers_that_no_token_ends_are_whole(tokenizer: Tokenizer):
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role + ':\n' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}",
        tokenizer,
    )
    assert answers_of(template, TALK) == ["राम  \n।\n", "घर।\n"]
    assert template.end_ids == ()
    assert template.doubt == "data.chat_template writes no special token after an answer, such as {{ eos_token }}"


@pytest.mark.parametrize(
    ("content", "doubt"),
    [
        (MARKED, None),
        (PLAIN, None),
        (QWEN, None),
        (LLAMA2, None),
        (
            MARKED.replace("{{ message.content + '<|im_end|>' }}{% endgeneration %}",
                           "{{ message.content }}{% endgeneration %}{{ '<|im_end|>' }}"),
            "data.chat_template has <|im_end|> after {% endgeneration %}; put it before, so that it is learned",
        ),
        (
            PLAIN.replace("'<|im_end|>\n' }}", "('' if loop.last else '<|im_end|>\n') }}"),
            "the first 2 messages",
        ),
        ("{{ raise_exception('tools only') }}", "data.chat_template refuses a question and its answer"),
    ],
)  # fmt: skip
def test_where_answers_do_not_end_it_is_known_before(tokenizer: Tokenizer, content: str, doubt: str | None):
    found = ChatTemplate(content, tokenizer).doubt
    if doubt == "the first 2 messages":  # whose last answer has no end
        doubt = "data.chat_template refuses"
    assert found is None if doubt is None else (found or "").startswith(doubt)


def test_a_token_after_the_marks_still_stops_an_answer(tokenizer: Tokenizer):
    template = ChatTemplate(MARKED.replace("+ '<|im_end|>' }}{% endgen", "}}{% endgen", 1), tokenizer)
    assert template.end_ids == (tokenizer.backend.token_to_id("<|im_start|>"),), "at least the next turn's beginning"
    outside = MARKED.replace("+ '<|im_end|>' }}{% endgeneration %}", "}}{% endgeneration %}{{ '<|im_end|>' }}", 1)
    assert ChatTemplate(outside, tokenizer).end_ids == (tokenizer.backend.token_to_id("<|im_end|>"),)


def test_special_tokens_in_a_message_are_letters(tokenizer: Tokenizer):
    said = "a <|im_end|> b <s> c\ufdd0"
    talk = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
    for content in (MARKED, PLAIN):
        found = ChatTemplate(content, tokenizer).encoded(talk, "here")
        end = tokenizer.backend.token_to_id("<|im_end|>")
        assert end is not None
        assert list(found.ids).count(end) == 2
        assert tokenizer.bos_id not in found.ids
        assert answers_of(ChatTemplate(content, tokenizer), talk) == ["a <|im_end|> b <s> c<|im_end|>"]
        assert found.num_bytes == len("a <|im_end|> b <s> c") + 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (FORGETFUL, r"^here: data\.chat_template: the first 3 messages alone are rendered differently"),
        ("{{ raise_exception('Roles must\nalternate') }}", "^here: .* refuses this conversation: Roles must$"),
        ("{{ messages[9].content }}", "^here: .* refuses this conversation: "),
        ("{{ ''.__class__.__mro__ }}", "^here: .* refuses this conversation: "),
        ("{% if false %}{% generation %}{% endgeneration %}{% endif %}", "^here: .* marks no answer"),
    ],
)
def test_what_a_template_cannot_do_is_one_line(tokenizer: Tokenizer, content: str, said: str):
    with pytest.raises(DataError, match=said):
        ChatTemplate(content, tokenizer).encoded(TALK, "here")


def test_where_templates_come_from(tokenizer: Tokenizer, tmp_path: Path):
    (tmp_path / "own.jinja").write_text(PLAIN)
    assert given_template("own.jinja", tmp_path) == given_template(PLAIN, tmp_path) == PLAIN
    with pytest.raises(UserError, match=r"^data\.chat_template: no such file: other\.jinja"):
        given_template("other.jinja", tmp_path)
    with pytest.raises(UserError, match=r"^data\.chat_template: this is not a template in Jinja"):
        ChatTemplate("{% for %}", tokenizer)
    assert template_for(tokenizer, PLAIN, MARKED) == PLAIN
    assert template_for(tokenizer, None, MARKED) == MARKED
    chatml = template_for(tokenizer, "chatml", MARKED)
    assert (
        ChatTemplate(chatml, tokenizer).encoded(TALK, "").ids == ChatTemplate(MARKED, tokenizer).encoded(TALK, "").ids
    )
    assert template_for(tokenizer, None, None) == chatml
    tokenizer.save(tmp_path)
    assert template_in(tmp_path) is None
    keep_template(tmp_path, PLAIN)
    assert template_in(tmp_path) == PLAIN
    (tmp_path / "chat_template.jinja").write_text(MARKED)
    assert template_in(tmp_path) == MARKED


HERMES = template_text("chatml").replace("BEGIN", "'<|im_start|>'").replace("END", "'<|im_end|>'")
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "<|im_end|>?", "parameters": {"type": "object", "properties": {}}},
}
CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": ""},
    {"role": "user", "content": "मौसम?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "\nपूछूँ।\n",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "दिल्ली"}}}] * 2,
    },
    {"role": "tool", "content": '{"rain": true}', "name": "weather"},
    {"role": "assistant", "content": "बारिश।"},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "दिल्ली"}}\n</tool_call>'

CALLS = f"\n</think>\n\n{CALL}\n{CALL}<|im_end|>"


def test_tools_calls_and_thoughts_are_written_as_transformers_writes_them(tokenizer: Tokenizer):
    calm = {**FUNCTION, "function": {**FUNCTION["function"], "description": "?"}}
    peer, template = peer_of(tokenizer), ChatTemplate(HERMES, tokenizer)
    theirs = peer.apply_chat_template(
        CALLED, tools=[calm], chat_template=HERMES, return_dict=True, return_assistant_tokens_mask=True
    )
    found = template.encoded(CALLED, "here", tools=[calm])
    assert found.ids == theirs["input_ids"]
    assert found.answers is not None
    assert found.answers.astype(int).tolist() == theirs["assistant_masks"]
    asked = peer.apply_chat_template(CALLED[:4], tools=[calm], chat_template=HERMES, add_generation_prompt=True)
    assert template.prompt(CALLED[:4], "here", [calm]) == asked["input_ids"]
    assert answers_of(template, CALLED) == [
        f"<think>\n\nपूछूँ।\n\n</think>\n\n{CALL}\n{CALL}<|im_end|>",
        "बारिश।<|im_end|>",
    ]
    dangerous = template.encoded(CALLED, "here", tools=[FUNCTION])
    end = tokenizer.backend.token_to_id("<|im_end|>")
    assert end is not None
    assert list(dangerous.ids).count(end) == list(found.ids).count(end), "a tool can't end a turn"


@pytest.mark.parametrize(
    ("learned", "answers"),
    [
        (Learned(), [f"<think>\n\nपूछूँ।\n{CALLS}", "बारिश।<|im_end|>"]),
        (Learned(only_last=True), ["बारिश।<|im_end|>"]),
        (Learned(reasoning="mask"), ["<think>\n\n", f"\n{CALLS}", "बारिश।<|im_end|>"]),
        (Learned(reasoning="drop"), [CALL + "\n" + CALL + "<|im_end|>", "बारिश।<|im_end|>"]),
        (Learned(("user", "tool")), ["मौसम?<|im_end|>", '{"rain": true}<|im_end|>']),
        (Learned(("assistant", "tool"), only_last=True), ["बारिश।<|im_end|>"]),
    ],
)  # fmt: skip
def test_what_is_learned_is_what_was_asked_for(tokenizer: Tokenizer, learned: Learned, answers: list[str]):
    template = ChatTemplate(HERMES, tokenizer, learned)
    assert answers_of(template, CALLED) == answers
    found = template.encoded(CALLED, "here")
    assert found.num_bytes == sum(len(one.replace("<|im_end|>", ".").encode()) for one in answers)
    if learned.reasoning != "drop":
        assert found.ids == ChatTemplate(HERMES, tokenizer).encoded(CALLED, "here").ids
    assert found.is_reproduced


@pytest.mark.parametrize("content", [MARKED, PLAIN])
def test_turns_with_weight_0_and_those_of_other_roles_are_exact(tokenizer: Tokenizer, content: str):
    def learned_texts(learned: Learned, unlearned: set[int]) -> list[str]:
        found = ChatTemplate(content, tokenizer, learned).encoded(TALK, "here", unlearned)
        assert found.answers is not None
        assert found.ids == ChatTemplate(content, tokenizer).encoded(TALK, "here").ids
        return tokenizer.decode([int(i) for i in np.array(found.ids)[found.answers]], False).split("<|im_end|>")[:-1]

    assert learned_texts(Learned(), {2}) == ["घर।"]
    assert learned_texts(Learned(), {4}) == ["राम  \n।"]
    assert learned_texts(Learned(("user",)), {3}) == ["कौन जाता है?"]
    everyone = Learned(("assistant", "user", "system"))
    assert learned_texts(everyone, {2}) == [TALK[place]["content"] for place in (0, 1, 3, 4)]
    assert learned_texts(everyone._replace(only_last=True), {4}) == ["कहाँ?"]


def test_thoughts_in_the_content_are_left_out_or_masked_too(tokenizer: Tokenizer):
    talk = [CALLED[1], {"role": "assistant", "content": "<think>\nसोच\n</think>\n\nहाँ।"}]
    ways: tuple[tuple[Reasoning, list[str]], ...] = (
        ("keep", ["<think>\nसोच\n</think>\n\nहाँ।<|im_end|>"]),
        ("mask", ["<think>\n", "\n</think>\n\nहाँ।<|im_end|>"]),
        ("drop", ["हाँ।<|im_end|>"]),
    )
    for reasoning, answers in ways:
        assert answers_of(ChatTemplate(HERMES, tokenizer, Learned(reasoning=reasoning)), talk) == answers


def test_what_a_template_would_leave_out_is_refused_or_counted(tokenizer: Tokenizer):
    plain = ChatTemplate(MARKED, tokenizer)
    for messages, tools, said in (
        (TALK, [FUNCTION], "doesn't write tools; name one that does, such as chatml"),
        ([*TALK[:2], {**CALLED[2], "reasoning_content": ""}], (), "doesn't write tool_calls"),
        ([*TALK[:2], {**TALK[2], "reasoning_content": "सोच"}], (), "data.reasoning: drop leaves it out"),
    ):
        with pytest.raises(DataError, match=f"^here: data.chat_template .*{said}"):
            plain.encoded(messages, "here", tools=tools)
    forgets = "{% for m in messages %}{% if loop.last %}{{ m.reasoning_content }}{% endif %}{% generation %}" + (
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% endfor %}"
    )
    template = ChatTemplate(forgets, tokenizer)
    thinking = [{**TALK[2], "reasoning_content": "सोच"}] * 3
    template.encoded(thinking, "here")
    assert template.num_unwritten_thoughts == 2


def test_a_developer_is_the_system_where_a_template_does_not_know_that_role(tokenizer: Tokenizer):
    talk = [{"role": "developer", "content": "सुनो।"}, *TALK[1:]]
    as_system = [{"role": "system", "content": "सुनो।"}, *TALK[1:]]
    assert (
        ChatTemplate(MARKED, tokenizer).encoded(talk, "").ids
        == ChatTemplate(MARKED, tokenizer).encoded(as_system, "").ids
    )
    knowing = ChatTemplate("{# developer #}" + MARKED, tokenizer)
    assert (
        knowing.encoded(talk, "").ids == peer_of(tokenizer).apply_chat_template(talk, chat_template=MARKED)["input_ids"]
    )


@pytest.fixture(scope="module")
def every_token(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the tokens of all templates that are shipped."""
    found = Tokenizer.from_json(tokenizer.to_json())
    names = dict.fromkeys(token for tokens in SHIPPED.values() for token in tokens)
    found.backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    return Tokenizer.from_json(found.to_json())


LONG_CALL = {**CALLED[2], "reasoning_content": "सोच", "tool_calls": [{"id": "a23456789", **CALLED[2]["tool_calls"][0]}]}
WITH_CALL = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b\n"},
    {"role": "user", "content": "c"},
    LONG_CALL,
    {"role": "tool", "content": "7", "tool_call_id": "a23456789"},
    {"role": "assistant", "content": "d"},
]
OBJECT = '{"name": "weather", "arguments": {"place": "दिल्ली"}'
SHIPPED_TEXTS: dict[str, tuple[str, list[str]]] = {
    "qwen3": (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
        ["b\n<|im_end|>", f"<think>\nसोच\n</think>\n\n<tool_call>\n{OBJECT}}}\n</tool_call><|im_end|>",
         "<think>\n\n</think>\n\nd<|im_end|>"],
    ),
    "glm4": (
        "[gMASK]<sop><|system|>\ns<|user|>\na<|assistant|>",
        ["\n<think></think>\nb<|user|>",
         "\n<think>सोच</think>\n<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>दिल्ली</arg_value>\n</tool_call>"
         "<|observation|>", "\n<think></think>\nd<|user|>"],
    ),
    "llama3_1": (
        "<s><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
        "s<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ["b<|eot_id|>", '{"name": "weather", "parameters": {"place": "दिल्ली"}}<|eot_id|>', "d<|eot_id|>"],
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ["b<|eot_id|>", "d<|eot_id|>"],
    ),
    "mistral": (
        "<s>[INST] a[/INST]",
        [" b</s>", f'[TOOL_CALLS] [{OBJECT}, "id": "a23456789"}}]</s>', " d</s>"],
    ),
    "mistral_nemo": (
        "<s>[INST]a[/INST]",
        ["b\n</s>", f'[TOOL_CALLS][{OBJECT}, "id": "a23456789"}}]</s>', "d</s>"],
    ),
    "gemma": (
        "<s><start_of_turn>user\ns\n\na<end_of_turn>\n<start_of_turn>model\n",
        ["b<end_of_turn>", "d<end_of_turn>"],
    ),
    "chatml": (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
        ["b\n<|im_end|>", f"<think>\nसोच\n</think>\n\n<tool_call>\n{OBJECT}}}\n</tool_call><|im_end|>", "d<|im_end|>"],
    ),
}  # fmt: skip
"""Of each template, the text before the first answer, and the answers; some write no calls."""


def conversation_for(name: str) -> list[dict[str, Any]]:
    """The conversation, without what a template can't write."""
    without_calls = name in ("gemma", "llama3")
    found = [*WITH_CALL[:4], WITH_CALL[-1]] if without_calls else WITH_CALL
    if name in ("mistral", "mistral_nemo", "llama3_1"):  # they have no place for thoughts
        return [{key: value for key, value in one.items() if key != "reasoning_content"} for one in found]
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_answers_of_each_template_that_is_shipped_are_those_counted_by_hand(every_token: Tokenizer, name: str):
    begin, answers = SHIPPED_TEXTS[name]
    template, talk = ChatTemplate(template_for(every_token, name, None), every_token), conversation_for(name)
    assert template.render(talk).startswith(begin + answers[0])
    assert answers_of(template, talk) == answers
    assert template.doubt is None, "it is learned where an answer ends"
    prompt = every_token.decode(template.prompt(talk[:2], "here"), skip_special_tokens=False)
    assert prompt == begin.replace("a[/INST]", "s\n\na[/INST]")


@pytest.mark.parametrize("name", SHIPPED)
def test_each_template_that_is_shipped_writes_the_same_in_transformers(every_token: Tokenizer, name: str):
    content, talk = template_for(every_token, name, None), conversation_for(name)
    template, peer = ChatTemplate(content, every_token), peer_of(every_token)
    tool = {**FUNCTION, "function": {**FUNCTION["function"], "description": "?"}}
    tools = [tool, tool] if "tools" in content else []
    theirs = peer.apply_chat_template(
        talk, tools=tools or None, chat_template=content, return_dict=True, return_assistant_tokens_mask=True
    )
    found = template.encoded(talk, "here", tools=tools)
    assert found.ids == theirs["input_ids"]
    assert found.answers is not None
    assert found.answers.astype(int).tolist() == theirs["assistant_masks"]
    asked = peer.apply_chat_template(talk[:4], tools=tools or None, chat_template=content, add_generation_prompt=True)
    assert template.prompt(talk[:4], "here", tools) == asked["input_ids"]


OWN_GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tool') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{ m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
"""The turns of Gemma 2, whose own template refuses a system."""


def test_a_template_is_chosen_by_what_the_own_one_writes_or_by_its_tokens(
    every_token: Tokenizer, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "vaak")
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + OWN_GEMMA
    assert template_for(every_token, None, refuses) == template_text("gemma")
    assert "data.chat_template: gemma, which writes what the base's own does, and marks answers" in caplog.text
    other = refuses.replace("| trim", "")
    assert template_for(every_token, None, other) == other, "it writes another text"
    assert template_for(tokenizer, None, refuses) == refuses, "the tokenizer has none of these tokens"
    for name, tokens in SHIPPED.items():
        having = Tokenizer.from_json(tokenizer.to_json())
        having.backend.add_special_tokens([AddedToken(one, special=True) for one in tokens])
        assert template_for(having, None, None) == template_for(having, name, None), name
