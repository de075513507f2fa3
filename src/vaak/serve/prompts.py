"""The tokens that a model continues, from what a request has: texts, tokens, or a conversation with its tools.

What a request says and the model would never see is refused, as an option would be that isn't read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vaak.serve.errors import ApiError
from vaak.serve.forms import ChatRequest
from vaak.serve.models import Served, Server, naming_fields
from vaak.text.corpora.conversations import read_conversation, says_something

READ_KEYS = {
    *("role", "content", "name", "tool_calls", "function_call", "tool_call_id"),
    *("reasoning_content", "reasoning", "thinking"),
    *("from", "value"),
}
"""Keys of a message that it is read by; others may be there as long as they say nothing, as in OpenAI's own answers."""
PART_KEYS = {"type", "text", "thinking"}


def read_prompts(server: Server, served: Served, prompt: Any) -> list[tuple[list[int], str]]:
    """Return the tokens of each prompt, and its text. Raises ApiError if there is none, and for wrong tokens.

    ``prompt`` is a text, or the tokens of one, or a list of either. Tokens are read unchanged: only a text gets the
    token that begins one.
    """
    is_one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
    several = [prompt] if is_one else prompt
    if not several:
        raise ApiError(400, "prompt has no text", param="prompt")
    require_length(server, several, "prompt")
    with naming_fields("prompt"):
        return [_read_prompt(served, one) for one in several]


def _read_prompt(served: Served, prompt: str | list[int]) -> tuple[list[int], str]:
    if isinstance(prompt, str):
        return served.task.prompt(prompt), prompt
    tokenizer = served.task.tokenizer
    if not prompt:
        raise ApiError(400, "prompt: a list of tokens is empty", param="prompt")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < len(tokenizer):
            message = f"prompt: {str(token)[:20]} is not a token of {served.name}, which has 0 to {len(tokenizer) - 1}"
            raise ApiError(400, message, param="prompt")
    return prompt, tokenizer.decode(prompt)


def read_chat(server: Server, served: Served, form: ChatRequest) -> list[int]:
    """Return the tokens of a conversation, as the model's template writes it before an answer. Raises ApiError."""
    tools = None if form.tool_choice == "none" else form.tools
    given = {"messages": form.messages, "tools": tools, "chat_template_kwargs": form.chat_template_kwargs}
    require_length(server, [json.dumps([*given.values()], ensure_ascii=False)], "messages")
    with naming_fields("messages"):
        template = served.task.chat_template
    for place in _unread(form, template.names):
        raise ApiError(400, place, param=place.partition(":")[0].partition("[")[0])
    with naming_fields("messages"):
        found = read_conversation(given, "messages")
        prompt: list[int] = template.prompt(found.messages, "messages", found.tools, found.options)
        return prompt


def _unread(form: ChatRequest, names_option: Any) -> Iterator[str]:
    """Yield where a conversation says what no model would see, and why."""
    for number, message in enumerate(form.messages):
        where = f"messages[{number}]"
        yield from _unknown_keys(message, READ_KEYS, where)
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "text":
                yield from _unknown_keys(part, PART_KEYS, f"{where}.content[{place}]")
    for number, tool in enumerate(form.tools or ()):
        if tool.get("type", "function") != "function":
            yield f"tools[{number}].type: only functions can be called"
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("strict"):
            yield f"tools[{number}].function.strict: no grammar constrains a text; leave it out"
    if form.tool_choice is not None and not form.tools:
        yield "tool_choice: there are no tools"
    for name in form.chat_template_kwargs or {}:
        if not names_option(name):
            yield f"chat_template_kwargs: the template doesn't name {name[:100]!r}, so it would change nothing"


def _unknown_keys(given: Mapping[str, Any], known: set[str], where: str) -> Iterator[str]:
    for key, value in given.items():
        if key not in known and says_something(value):
            yield f"{where}.{key[:100]}: it isn't read; leave it out"


def require_length(server: Server, texts: Sequence[str | list[int]], param: str, most: int | None = None) -> None:
    """Raise ApiError for too many texts, and for one with more than ``most`` characters or tokens.

    By default, ``most`` is the server's limit.
    """
    limits, most = server.limits, most or server.limits.max_characters
    if len(texts) > limits.max_inputs:
        raise ApiError(400, f"{param} has {len(texts)} texts; at most {limits.max_inputs} at once", param=param)
    longest: Sequence[Any] = max(texts, key=len, default="")
    if len(longest) > most:
        unit = "characters" if isinstance(longest, str) else "tokens"
        message = f"{param} has a text of {len(longest):,} {unit}; at most {most:,} are read"
        raise ApiError(400, message, param=param)
