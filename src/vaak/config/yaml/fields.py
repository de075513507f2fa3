"""The types of a configuration as a tree: for each key a section, a list or a value, and the values it accepts.

What an option takes is described in words, from its JSON Schema: for error messages, comments and documentation.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel

from vaak.config.base import LARGEST_NUMBER, USERS_CLASS, Component, ExtensibleSection, Section
from vaak.config.yaml.tree import Placed, PlacedDict, PlacedList, entries

SectionType = type[BaseModel]
P = ParamSpec("P")
T = TypeVar("T")


def _kept(tell: Callable[P, T]) -> Callable[P, T]:
    """Make a function look at an annotation once: loading a file asks for the same ones ten thousand times."""
    kept = functools.lru_cache(maxsize=8192)(tell)

    @functools.wraps(tell)
    def answer(*asked: P.args, **named: P.kwargs) -> T:
        try:
            return kept(*asked, **named)  # type: ignore[arg-type] # which are hashable, or it raises
        # A user's class may be annotated with something that can't be hashed.
        except TypeError:
            return tell(*asked, **named)

    return answer


@_kept
def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; of another annotation, itself."""
    if typing.get_origin(annotation) is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(annotation) for kind in alternatives(part))
    return (annotation,)


@_kept
def get_section(annotation: Any) -> SectionType | None:
    """Return the section that an annotation holds, alone or or-ed with None."""
    for kind in alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


@_kept
def get_item_annotation(annotation: Any) -> Any | None:
    """Return the annotation of the items of ``tuple[X, ...]``, or None for anything else."""
    for kind in alternatives(annotation):
        arguments = typing.get_args(kind)
        if typing.get_origin(kind) is tuple and arguments[1:] == (Ellipsis,):
            return arguments[0]
    return None


@_kept
def get_value_annotation(annotation: Any) -> Any | None:
    """Return the annotation of the values of ``dict[str, X]``, or None for anything else."""
    for kind in alternatives(annotation):
        if typing.get_origin(kind) is dict:
            return typing.get_args(kind)[1]
    return None


def is_list(annotation: Any) -> bool:
    return any(typing.get_origin(kind) in (tuple, list) for kind in alternatives(annotation))


def allows_none(annotation: Any) -> bool:
    return type(None) in alternatives(annotation)


def bare_field(section: SectionType) -> str | None:
    """Return the field that a bare value stands for."""
    return getattr(section, "bare", None)


def get_annotation(section: SectionType | None, key: str) -> Any:
    """Return the annotation of a section's field; Any where nothing is known."""
    field = section.model_fields.get(key) if section else None
    return field.annotation if field else Any


@_kept
def types_reading(section: SectionType, name: str) -> tuple[str, ...]:
    """Return the types of its section that read an option; empty if all do."""
    field = section.model_fields.get(name)
    extra = field.json_schema_extra if field else None
    reading = (
        [str(kind) for kind in typing.cast("list[Any]", extra.get("only_for", []))] if isinstance(extra, dict) else []
    )
    if issubclass(section, ExtensibleSection):
        reading = [kind for kind in reading if kind in (*section.own_types, USERS_CLASS)]
    return tuple(reading)


def applies(section: SectionType, name: str, section_type: Any) -> bool:
    """Return whether an option is read by a section of this type."""
    only_for = types_reading(section, name)
    return not only_for or section_type in only_for


def find_type(values: Any, section: SectionType) -> Any:
    """The ``type`` of a section's values: given, told by its other options or the default; None if none tells."""
    if isinstance(values, dict):
        if "type" in values:
            return values["type"]
        if issubclass(section, Section):
            try:
                told = section.type_told_by(values)
            except ValueError:
                # The section's validation reports it.
                return None
            if told is not None:
                return told
    field = section.model_fields.get("type")
    return field.default if field else None


def spell_out(given: Placed, annotation: Any) -> Placed:
    """The value with every bare one under the field it stands for, and a single one as a list where one is expected.

    ``optimizer: adamw`` becomes ``optimizer: {type: adamw}``. Null stays null unless the bare field takes it and the
    section doesn't: ``gradient_clipping: null`` is ``{norm: null}``, but ``early_stopping: null`` is none.
    """
    value, place = given
    item = get_item_annotation(annotation)
    if item is not None and value is not None:
        if isinstance(value, list):
            return Placed(PlacedList(spell_out(child, item) for _, child in entries(value)), place)
        # the keys of ``betas.0: 0.9`` are indices of a list
        is_indexed = isinstance(value, dict) and bool(value) and all(key.isdecimal() for key in value)
        if not isinstance(value, dict) or (get_section(item) and not is_indexed):
            return Placed(PlacedList([spell_out(given, item)]), place)
        return Placed(PlacedDict({key: spell_out(child, item) for key, child in entries(value)}), place)
    section, named = get_section(annotation), get_value_annotation(annotation)
    if get_section(named) is not None and len(alternatives(named)) == 1 and isinstance(value, dict):
        return Placed(PlacedDict({key: spell_out(child, named) for key, child in entries(value)}), place)
    if section is None or isinstance(value, list):
        return given
    if not isinstance(value, dict):
        bare = bare_field(section)
        null_is_bare = bare and not allows_none(annotation) and allows_none(get_annotation(section, bare))
        if bare is None or (value is None and not null_is_bare):
            return given
        value = PlacedDict({bare: given})
    fields = {key: spell_out(child, get_annotation(section, key)) for key, child in entries(value)}
    return Placed(PlacedDict(fields, place), place)


def sections_in(
    tree: PlacedDict, kind: SectionType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], PlacedDict, SectionType]]:
    """Yield every section of a tree with its path and type, also those in lists and under names.

    What is done to a section before the next is asked for is seen in the sections inside of it.
    """
    yield path, tree, kind
    for key, value in tree.items():
        annotation = get_annotation(kind, key)
        inner = get_section(annotation)
        if inner is not None and isinstance(value, PlacedDict):
            yield from sections_in(value, inner, (*path, key))
            continue
        item = get_item_annotation(annotation) if isinstance(value, list) else get_value_annotation(annotation)
        if (inner := get_section(item)) is not None:
            for name, (child, _) in entries(value):
                if isinstance(child, PlacedDict):
                    yield from sections_in(child, inner, (*path, key, name))


def is_component(section: SectionType | None) -> bool:
    return section is not None and issubclass(section, Component)


def names_class(section: SectionType | None) -> bool:
    """Return whether a section's ``type`` may name a user's class, whose options are then among the section's keys."""
    return section is not None and issubclass(section, Component | ExtensibleSection)


def is_users_type(section: SectionType, section_type: Any) -> bool:
    """Return whether an open section's type is a user's class."""
    return issubclass(section, ExtensibleSection) and section.is_users(section_type)


def own_types(section: SectionType) -> tuple[Any, ...]:
    """Return the types that a section knows the options of."""
    if issubclass(section, ExtensibleSection):
        return section.own_types
    return typing.get_args(get_annotation(section, "type"))


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
    """Return the schema itself in place of a reference to it."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def schema_at(root: Schema, path: Sequence[str | int]) -> Schema | None:
    """Return the schema of the value at a path of a configuration, or None if nothing is known."""
    schema: Schema | None = root
    for key in path:
        if schema is None:
            return None
        schema = _get_key_schema(schema, key, root)
    return schema


def _get_key_schema(schema: Schema, key: str | int, root: Schema) -> Schema | None:
    schema = resolved(schema, root)
    for option in schema.get("anyOf", ()):
        if (found := _get_key_schema(option, key, root)) is not None:
            return found
    if isinstance(key, int):
        fixed = schema.get("prefixItems", [])
        return fixed[key] if key < len(fixed) else schema.get("items")
    known = schema.get("properties", {}).get(key)
    extra = schema.get("additionalProperties")
    return known or (extra if isinstance(extra, dict) else None)


def in_words(schema: Schema, root: Schema) -> str:
    """Describe the values that a schema accepts.

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
    if kind == "array" and "prefixItems" in schema:
        items = [in_words(item, root) for item in schema["prefixItems"]]
        return f"a list of {len(items)}: {', '.join(items)}"
    if kind == "array":
        return f"a list, each {in_words(schema.get('items', {}), root)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and not schema.get("properties"):
        inner = in_words(schema["additionalProperties"], root)
        return f"a mapping of names to {inner}"
    if "examples" in schema:
        return " or ".join(schema["examples"])
    if schema.get("pattern"):
        return "text without / or \\"
    bounds = [f"{word} {json.dumps(schema[name])}" for name, word in _BOUNDS.items() if name in schema]
    return " ".join([_TYPES.get(str(kind), "any value"), " and ".join(bounds)]).strip()


def is_within_bounds(number: float, schema: Schema, root: Schema) -> bool:
    """Return whether a number is neither too large nor too small; with several types, for one of them.

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


def choices(schema: Schema, root: Schema) -> list[Any]:
    """Return the values of an enumeration, alone or among other types."""
    schema = resolved(schema, root)
    nested = [choice for option in schema.get("anyOf", ()) for choice in choices(option, root)]
    return [*schema.get("enum", []), *([schema["const"]] if "const" in schema else []), *nested]
