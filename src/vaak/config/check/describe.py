"""What an option takes, in words, from its JSON Schema: for error messages, comments and documentation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from vaak.config.base import LARGEST_NUMBER

Schema = dict[str, Any]

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "a section of keys",
    "array": "a list",
}
_BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "exclusiveMaximum": "below",
    "maximum": "at most",
}


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema itself in place of a reference to it."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def schema_at(root: Schema, path: Sequence[str | int]) -> Schema | None:
    """The schema of the value at a path of a configuration, or None where nothing is known."""
    schema: Schema | None = root
    for key in path:
        if schema is None:
            return None
        schema = _below(schema, key, root)
    return schema


def _below(schema: Schema, key: str | int, root: Schema) -> Schema | None:
    schema = resolved(schema, root)
    for option in schema.get("anyOf", ()):
        if (found := _below(option, key, root)) is not None:
            return found
    if isinstance(key, int):
        fixed = schema.get("prefixItems", [])
        return fixed[key] if key < len(fixed) else schema.get("items")
    known = schema.get("properties", {}).get(key)
    extra = schema.get("additionalProperties")
    return known or (extra if isinstance(extra, dict) else None)


def in_words(schema: Schema, root: Schema) -> str:
    """What a value must be.

    >>> in_words({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]}, {})
    'a whole number above 0, or null'
    """
    schema = resolved(schema, root)
    if "anyOf" in schema:
        parts = [in_words(option, root) for option in schema["anyOf"]]
        return ", or ".join(dict.fromkeys(parts))
    if "allOf" in schema:
        return in_words(schema["allOf"][0], root)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type")
    if kind == "array":
        return _list_in_words(schema, root)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and not schema.get("properties"):
        inner = in_words(schema["additionalProperties"], root)
        return f"names, each with {inner}"
    if "examples" in schema:
        return " or ".join(schema["examples"])
    if schema.get("pattern"):
        return "text without / or \\"
    bounds = [f"{word} {json.dumps(schema[name])}" for name, word in _BOUNDS.items() if name in schema]
    return " ".join([_TYPES.get(str(kind), "any value"), " and ".join(bounds)]).strip()


def is_within_bounds(number: float, schema: Schema, root: Schema) -> bool:
    """Whether a number is neither too large nor too small; of several types, for one of them.

    >>> is_within_bounds(1e20, {"anyOf": [{"type": "integer", "maximum": 1024}, {"type": "null"}]}, {})
    False
    """
    schema = resolved(schema, root)
    if "anyOf" in schema:
        numbers = (option for option in schema["anyOf"] if resolved(option, root).get("type") != "null")
        return any(is_within_bounds(number, option, root) for option in numbers)
    if "allOf" in schema:
        return is_within_bounds(number, schema["allOf"][0], root)
    inside = (
        number >= schema.get("minimum", -math.inf),
        number > schema.get("exclusiveMinimum", -math.inf),
        number <= schema.get("maximum", LARGEST_NUMBER),
        number < schema.get("exclusiveMaximum", math.inf),
    )
    return all(inside)


def _list_in_words(schema: Schema, root: Schema) -> str:
    if "prefixItems" in schema:
        items = [in_words(item, root) for item in schema["prefixItems"]]
        return f"a list of {len(items)}: {', '.join(items)}"
    inner = in_words(schema.get("items", {}), root)
    return f"a list, each {inner}"


def choices(schema: Schema, root: Schema) -> list[Any]:
    """The values of an enumeration, alone or among other types."""
    schema = resolved(schema, root)
    nested = [choice for option in schema.get("anyOf", ()) for choice in choices(option, root)]
    return [*schema.get("enum", []), *([schema["const"]] if "const" in schema else []), *nested]
