"""A merged tree as a typed experiment, or every mistake in it with its position."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vaak.config.base import REGISTERED, ExtensibleSection
from vaak.config.components import seen_from, source_file, unknown_name, what_is_missing
from vaak.config.experiment import Experiment
from vaak.config.trust import run_of_configuration
from vaak.config.yaml.fields import (
    SectionType,
    applies,
    choices,
    find_type,
    get_annotation,
    get_item_annotation,
    get_section,
    get_value_annotation,
    in_words,
    is_component,
    is_within_bounds,
    names_class,
    own_types,
    resolved,
    schema_at,
    types_reading,
)
from vaak.config.yaml.layers import get_folder
from vaak.config.yaml.tree import Node, Problem, YamlPlace, copy_tree, find, get_child, to_plain, walk

_MOST_ROUNDS = 4


class Validation:
    """Checks one tree against its type; ``aliases`` are known names for "did you mean"."""

    def __init__(self, tree: Node, kind: type[Experiment[Any, Any]], aliases: Collection[str]) -> None:
        self.tree = tree
        self.kind = kind
        self.aliases = aliases
        self.problems: list[Problem] = []
        self._left_out: set[tuple[str | int, ...]] = set()

    def experiment(self) -> Experiment[Any, Any] | None:
        """The experiment; with mistakes, one in which they are left out, so that more can be checked, or None."""
        tree = copy_tree(self.tree)
        for _ in range(_MOST_ROUNDS):
            try:
                # JSON, because strictness is right there: lists are tuples, but "3" is not a number and true is not 1.
                return self.kind.model_validate_json(json.dumps(to_plain(tree)), strict=True)
            except ValidationError as error:
                self._note(error, tree)
        return None

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        return _make_schema(self.kind)

    def _note(self, error: ValidationError, tree: Node) -> None:
        """Record the mistakes and remove them from the tree."""
        seen = set()
        for detail in error.errors(include_url=False):
            path = _path_in(tree, detail["loc"])
            if path not in seen and tuple(detail["loc"]) not in self._left_out:
                seen.add(path)
                self.problems.append(self._problem(path, detail))
        for path in sorted(seen, key=lambda path: (len(path), str(path)), reverse=True):
            self._left_out.add(_leave_out(tree, path))

    def _problem(self, path: tuple[str | int, ...], detail: Mapping[str, Any]) -> Problem:
        node = find(self.tree, path) or self.tree
        key = ".".join(map(str, path))
        kind = detail["type"]
        if kind == "extra_forbidden":
            return Problem(node.place, key, why_unknown(key) or f"unknown key{self._near_key(path)}")
        if kind == "missing":
            wanted = detail["loc"][-1]
            schema = schema_at(self.schema, (*path, wanted))
            expected = in_words(schema, self.schema) if schema else "a value"
            return Problem(node.place, key, f"{wanted} is missing; expected {expected}")
        if kind == "value_error":
            message = str(detail["ctx"]["error"])
            return Problem(_mentioned_key(node, message).place, key, message)
        return Problem(node.place, key, self._wrong_value(path, node, kind))

    def _wrong_value(self, path: tuple[str | int, ...], node: Node, kind: str) -> str:
        schema = schema_at(self.schema, path) or {}
        if node.value is None and any(part.get("properties") for part in _parts(schema, self.schema)):
            return "is empty (null); expected a section of keys, or leave it out for the defaults"
        known = choices(schema, self.schema)
        shown = json.dumps(to_plain(node), ensure_ascii=False)
        text = f"is {shown if len(shown) < 80 else shown[:77] + '...'}; expected {in_words(schema, self.schema)}"
        if kind == "unknown_type":
            text += _if_registered(node.place)
        if isinstance(node.value, str) and node.value.lower() in ("yes", "no", "on", "off"):
            return text + " (yes, no, on and off are text in YAML 1.2)"
        # 3.0 where an integer is expected: say so only if 3 would be accepted.
        whole = isinstance(node.value, float) and node.value.is_integer() and kind.startswith("int")
        if whole and is_within_bounds(node.value, schema, self.schema):
            return text + f"; write {int(node.value)}"
        if isinstance(node.value, int | float) and schema.get("type") == "string":
            return text + "; put it in quotes"
        near = difflib.get_close_matches(str(node.value), [str(choice) for choice in known], n=1)
        return text + (f"; did you mean {near[0]}?" if near else "")

    def _near_key(self, path: tuple[str | int, ...]) -> str:
        """``; did you mean …?``: a key of the same section, of another one, or a section's own keys."""
        *parent, wrong = path
        section = schema_at(self.schema, parent) or {}
        siblings = [name for part in _parts(section, self.schema) for name in part.get("properties", {})]
        prefix = ".".join(map(str, parent))
        spellings = [alias.removeprefix(f"{prefix}.") for alias in self.aliases if alias.rpartition(".")[0] == prefix]
        near = difflib.get_close_matches(str(wrong), [*siblings, *spellings], n=1, cutoff=0.7)
        if near:
            return f"; did you mean {near[0]}?"
        elsewhere = [name for name in _all_keys(self.schema, self.schema) if name.rpartition(".")[2] == wrong]
        if elsewhere:
            return f"; did you mean {min(elsewhere, key=len)}?"
        return f"; expected one of {', '.join(siblings)}" if siblings else ""


@functools.cache
def _make_schema(kind: SectionType) -> dict[str, Any]:
    return kind.model_json_schema()


def _leave_out(tree: Node, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Take a wrong value out and return where it was; an item goes with its whole list, so that places stay true."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    parent = find(tree, path[:-1]) if path else None
    if parent is not None:
        parent.value.pop(str(path[-1]), None)
        if path in (("model",), ("data",)):
            parent.value[path[0]] = Node({})
    return path


def _path_in(tree: Node, location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The part of pydantic's location that exists in the tree; the rest names alternatives of a union."""
    path: list[str | int] = []
    node: Node | None = tree
    for key in location:
        node = get_child(node, key) if node else None
        if node is None:
            break
        path.append(key)
    return tuple(path)


def _mentioned_key(section: Node, message: str) -> Node:
    """The first of the user's keys that a message about a section names, or the section."""
    words = message.replace("(", " ").replace(",", " ").split()
    for word in words:
        child = get_child(section, word) if section.is_mapping else None
        if child is not None and child.place is not None:
            return child
    return section


def _parts(schema: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    schema = resolved(schema, root)
    return [resolved(option, root) for option in schema["anyOf"]] if "anyOf" in schema else [schema]


def _all_keys(schema: dict[str, Any], root: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for part in _parts(schema, root):
        for name, below in part.get("properties", {}).items():
            yield prefix + name
            yield from _all_keys(below, root, f"{prefix}{name}.")


def sections_in(tree: Node, kind: SectionType, path: str = "") -> Iterator[tuple[str, Node, SectionType]]:
    """Every section of a tree with its dotted key and type, also those in lists and under names."""
    yield path, tree, kind
    for key, child in tree.value.items():
        annotation, name = get_annotation(kind, key), f"{path}.{key}".lstrip(".")
        inner, item = get_section(annotation), get_section(get_item_annotation(annotation))
        if inner is not None and child.is_mapping:
            yield from sections_in(child, inner, name)
        elif item is not None and isinstance(child.value, list):
            for index, node in enumerate(child.value):
                if node.is_mapping:
                    yield from sections_in(node, item, f"{name}.{index}")
        elif (named := get_section(get_value_annotation(annotation))) is not None and child.is_mapping:
            for own_name, node in child.value.items():
                if node.is_mapping:
                    yield from sections_in(node, named, f"{name}.{own_name}")


def options_of_other_types(tree: Node, kind: SectionType) -> list[Problem]:
    """Options the user gave to a section whose type does not read them.

    Runs of earlier versions kept some of these at their defaults, in their own configuration: they are left out.
    """
    problems = []
    for path, node, section in sections_in(tree, kind):
        section_type = find_type(node, section)
        if section_type not in own_types(section):
            continue
        for key, child in list(node.value.items()):
            if child.place is not None and child.value is not None and not applies(section, key, section_type):
                if _is_a_runs_default(child, section, key):
                    del node.value[key]
                    continue
                types = ", ".join(types_reading(section, key))
                message = f"is read by the type {types} only, and the type here is {section_type}"
                problems.append(Problem(child.place, f"{path}.{key}", message))
    return problems


def _is_a_runs_default(node: Node, section: SectionType, key: str) -> bool:
    """Return whether an option of a run's own configuration has the value that it has where nobody gives it."""
    if node.place is None or run_of_configuration(Path(node.place.file)) is None or key not in section.model_fields:
        return False
    value, default = to_plain(node), section.model_fields[key].get_default(call_default_factory=True)
    return bool(value == (list(default) if isinstance(default, tuple) else default))


def settle_components(
    tree: Node, kind: SectionType, folder: Path, short_names: Mapping[str, Mapping[str, str]]
) -> list[Problem]:
    """Rewrite classes in files so that they read from ``folder``; returns those that can't be found.

    ``short_names`` are those that may stand under each dotted key.
    What an open section holds for a user's class is moved to its ``options``.
    """
    problems = []
    for path, node, section in sections_in(tree, kind):
        reference = node.value.get("type")
        if not names_class(section) or reference is None or not isinstance(reference.value, str):
            continue
        # The option under which a component stands: a list's items share it.
        key = path.rstrip(".0123456789")
        key = key if key in short_names else key.rpartition(".")[0]
        by_class = {place.rpartition(":")[2]: name for name, place in short_names.get(key, {}).items()}
        if reference.value not in REGISTERED[key]:  # ``EarlyStoppingCallback`` by its short name
            reference.value = by_class.get(reference.value, reference.value)
        written_in = get_folder(reference.place) if reference.place else folder
        reference.value = seen_from(reference.value, written_in, folder)
        if issubclass(section, ExtensibleSection) and section.is_users(reference.value):
            _move_options(node, section)
            file = source_file(reference.value, folder) if section.by_whole_path else None
            if file is not None:
                reference.value = f"{file.absolute()}:{reference.value.rpartition(':')[2]}"
        message = what_is_missing(reference.value, folder)
        if is_component(section) and ":" not in reference.value:
            known = {**short_names.get(key, {}), **REGISTERED[key]}
            message = None
            if known and reference.value not in known:
                message = unknown_name(reference.value, known) + _if_registered(reference.place)
        if message:
            problems.append(Problem(reference.place, f"{path}.type", message))
    return problems


def _if_registered(place: YamlPlace | None) -> str:
    """Return what else may be wrong with an unknown name in a run's own configuration."""
    if place is None or run_of_configuration(Path(place.file)) is None:
        return ""
    return "; if the program that trained this run registered it, register it here, too, before opening the run"


def _move_options(node: Node, section: type[ExtensibleSection]) -> None:
    """Put the keys that Vaak doesn't read under ``options``, which may also have been given as a section.

    What was written once for several sections (``model.global_config``) is for those that aren't a user's.
    """
    options = node.value.get("options")
    if options is not None and not options.is_mapping:
        return
    own = {key: node.value.pop(key) for key in list(node.value) if key != "options" and not section.reads(key)}
    own = {key: child for key, child in own.items() if child.place is None or not child.place.key}
    if own:
        node.value["options"] = Node({**(options.value if options else {}), **own}, options.place if options else None)


def given_keys(tree: Node) -> set[str]:
    """The dotted keys that the user wrote, sections included."""
    return {".".join(path) for path, node in walk(tree) if node.place is not None}


OF_ONE_TASK = {
    "text to speech (task: tts)": ("data_dir", "n_encoder_layers", "n_decoder_layers"),
    "training on several tasks (task: multitask)": ("tasks", "loss_weights", "shared", "sampling"),
    "text classification (task: classification)": (
        *("model.architecture", "model.pretrained_model", "model.num_labels"),
        *("model.embed_size", "model.num_filters", "model.filter_sizes"),
        *("data.augmentation", *(f"data.augmentation.{name}" for name in ("enabled", "techniques", "probability"))),
    ),
}


def why_unknown(key: str) -> str | None:
    """Return the message about a dotted key that no section has, if an original system had it.

    >>> why_unknown("model.num_labels")
    'belongs to text classification (task: classification); leave it out'
    """
    for task, keys in OF_ONE_TASK.items():
        if key in keys:
            return f"belongs to {task}; leave it out"
    return None
