"""Tools, calls (in OpenAI's form, with arguments as objects) and options, which a template reads besides the texts.

    tools        [{"type": "function", "function": {"name", "description", "parameters"}}, …]      or as functions
    functions    [{"name", "description", "parameters"}, …]                                        OpenAI, earlier
    tool_calls   [{"id", "type": "function", "function": {"name", "arguments"}}, …], or without the outer object
    chat_template_kwargs   {"enable_thinking": false}

Arguments are an object, or JSON of one, as OpenAI has them: templates that write JSON would quote a text once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vaak.core.errors import DataError

Options = Mapping[str, Any]
"""Variables of a template other than messages and tools, by name."""
NO_OPTIONS: Options = {}


def read_tools(row: Mapping[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    """Return the tools of a row; none if it names none. Raises DataError for what isn't a list of objects."""
    given = [key for key in ("tools", "functions") if row.get(key)]
    if len(given) > 1:
        raise DataError(f"{where}: tools, and functions; leave one out")
    if not given:
        return ()
    key = given[0]
    tools = from_json(row[key], f"{where}: {key}")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(f"{where}: {key} is {_shorten(tools)}; expected a list of objects, or JSON of one")
    return tuple(map(_with_outer_object, tools))


def _with_outer_object(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as OpenAI's chats have it; of xLAM, ``functions`` and OpenAI's responses, the name is outside."""
    if "function" in tool or "name" not in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def read_options(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row's options of the template. Raises DataError for what aren't any."""
    key = "chat_template_kwargs"
    given = from_json(row.get(key) or {}, f"{where}: {key}")
    if not isinstance(given, dict):
        raise DataError(f"{where}: {key} is {_shorten(given)}; expected an object, or JSON of one")
    for name in given:
        if reason := reserved_option(name):
            raise DataError(f"{where}: {key}: {reason}")
    return given


_RESERVED = {
    "messages": "the conversation's own",
    "tools": "given by the key of that name",
    "documents": "not read",
    "add_generation_prompt": "set where an answer is asked for",
}


def reserved_option(name: str) -> str | None:
    """Return why a template's option of this name isn't given by a user; None if it may be."""
    if name.endswith("_token"):
        return f"{name} is the tokenizer's"
    return f"{name} is {_RESERVED[name]}" if name in _RESERVED else None


def read_calls(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the calls of a message, by ``tool_calls`` or ``function_call``. Raises DataError for what isn't a call."""
    calls, one = message.get("tool_calls") or [], message.get("function_call")
    calls = from_json(calls, f"{where}: tool_calls")
    if one and calls:
        raise DataError(f"{where}: tool_calls, and function_call; leave one out")
    if not isinstance(calls, list):
        raise DataError(f"{where}: tool_calls is {_shorten(calls)}; expected a list of calls")
    if one:
        return [_read_call(one, f"{where}: function_call")]
    return [_read_call(call, f"{where}: tool_calls, {number}") for number, call in enumerate(calls, 1)]


def read_calls_of_text(text: str, where: str) -> list[dict[str, Any]]:
    """Return the calls of a turn whose text is JSON of one, or of a list, as ShareGPT's ``function_call`` has them."""
    calls = from_json(text, where)
    return [_read_call(call, where) for call in (calls if isinstance(calls, list) else [calls])]


def _read_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where} is {_shorten(call)}; expected an object with the name of a function and its arguments"
        )
    arguments = function.get("arguments") or {}
    arguments = from_json(arguments, f"{where}: arguments")
    if not isinstance(arguments, dict):
        raise DataError(f"{where}: arguments is {_shorten(arguments)}; expected an object, or JSON of one")
    named = {"id": call["id"]} if call is not function and call.get("id") is not None else {}
    return {**named, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def from_json(value: Any, where: str) -> Any:
    """Return a value, or what it is JSON of. Raises DataError for a text that isn't JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise DataError(f"{where} is {_shorten(value)}, which is not JSON: {error}") from error


def _shorten(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 40 else f"{written[:40]}…"
