"""Conversations and pairs of answers from rows of the formats that people have; their files: ``conversation_files``.

    {"messages": [{"role": "system" | "user" | "assistant" | "tool", "content": text}, …]}    OpenAI, Mistral, …
    {"conversations": [{"from": "system" | "human" | "gpt" | "tool", "value": text}, …]}      ShareGPT
    {"prompt": text or messages, "completion": text or messages}                              TRL
    {"instruction": text, "input": text, "output": text}      Alpaca; the input may be empty or missing

A prompt and an instruction are a question of the user, a completion and an output the assistant's answer. A ``tool``
says what a function returned; tools and their calls go to the template (``tool_calls.py``), as do an
answer's thoughts (``reasoning_content``). What each further key means is in ``ROW_KEYS`` and ``MESSAGE_KEYS``: one
that changes what is to be learned is obeyed, or refused by name; others aren't read, and are named in one line of the
log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from vaak.core.errors import DataError
from vaak.text.corpora.tool_calls import (
    NO_OPTIONS,
    Options,
    from_json,
    read_calls,
    read_calls_of_text,
    read_options,
    read_tools,
)
from vaak.text.tokenizer import normalise

KNOWN_KEYS = "messages, conversations, prompt and completion, instruction and output, or query, answers and tools"
ANSWERS = "assistant"
ROLES = ("system", "user", ANSWERS, "tool")
CALLS = "function_call"
"""ShareGPT's speaker of a turn that is a call, in JSON."""
Message = dict[str, Any]


class Keys(NamedTuple):
    """The keys by which a form names its messages, their speaker and their text; and its usual names of the roles."""

    messages: str
    role: str
    content: str
    roles: tuple[str, ...]


SPEAKERS = {
    **dict(zip(ROLES, ROLES, strict=True)),
    "developer": "developer",
    "human": "user",
    **dict.fromkeys(("gpt", "model", "bot", "chatgpt", CALLS), ANSWERS),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
"""The role of each speaker. Data mix the forms' names: ``from`` may be ``user``, ``role`` be ``model``."""
OPENAI = Keys("messages", "role", "content", (*ROLES, "developer", "function"))
SHAREGPT = Keys("conversations", "from", "value", ("system", "human", "gpt", "tool", "observation", CALLS))

Outcome = Literal["read", "refused", "not read"]


class KeyRule(NamedTuple):
    """How a key is handled: the ``formats`` that have it, and the rule in words.

    A refused key may be there as long as it says nothing: null, false, an empty text or list.
    """

    formats: str
    outcome: Outcome
    meaning: str


_MEDIA = "a language model reads text only"
_THOUGHTS = "the thoughts of an answer, which the template writes; `data.reasoning` masks or drops them"
_TOOLS = "the functions that may be called, which the template writes; a list, or JSON of one"
_TOKENS = "give texts; Vaak makes the tokens"
_PAIRS = "data.corpus.type preferences takes prompt, chosen and rejected"

ROW_KEYS: dict[str, KeyRule] = {
    "messages": KeyRule("OpenAI, Mistral, TRL, axolotl", "read", "the conversation"),
    "conversations": KeyRule("ShareGPT", "read", "the conversation"),
    "prompt": KeyRule("TRL", "read", "a text is the user's question; in messages, no answer is learned"),
    "completion": KeyRule("TRL", "read", "a text is the assistant's answer; in messages, each answer is learned"),
    "instruction": KeyRule("Alpaca", "read", "a question of the user"),
    "input": KeyRule("Alpaca", "read", "follows the instruction after an empty line"),
    "output": KeyRule("Alpaca", "read", "the assistant's answer"),
    "query": KeyRule("xLAM", "read", "a question of the user, with `answers`"),
    "answers": KeyRule("xLAM", "read", "the assistant's calls; a list, or JSON of one"),
    "system": KeyRule("ShareGPT, Alpaca", "read", "the system message, where the conversation has none"),
    "history": KeyRule("Alpaca", "read", "earlier questions and answers, in pairs, all learned"),
    "label": KeyRule("TRL (KTO)", "read", "true: the completion is learned; false is refused: it would be learned"),
    "weight": KeyRule("several", "read", "1 changes nothing; any other is refused"),
    "tools": KeyRule("OpenAI, Mistral, TRL, ShareGPT", "read", _TOOLS),
    "functions": KeyRule("OpenAI", "read", "as `tools`, each without its outer object"),
    "chat_template_kwargs": KeyRule("TRL", "read", "variables of the template, such as `enable_thinking`"),
    "documents": KeyRule("transformers", "refused", "write them into a message"),
    "segments": KeyRule("axolotl (input_output)", "refused", "write them as messages"),
    "completions": KeyRule("TRL (stepwise)", "refused", "give one completion"),
    "labels": KeyRule("TRL (stepwise), tokens", "refused", "give one completion"),
    "chosen": KeyRule("TRL", "refused", _PAIRS),
    "rejected": KeyRule("TRL", "refused", _PAIRS),
    "preferred_output": KeyRule("OpenAI", "refused", _PAIRS),
    "non_preferred_output": KeyRule("OpenAI", "refused", _PAIRS),
    "margin": KeyRule("TRL", "refused", "all pairs count alike"),
    "images": KeyRule("TRL, axolotl", "refused", _MEDIA),
    "image": KeyRule("TRL", "refused", _MEDIA),
    "videos": KeyRule("TRL, LLaMA-Factory", "refused", _MEDIA),
    "audios": KeyRule("LLaMA-Factory", "refused", _MEDIA),
    "input_ids": KeyRule("tokens", "refused", _TOKENS),
    "attention_mask": KeyRule("tokens", "refused", _TOKENS),
    "completion_mask": KeyRule("TRL", "refused", _TOKENS),
    "assistant_masks": KeyRule("TRL", "refused", _TOKENS),
    "parallel_tool_calls": KeyRule("OpenAI", "not read", "an option of servers"),
}

MESSAGE_KEYS: dict[str, KeyRule] = {
    "role": KeyRule(
        "OpenAI, Mistral, TRL, axolotl",
        "read",
        "`model` is the assistant, `function` and `ipython` a tool; `developer` the system, where the template doesn't "
        "name it",
    ),
    "from": KeyRule(
        "ShareGPT",
        "read",
        "as `role`; `human` is the user, `gpt` the assistant, `observation` a tool, `function_call` a call",
    ),
    "content": KeyRule("OpenAI, Mistral, TRL, axolotl", "read", "text, or a list of parts of type text, joined"),
    "value": KeyRule("ShareGPT", "read", "text"),
    "weight": KeyRule(
        "OpenAI, Mistral, ShareGPT",
        "read",
        "0 isn't learned or scored; 1 is, where its role is one of `data.learned_roles`",
    ),
    "train": KeyRule("axolotl", "read", "as `weight`, with false and true"),
    "training": KeyRule("axolotl", "read", "as `train`"),
    "loss": KeyRule("ms-swift", "read", "as `train`"),
    "train_detail": KeyRule("axolotl", "refused", "an answer is learned as a whole, or not"),
    "training_detail": KeyRule("axolotl", "refused", "an answer is learned as a whole, or not"),
    "prefix": KeyRule("Mistral", "refused", "write the whole answer"),
    "tool_calls": KeyRule("OpenAI, Mistral, TRL", "read", "the calls of an answer, which the template writes"),
    "function_call": KeyRule("OpenAI", "read", "as `tool_calls`, for one call"),
    "refusal": KeyRule("OpenAI", "refused", "write it as the content"),
    "reasoning_content": KeyRule("axolotl, transformers", "read", _THOUGHTS),
    "reasoning": KeyRule("several", "read", "as `reasoning_content`"),
    "thinking": KeyRule("TRL, transformers", "read", "as `reasoning_content`"),
    "audio": KeyRule("OpenAI", "refused", _MEDIA),
    "images": KeyRule("several", "refused", _MEDIA),
    "name": KeyRule("OpenAI", "read", "which of several speakers, or which tool; the template may write it"),
    "tool_call_id": KeyRule("OpenAI, Mistral", "read", "the call that a tool answers; the template may write it"),
}
_SWITCHES = ("train", "training", "loss")
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
_PASSED = ("name", "tool_call_id")
"""Texts of a message that a template may write."""
XLAM = {"query", "answers", "tools"}
_KEYS_OF_FORMS: dict[Literal["preferences", "chat"], tuple[set[str], ...]] = {
    "preferences": ({"chosen", "rejected"}, {"preferred_output", "non_preferred_output"}),
    "chat": (
        {"messages"},
        {"conversations"},
        {"prompt", "completion"},
        {"instruction", "output"},
        XLAM,
    ),
}


class Conversation(NamedTuple):
    """Messages, normalised, and the places of those that aren't learned; the tools that may be called.

    Messages at the places ``asked`` aren't answers, but ask to be learned; ``options`` are what the template is given.
    A message has ``role`` and ``content``, and if the row has them ``reasoning_content``, ``tool_calls``, ``name``,
    ``tool_call_id``.
    """

    messages: list[Message]
    unlearned: frozenset[int] = frozenset()
    tools: tuple[dict[str, Any], ...] = ()
    asked: frozenset[int] = frozenset()
    options: Options = NO_OPTIONS


def key_table() -> list[str]:
    """Return the lines of a table of all keys, and what becomes of each."""
    lines = ["| key | of | formats | | meaning |", "|---|---|---|---|---|"]
    for of, rules in (("a row", ROW_KEYS), ("a message", MESSAGE_KEYS)):
        for key, rule in rules.items():
            lines.append(f"| `{key}` | {of} | {rule.formats} | {rule.outcome} | {rule.meaning} |")
    return lines


def detect_form(rows: Sequence[Any]) -> Literal["chat", "preferences"] | None:
    """Return the type of corpus that reads rows like most of these, as JSON has them; None if neither does.

    >>> detect_form([{"prompt": "so?", "completion": "so"}]), detect_form([{"text": "so"}])
    ('chat', None)
    """
    keys = [row.keys() for row in rows if isinstance(row, dict)]
    for form, known in _KEYS_OF_FORMS.items():
        if sum(any(one <= there for one in known) for there in keys) > len(rows) / 2:
            return form
    return None


def read_conversation(row: Any, where: str) -> Conversation:
    """Return the conversation of a row. Raises DataError if it has none, and for keys that can't be obeyed."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with {KNOWN_KEYS}, not a {type(row).__name__}")
    row = {key: value for key, value in row.items() if value is not None}
    # Refuse before reading: a row with images or token ids would else be learned without them.
    _refuse_keys(row, ROW_KEYS, where)
    _require_plain_row(row, where)
    keys, messages, unlearned = _detect_form(row, where)
    if not isinstance(messages, list) or not messages:
        expected = f"expected a list of messages with {keys.role} and {keys.content}"
        raise DataError(f"{where}: {keys.messages} is {shorten_value(messages)}; {expected}")
    found, asked = list[Message](), set[int]()
    tools = read_tools(row, where)
    for number, message in enumerate(messages, start=1):
        found.append(_message(message, keys, f"{where}: message {number}"))
        weight = _read_weight(message, f"{where}: message {number}")
        if weight is False:
            unlearned.add(number - 1)
        if weight and found[-1]["role"] != ANSWERS:
            asked.add(number - 1)
    conversation = Conversation(found, frozenset(unlearned), tools, frozenset(asked), read_options(row, where))
    return _with_system(row, conversation, where)


def _detect_form(row: Mapping[str, Any], where: str) -> tuple[Keys, Any, set[int]]:
    """Return the names by which a row has its messages, these, and the places of those that its form doesn't learn."""
    if "messages" in row and isinstance(row["messages"], str):  # Parquet has it as JSON, where rows differ
        row = {**row, "messages": from_json(row["messages"], f"{where}: messages")}
    if "messages" in row:
        # Data may mix the forms: ``messages`` with ``from`` and ``value``.
        return _list_keys(row["messages"], OPENAI), row["messages"], set()
    if "conversations" in row:
        return _list_keys(row["conversations"], SHAREGPT), row["conversations"], set()
    if "prompt" in row and "completion" in row:
        return _prompt_and_completion(row["prompt"], row["completion"])
    if "instruction" in row and "output" in row:
        question = _join_instruction(row)
        earlier = _earlier_turns(row.get("history") or [], where)
        return OPENAI, [*earlier, *_question_and_answer(question, row["output"])], set()
    if row.keys() >= XLAM:
        calls = {"role": ANSWERS, "content": "", "tool_calls": row["answers"]}
        return OPENAI, [{"role": "user", "content": row["query"]}, calls], set()
    raise DataError(f"{where}: no messages; expected {KNOWN_KEYS}; the keys are: {', '.join(row) or 'none'}")


def _join_instruction(row: Mapping[str, Any]) -> Any:
    """Alpaca's instruction, with what it is about after an empty line."""
    given = row.get("input") or ""
    has_more = isinstance(given, str) and bool(given.strip())
    return f"{row['instruction']}\n\n{given}" if has_more else row["instruction"]


def _list_keys(messages: Any, usual: Keys) -> Keys:
    """Return the names of the other form, where the first message has these."""
    other = SHAREGPT if usual is OPENAI else OPENAI
    first = messages[0] if isinstance(messages, list) and messages else None
    if isinstance(first, dict) and usual.role not in first and {other.role, other.content} <= first.keys():
        return other
    return usual


def _prompt_and_completion(prompt: Any, completion: Any) -> tuple[Keys, Any, set[int]]:
    """Texts, or messages, of which those of the prompt aren't learned."""
    are_messages = [
        isinstance(one, list) and all(isinstance(part, dict) for part in one) for one in (prompt, completion)
    ]
    if not any(are_messages):
        return OPENAI, _question_and_answer(prompt, completion), set()
    asked = prompt if are_messages[0] else [{"role": "user", "content": prompt}]
    answered = completion if are_messages[1] else [{"role": ANSWERS, "content": completion}]
    return OPENAI, [*asked, *answered], {*range(len(asked))}


def _earlier_turns(history: Any, where: str) -> list[dict[str, Any]]:
    """Return the messages of Alpaca's ``history``: pairs of a question and an answer."""
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise DataError(f"{where}: history is {shorten_value(history)}; expected pairs of a question and an answer")
    return [message for pair in history for message in _question_and_answer(*pair)]


def _question_and_answer(question: Any, answer: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": ANSWERS, "content": answer}]


def _with_system(row: Mapping[str, Any], found: Conversation, where: str) -> Conversation:
    """Return the conversation after the row's ``system``, if there is one and it has none itself."""
    given = row.get("system")
    if not says_something(given):
        return found
    system = _message({"role": "system", "content": given}, OPENAI, f"{where}: system")
    if found.messages[0]["role"] not in ("system", "developer"):
        # All messages move by one place.
        unlearned, asked = (frozenset(place + 1 for place in places) for places in (found.unlearned, found.asked))
        return found._replace(messages=[system, *found.messages], unlearned=unlearned, asked=asked)
    if found.messages[0] == system:
        return found
    raise DataError(f"{where}: system, and a first message of the system that says something else; leave one out")


def _refuse_keys(given: Mapping[str, Any], rules: Mapping[str, KeyRule], where: str) -> None:
    for key, value in given.items():
        if key in rules and rules[key].outcome == "refused" and says_something(value):
            are = "are" if key.endswith("s") else "is"
            raise DataError(f"{where}: {key} {are} not read; {rules[key].meaning}")


def says_something(value: Any) -> bool:
    """Return whether a value is more than null, false, or empty; a structure of Parquet has its keys, with nulls."""
    if isinstance(value, dict):
        return any(map(says_something, value.values()))
    return value is not None and value is not False and value not in ("", [], ())


def _require_plain_row(row: Mapping[str, Any], where: str) -> None:
    """Raise DataError if a row asks not to be learned like the others."""
    if "completion" in row and isinstance(row.get("label"), bool) and not row["label"]:
        raise DataError(f"{where}: label is false, so the completion isn't to be learned; leave the row out")
    weight = row.get("weight", 1)
    if weight != 1:
        raise DataError(f"{where}: weight is {shorten_value(weight)}; all conversations count alike: 1, or none")


def _read_weight(message: Mapping[str, Any], where: str) -> bool | None:
    """Whether a message says that it is to be learned, by its weight and the switches; None if it doesn't say."""
    said = dict[str, bool]()
    weight = message.get("weight")
    if weight is not None:
        if isinstance(weight, bool) or weight not in (0, 1):
            raise DataError(f"{where}: weight is {shorten_value(weight)}; expected 0 (isn't learned) or 1")
        said["weight"] = bool(weight)
    for key in _SWITCHES:
        value = message.get(key)
        if value is not None:
            if value not in (False, True, 0, 1):
                raise DataError(f"{where}: {key} is {shorten_value(value)}; expected true or false")
            said[key] = bool(value)
    if len({*said.values()}) > 1:
        raise DataError(f"{where}: {' and '.join(said)} say different things; leave one out")
    return all(said.values()) if said else None


def _message(message: Any, keys: Keys, where: str) -> Message:
    if not isinstance(message, dict):
        raise DataError(f"{where} is {shorten_value(message)}; expected an object with {keys.role} and {keys.content}")
    role = message.get(keys.role)
    if not isinstance(role, str) or role not in SPEAKERS:
        raise DataError(f"{where}: {keys.role} is {shorten_value(role)}; expected one of {', '.join(keys.roles)}")
    _refuse_keys(message, MESSAGE_KEYS, where)
    further = _read_further(message, SPEAKERS[role], where)
    content = message.get(keys.content)
    if role == CALLS:
        content, further["tool_calls"] = "", read_calls_of_text(content or "", f"{where}: {keys.content}")
    # OpenAI writes null where an answer is calls alone.
    content = "" if content is None and "tool_calls" in further else content
    content, thoughts = _join_parts(content, f"{where}: {keys.content}")
    if thoughts:
        further.setdefault("reasoning_content", normalise(thoughts))
    if not isinstance(content, str):
        raise DataError(f"{where}: {keys.content} is {shorten_value(content)}; expected text")
    may_be_empty = "tool_calls" in further or SPEAKERS[role] in ("system", "developer", "tool")
    if not content.strip() and not may_be_empty:
        raise DataError(f"{where}: {keys.content} is empty; give it text, or leave the message out")
    return {"role": SPEAKERS[role], "content": normalise(content), **further}


def _read_further(message: Mapping[str, Any], role: str, where: str) -> Message:
    """Return a message's other values: thoughts and calls of an answer, names."""
    found: Message = {}
    thoughts = {key: message[key] for key in _THOUGHT_KEYS if says_something(message.get(key))}
    if len({*map(repr, thoughts.values())}) > 1:
        raise DataError(f"{where}: {' and '.join(thoughts)} say different things; leave one out")
    for key in (*thoughts, *(key for key in _PASSED if says_something(message.get(key)))):
        if not isinstance(message[key], str):
            raise DataError(f"{where}: {key} is {shorten_value(message[key])}; expected text")
        found["reasoning_content" if key in thoughts else key] = normalise(message[key])
    calls = read_calls(message, where)
    if calls:
        found["tool_calls"] = calls
    for key in ("reasoning_content", "tool_calls"):
        if key in found and role != ANSWERS:
            raise DataError(f"{where}: {key} of the {role}; only answers of the {ANSWERS} have them")
    return found


_TEXT_PARTS = ("text", "input_text", "output_text")


def _join_parts(content: Any, where: str) -> tuple[Any, str]:
    """The texts of a content's parts together, and their thoughts; one that isn't a list of parts is unchanged."""
    if not isinstance(content, list) or not content:
        return content, ""
    # Not a list of parts, so the caller reports the content unchanged.
    if not all(isinstance(part, dict) and "type" in part for part in content):
        return content, ""
    texts, thoughts = list[str](), list[str]()
    for part in content:
        kind = part["type"]
        text = part.get("thinking" if kind == "thinking" else "text")
        if kind in ("tool_use", "tool_result"):
            raise DataError(f"{where} has a part of type {kind}; write it as tool_calls, or as a message of role tool")
        if kind not in (*_TEXT_PARTS, "thinking") or not isinstance(text, str):
            raise DataError(f"{where} has a part of type {shorten_value(kind)}; {_MEDIA}")
        (thoughts if kind == "thinking" else texts).append(text)
    return "".join(texts), "".join(thoughts)


def read_pair(row: Any, where: str) -> tuple[list[Message], list[Message], list[Message]]:
    """Return the messages before the answers, those of the preferred answer, and of the rejected one."""
    row = _as_trl(row, where) if isinstance(row, dict) else row
    if not isinstance(row, dict) or not {"chosen", "rejected"} <= row.keys():
        keys = f"the keys are: {', '.join(row) or 'none'}" if isinstance(row, dict) else f"not a {type(row).__name__}"
        raise DataError(f"{where}: no pair of answers; expected an object with prompt, chosen and rejected; {keys}")
    allowed = {key: rule for key, rule in ROW_KEYS.items() if key not in ("chosen", "rejected")}
    _refuse_keys(row, allowed, where)
    _require_plain_row(row, where)

    asked = _side(row, "prompt", "user", where)
    chosen, rejected = (_side(row, name, ANSWERS, where) for name in ("chosen", "rejected"))
    # TRL's implicit prompt: two whole conversations that begin with the same messages, of which the prompt, if it is
    # there, is one (UltraFeedback). The last one is always an answer.
    same = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen[:-1], rejected[:-1], strict=False))]
    if same and all(one in same for one in asked):
        asked, chosen, rejected = same, chosen[len(same) :], rejected[len(same) :]
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if [message["role"] for message in answer] != [ANSWERS]:
            raise DataError(f"{where}: {name} has to be one answer of the {ANSWERS} to the prompt")
    if not asked:
        raise DataError(f"{where}: nothing was asked; give prompt, or conversations that begin with the same messages")
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are the same; leave the pair out")
    if says_something(row.get("system")) and asked[0]["role"] not in ("system", "developer"):
        asked = [_message({"role": "system", "content": row["system"]}, OPENAI, f"{where}: system"), *asked]
    return asked, chosen, rejected


def _side(row: Mapping[str, Any], name: str, role: str, where: str) -> list[Message]:
    """The prompt, or one of the answers: text of a ``role``, or messages; those of a prompt are never learned."""
    given = row.get(name) or []
    given = [{"role": role, "content": given}] if isinstance(given, str) else given
    if not isinstance(given, list):
        raise DataError(f"{where}: {name} is {shorten_value(given)}; expected text, or a list of messages")
    keys = _list_keys(given, OPENAI)
    for message in given if name != "prompt" else ():
        if isinstance(message, dict) and any(message.get(key) in (0, False) for key in ("weight", *_SWITCHES)):
            raise DataError(f"{where}: {name}: a message isn't to be learned, but in a pair both answers count")
    return [_message(message, keys, f"{where}: {name}") for message in given]


def _as_trl(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a row by TRL's names; one of OpenAI's has its messages in ``input``."""
    row = {key: value for key, value in row.items() if value is not None}
    if "chosen" in row and "rejected" in row and "prompt" not in row:
        # As LLaMA-Factory has them, and Orca's: a question, or a conversation, with both answers.
        if "conversations" in row:
            row["prompt"] = row.pop("conversations")
        elif "instruction" in row:
            row["prompt"] = _join_instruction(row)
        elif "question" in row:
            row["prompt"] = row["question"]
    for name in ("chosen", "rejected"):
        if isinstance(row.get(name), dict):
            row[name] = [row[name]]
    if not {"preferred_output", "non_preferred_output"} <= row.keys():
        return row
    asked = row.pop("input", {})
    if not isinstance(asked, dict) or "messages" not in asked:
        raise DataError(f"{where}: input is {shorten_value(asked)}; expected an object with messages")
    answers = {"chosen": row.pop("preferred_output"), "rejected": row.pop("non_preferred_output")}
    further = {key: value for key, value in asked.items() if key != "messages"}
    return {**row, **further, "prompt": asked["messages"], **answers}


def shorten_value(value: Any) -> str:
    """Return a value as JSON, cut off if it is long."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 40 else f"{written[:40]}…"
