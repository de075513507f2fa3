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
from vaak.config.components import explain_missing, seen_from, source_file, unknown_name
from vaak.config.experiment import Experiment
from vaak.config.trust import find_owning_run
from vaak.config.yaml.fields import (
    SectionType,
    applies,
    choices,
    find_type,
    in_words,
    is_component,
    is_within_bounds,
    own_types,
    resolved,
    schema_at,
    types_reading,
)
from vaak.config.yaml.layers import get_folder
from vaak.config.yaml.tree import Placed, PlacedDict, Problem, YamlPlace, copy_tree, entries, find, put, take, walk

ShortNames = Mapping[str, Mapping[str, str]]
_MOST_ROUNDS = 4


def validate(
    tree: PlacedDict, kind: type[Experiment[Any, Any]], aliases: Collection[str], problems: list[Problem]
) -> Experiment[Any, Any] | None:
    """Return the experiment of a tree; every mistake in it is added to ``problems``.

    With mistakes, it is one in which they are left out, so that more can be checked, or None. ``aliases`` are known
    names for "did you mean".
    """
    mistakes = None
    for _ in range(_MOST_ROUNDS):
        try:
            # JSON, because strictness is right there: lists are tuples, but "3" is not a number and true is not 1.
            return kind.model_validate_json(json.dumps(tree), strict=True)
        except ValidationError as error:
            mistakes = mistakes or _Mistakes(tree, kind, aliases, problems)
            tree = mistakes.leave_out(error)
    return None


class _Mistakes:
    """Words pydantic's errors for one tree, and makes a copy without the invalid values."""

    def __init__(
        self,
        tree: PlacedDict,
        kind: type[Experiment[Any, Any]],
        aliases: Collection[str],
        problems: list[Problem],
    ) -> None:
        self.tree = tree
        self.rest: PlacedDict = copy_tree(tree)
        self.aliases = aliases
        self.schema = _make_schema(kind)
        self.problems = problems
        self._left_out: set[tuple[str | int, ...]] = set()

    def leave_out(self, error: ValidationError) -> PlacedDict:
        """Record the mistakes; return the tree without them."""
        seen = set()
        for detail in error.errors(include_url=False):
            path = _path_in(self.rest, detail["loc"])
            if path not in seen and tuple(detail["loc"]) not in self._left_out:
                seen.add(path)
                self.problems.append(self._problem(path, detail))
        for path in sorted(seen, key=lambda path: (len(path), str(path)), reverse=True):
            self._left_out.add(_leave_out(self.rest, path))
        return self.rest

    def _problem(self, path: tuple[str | int, ...], detail: Mapping[str, Any]) -> Problem:
        value, place = find(self.tree, path) or Placed(self.tree, self.tree.place)
        key = ".".join(map(str, path))
        kind = detail["type"]
        if kind == "extra_forbidden":
            return Problem(place, key, explain_unknown(key) or f"unknown key{self._near_key(path)}")
        if kind == "missing":
            wanted = detail["loc"][-1]
            schema = schema_at(self.schema, (*path, wanted))
            expected = in_words(schema, self.schema) if schema else "a value"
            return Problem(place, key, f"{wanted} is missing; expected {expected}")
        if kind == "value_error":
            message = str(detail["ctx"]["error"])
            return Problem(_find_mentioned(value, message) or place, key, message)
        return Problem(place, key, self._wrong_value(path, value, place, kind))

    def _wrong_value(self, path: tuple[str | int, ...], value: Any, place: YamlPlace | None, kind: str) -> str:
        schema = schema_at(self.schema, path) or {}
        if value is None and any(part.get("properties") for part in _parts(schema, self.schema)):
            return "is empty (null); expected a section of keys, or leave it out for the defaults"
        known = choices(schema, self.schema)
        shown = json.dumps(value, ensure_ascii=False)
        text = f"is {shown if len(shown) < 80 else shown[:77] + '...'}; expected {in_words(schema, self.schema)}"
        if kind == "unknown_type":
            text += _if_registered(place)
        if isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
            return text + " (yes, no, on and off are text in YAML 1.2)"
        # 3.0 where an integer is expected: say so only if 3 would be accepted.
        whole = isinstance(value, float) and value.is_integer() and kind.startswith("int")
        if whole and is_within_bounds(value, schema, self.schema):
            return text + f"; write {int(value)}"
        if isinstance(value, int | float) and schema.get("type") == "string":
            return text + "; put it in quotes"
        near = difflib.get_close_matches(str(value), [str(choice) for choice in known], n=1)
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


def _leave_out(tree: PlacedDict, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Take a wrong value out and return where it was; an item goes with its whole list, so that places stay true."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    parent = find(tree, path[:-1]) if path else None
    if parent is not None:
        parent.value.pop(str(path[-1]), None)
        if path in (("model",), ("data",)):
            parent.value[path[0]] = PlacedDict()
    return path


def _path_in(tree: PlacedDict, location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the part of pydantic's location that exists in the tree; the rest names alternatives of a union."""
    lengths = range(len(location), 0, -1)
    return next((location[:length] for length in lengths if find(tree, location[:length]) is not None), ())


def _find_mentioned(section: Any, message: str) -> YamlPlace | None:
    """Where the first of the user's keys that a message about a section names was written; None if it names none."""
    words = message.replace("(", " ").replace(",", " ").split()
    places = (section.places.get(word) for word in words if isinstance(section, PlacedDict) and word in section)
    return next((place for place in places if place is not None), None)


def _parts(schema: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    schema = resolved(schema, root)
    return [resolved(option, root) for option in schema["anyOf"]] if "anyOf" in schema else [schema]


def _all_keys(schema: dict[str, Any], root: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for part in _parts(schema, root):
        for name, below in part.get("properties", {}).items():
            yield prefix + name
            yield from _all_keys(below, root, f"{prefix}{name}.")


def find_options_of_other_types(path: tuple[str, ...], section: PlacedDict, kind: SectionType) -> Iterator[Problem]:
    """Yield the options the user gave to a section whose type does not read them.

    Runs of earlier versions kept some of these at their defaults, in their own configuration: they are left out.
    """
    section_type = find_type(section, kind)
    if section_type not in own_types(kind):
        return
    for key, (value, place) in [*entries(section)]:
        if place is None or value is None or applies(kind, key, section_type):
            continue
        if _is_a_runs_default(value, place, kind, key):
            take(section, (key,))
            continue
        types = ", ".join(types_reading(kind, key))
        message = f"is read by the type {types} only, and the type here is {section_type}"
        yield Problem(place, ".".join((*path, key)), message)


def _is_a_runs_default(value: Any, place: YamlPlace, section: SectionType, key: str) -> bool:
    """Return whether an option of a run's own configuration has the value that it has where nobody gives it."""
    if find_owning_run(Path(place.file)) is None or key not in section.model_fields:
        return False
    default = section.model_fields[key].get_default(call_default_factory=True)
    return bool(value == (list(default) if isinstance(default, tuple) else default))


def settle_component(
    path: tuple[str, ...], section: PlacedDict, kind: SectionType, folder: Path, short_names: ShortNames
) -> Problem | None:
    """Rewrite a class in a file so that it reads from ``folder``; returns what is wrong if it can't be found.

    ``short_names`` are those that may stand under each dotted key.
    What an open section holds for a user's class is moved to its ``options``.
    """
    reference, place = section.get("type"), section.places.get("type")
    if not isinstance(reference, str):
        return None
    # The option under which a component stands: a list's items share it.
    key = ".".join(path).rstrip(".0123456789")
    key = key if key in short_names else key.rpartition(".")[0]
    by_class = {one.rpartition(":")[2]: name for name, one in short_names.get(key, {}).items()}
    if reference not in REGISTERED[key]:
        # ``EarlyStoppingCallback`` by its short name.
        reference = by_class.get(reference, reference)
    reference = seen_from(reference, get_folder(place) if place else folder, folder)
    if issubclass(kind, ExtensibleSection) and kind.is_users(reference):
        _move_options(section, kind)
        file = source_file(reference, folder) if kind.by_whole_path else None
        if file is not None:
            reference = f"{file.absolute()}:{reference.rpartition(':')[2]}"
    section["type"] = reference
    message = explain_missing(reference, folder)
    if is_component(kind) and ":" not in reference:
        known = {**short_names.get(key, {}), **REGISTERED[key]}
        message = None
        if known and reference not in known:
            message = unknown_name(reference, known) + _if_registered(place)
    return Problem(place, ".".join((*path, "type")), message) if message else None


def _if_registered(place: YamlPlace | None) -> str:
    """Return what else may be wrong with an unknown name in a run's own configuration."""
    if place is None or find_owning_run(Path(place.file)) is None:
        return ""
    return "; if the program that trained this run registered it, register it here, too, before opening the run"


def _move_options(section: PlacedDict, kind: type[ExtensibleSection]) -> None:
    """Put the keys that Vaak doesn't read under ``options``, which may also have been given as a section.

    What was written once for several sections (``model.global_config``) is for those that aren't a user's.
    """
    options = section.get("options", PlacedDict())
    if not isinstance(options, PlacedDict):
        return
    for key in [key for key in section if key != "options" and not kind.reads(key)]:
        own = take(section, (key,))
        if own is not None and not (own.place and own.place.key):
            put(options, (key,), own)
            section.setdefault("options", options)


def given_keys(tree: PlacedDict) -> set[str]:
    """Return the dotted keys that the user wrote, sections included."""
    return {".".join(path) for path, one in walk(tree) if one.place is not None}


OF_ONE_TASK = {
    "text to speech (task: tts)": ("data_dir", "n_encoder_layers", "n_decoder_layers"),
    "training on several tasks (task: multitask)": ("tasks", "loss_weights", "shared", "sampling"),
    "text classification (task: classification)": (
        *("model.architecture", "model.pretrained_model", "model.num_labels"),
        *("model.embed_size", "model.num_filters", "model.filter_sizes"),
        *("data.augmentation", *(f"data.augmentation.{name}" for name in ("enabled", "techniques", "probability"))),
    ),
}


def explain_unknown(key: str) -> str | None:
    """Return the message about a dotted key that no section has, if an original system had it.

    >>> explain_unknown("model.num_labels")
    'belongs to text classification (task: classification); leave it out'
    """
    for task, keys in OF_ONE_TASK.items():
        if key in keys:
            return f"belongs to {task}; leave it out"
    return None
