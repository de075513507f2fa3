"""Changes that a resume may make: the class of every option, and how two configurations of a run differ.

An option's declaration names its class: ``option(..., resume="free")``, or ``resume_class`` of its section
(``vaak.config.base``). docs/resuming.md explains the classes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from vaak.config.base import ResumeClass
from vaak.config.components import without_folder
from vaak.config.experiment import experiment_type
from vaak.config.resolved import default_experiment
from vaak.config.tasks import load_spec, value_at
from vaak.config.yaml.fields import (
    SectionType,
    applies,
    get_item_annotation,
    get_section,
    is_component,
    is_users_type,
    names_class,
    types_reading,
)
from vaak.config.yaml.text import flow_text
from vaak.config.yaml.tree import split_key
from vaak.core.secrets import mask

NOT_GIVEN = "not given"
"""Stands for a value where a side has none and no default is known: an option of a user's class, or a removed one."""

_LONGEST_VALUE = 100
_UNKNOWN: ResumeClass = "other numbers"
"""The class of an option that this version no longer has: the resume reports it and continues."""
EQUAL_VALUES = {"training.distributed.strategy": {"ddp", "zero1"}}
"""Values of an option that give the same bits: a change from one to another of them is free."""
LEFT_OPEN = {"data.features_on": "auto"}
"""Values with which a run that is resumed keeps what it began with (``TaskSpec.settles``)."""


class Rule(NamedTuple):
    """The class of an option; ``switch`` is that of a change from null or 0 to a value, or back."""

    always: ResumeClass
    switch: ResumeClass

    def of(self, before: Any, after: Any) -> ResumeClass:
        """Return the class of one change."""
        return self.switch if _is_off(before) != _is_off(after) else self.always


class Leaf(NamedTuple):
    """An option that isn't a section; in its key, N is the index in a list."""

    key: str
    option: FieldInfo
    rule: Rule | None


@dataclass(frozen=True)
class Change:
    """An option whose value differs between two configurations of a run; a missing one has its default.

    >>> print(Change("model.d_model", 32, 64, "refused"))
    model.d_model was 32, is 64
    """

    key: str
    before: Any = field(hash=False)
    after: Any = field(hash=False)
    resume_class: ResumeClass

    def __str__(self) -> str:
        return f"{self.key} was {format_value(self.before)}, is {format_value(self.after)}"


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any], reference: str | None = None) -> list[Change]:
    """Return all changes from the resolved values of one session (``vaak.config.resolved``) to those of another.

    They come in the order of the options. Sections that one side has not, and lists of another length, are one change
    as a whole. Paths that moved together with the run are the same. ``before`` may have been written by an earlier
    version: missing options have what the task says of them (``TaskSpec.newer``), or their defaults, and options that
    have been removed are reported. With another task, only the task can be compared. ``reference`` is that of a task of
    the user's own (``Experiment.reference``).
    """
    before, after = mask(before), mask(after)
    task = reference or after["task"]
    # A user's own file is copied to RUN/code, so only the names of file and class count.
    if Path(before.get("task", task)).name != Path(task).name:
        return [Change("task", before["task"], after["task"], "refused")]
    untouched = default_experiment(task, after["name"], after["run_dir"])
    was, now = str(before.get("run_dir", after["run_dir"])), str(after["run_dir"])
    changes: list[Change] = []
    before = _with_newer_options({**before, "task": after["task"]}, task, after)
    for key, old, new in _differences(type(untouched), before, after, untouched):
        if _are_experiments(old) and _are_experiments(new) and old.keys() == new.keys():
            for name in old:
                names: dict[str, Any] = {"name": "inner"}
                inner = changes_between({**names, "run_dir": was, **old[name]}, {**names, "run_dir": now, **new[name]})
                changes += [replace(one, key=f"{key}.{name}.{one.key}") for one in inner if one.key != "run_dir"]
        elif key == "run_dir" or not moved_together(old, new, was, now):
            try:
                kind = get_rule(task, key).of(old, new)
            except KeyError:
                kind = _UNKNOWN
            alike = key in EQUAL_VALUES and {old, new} <= EQUAL_VALUES[key]
            changes.append(Change(key, old, new, "free" if alike else kind))
    return changes


def _with_newer_options(values: dict[str, Any], task: str, after: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run, with those of options that came after it was begun, unless ``after`` leaves them open."""

    def get(key: str) -> Any:
        found: Any = values
        for part in split_key(key):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    for key, value in load_spec(task).newer(get).items():
        section, _, name = key.rpartition(".")
        if isinstance(get(section), Mapping) and name not in get(section):
            left_open = key in LEFT_OPEN and value_at(after, key) == LEFT_OPEN[key]
            values = _with_value(values, split_key(key), LEFT_OPEN[key] if left_open else value)
    return values


def _with_value(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a copy of nested values that has another one at a path."""
    name, *rest = path
    return {**values, name: _with_value(values[name], tuple(rest), value) if rest else value}


def _are_experiments(value: Any) -> bool:
    """Return whether a value is inner experiments by name (``vaak.config.inner``)."""
    return isinstance(value, dict) and all(isinstance(one, dict) and "task" in one for one in value.values())


def of_class(changes: Iterable[Change], resume_class: ResumeClass) -> list[Change]:
    """Return the changes of one class."""
    return [change for change in changes if change.resume_class == resume_class]


def resume_class(task: str, key: str) -> ResumeClass:
    """The class of an option, a section or an item of a list; below plain values, that of the option that holds them.

    >>> resume_class("lm", "training.optimizer.lr"), resume_class("lm", "training.callbacks.0.every")
    ('other numbers', 'other numbers')

    Raises KeyError if the task has no such option.
    """
    return get_rule(task, key).always


def get_rule(task: str, key: str) -> Rule:
    """The class of an option for each kind of change. Raises KeyError for an unknown option, or one without a class."""
    annotation: Any = experiment_type(task)
    rule: Rule | None = None
    for part in split_key(key):
        section = get_section(annotation)
        if section is not None and part in section.model_fields:
            rule = _declared_rule(section, section.model_fields[part]) or (rule if is_component(section) else None)
            annotation = section.model_fields[part].annotation
        elif section is None and get_item_annotation(annotation) is not None:
            annotation = get_item_annotation(annotation)
        elif section is not None and names_class(section):
            rule, annotation = _get_section_rule(section) or rule, Any
        elif section is not None:
            raise KeyError(key)
    inner = get_section(annotation) or get_section(get_item_annotation(annotation))
    rule = rule or (_get_section_rule(inner) if inner is not None else None)
    if rule is None:
        raise KeyError(key)
    return rule


def leaves(task: str) -> Iterator[Leaf]:
    """Return every option of a task; those of audio only where the task has it."""
    kind = experiment_type(task)
    audio = () if load_spec(task).audio else ("global_config", "datasets")
    return (leaf for leaf in _leaves(kind) if leaf.key not in audio)


def _leaves(section: SectionType, path: str = "", holder: Rule | None = None) -> Iterator[Leaf]:
    """Yield every option below a section; ``holder`` is the rule of the option whose class the section names."""
    for name, option in section.model_fields.items():
        key, rule = f"{path}.{name}".lstrip("."), _declared_rule(section, option) or holder
        inner, item = get_section(option.annotation), get_section(get_item_annotation(option.annotation))
        below = inner or item
        if below is None:
            yield Leaf(key, option, rule)
        else:
            yield from _leaves(below, key if inner else f"{key}.N", rule if is_component(below) else None)


def _declared_rule(section: SectionType, option: FieldInfo) -> Rule | None:
    """Return the option's own class, or else that of its section."""
    extra = cast("dict[str, Any]", option.json_schema_extra) or {}
    always = extra.get("resume") or getattr(section, "resume_class", None)
    return Rule(always, extra.get("resume_switch", always)) if always else None


def _get_section_rule(section: SectionType) -> Rule | None:
    always = getattr(section, "resume_class", None)
    return Rule(always, always) if always else None


def _differences(
    section: SectionType, before: Mapping[str, Any], after: Mapping[str, Any], untouched: Any, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, value before and value after of each difference; ``untouched`` is the section with nothing given.

    ``before`` and ``after`` are its values, at ``path``.
    """
    names = dict.fromkeys((*section.model_fields, *after, *before))
    types = [_value(section, values, "type", untouched) for values in (before, after)]
    if is_component(section) and not _same_class(*types):
        yield f"{path}.type", *types
        return
    for name in names:
        if names_class(section) and name == "type" and _same_class(*types):
            continue
        is_users = all(is_users_type(section, one) for one in types) and name != "options"
        # The default that a user's class has for it isn't known, so only given values are compared.
        if is_users and types_reading(section, name):
            old, new = (values.get(name, NOT_GIVEN) for values in (before, after))
        elif all(applies(section, name, one) for one in types):
            old, new = (_value(section, values, name, untouched) for values in (before, after))
        else:
            continue
        if _without_folders(old) == _without_folders(new):
            continue
        known = section.model_fields.get(name)
        key, annotation = f"{path}.{name}".lstrip("."), known.annotation if known else Any
        yield from _differences_below(annotation, key, old, new, getattr(untouched, name, None))


def _differences_below(annotation: Any, key: str, old: Any, new: Any, untouched: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two values that aren't equal: inside of sections, else the values themselves.

    ``annotation`` is the type of the option ``key``, ``old`` and ``new`` are its values, and ``untouched`` is its value
    where nothing is given.
    """
    inner, item = get_section(annotation), get_section(get_item_annotation(annotation))
    if inner is not None and isinstance(old, dict) and isinstance(new, dict):
        yield from _differences(inner, old, new, untouched, key)
    elif item is not None and _are_sections(old) and _are_sections(new) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(item, one, other, None, f"{key}.{number}")
    else:
        yield key, old, new


def _value(section: SectionType, values: Mapping[str, Any], name: str, untouched: Any) -> Any:
    """Return a section's value under a name, or its default; a section that is left out has no values."""
    if name in values:
        return values[name]
    known = section.model_fields.get(name)
    if untouched is not None and hasattr(untouched, name):
        default = getattr(untouched, name)
    elif known is None or known.is_required():
        return NOT_GIVEN
    else:
        default = known.get_default(call_default_factory=True)
    return {} if isinstance(default, BaseModel) and not is_component(type(default)) else to_jsonable_python(default)


def _same_class(one: Any, other: Any) -> bool:
    """Return whether two references name the same class: a run keeps a copy of a user's file in another folder."""
    return bool(without_folder(one) == without_folder(other))


def _without_folders(value: Any) -> Any:
    """Return a value with the classes that its sections name as ``_same_class`` compares them."""
    if not isinstance(value, dict):
        return value
    return {key: without_folder(one) if key == "type" else _without_folders(one) for key, one in value.items()}


def _are_sections(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_off(value: Any) -> bool:
    return value is None or value == 0


def format_value(value: Any) -> str:
    """Return a value as YAML has it, cut where it is long."""
    text = value if value == NOT_GIVEN else flow_text(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def moved_together(before: Any, after: Any, was: str, now: str) -> bool:
    """Whether JSON values are equal but for paths that moved together with a folder, which ``was`` and is ``now``.

    >>> moved_together({"base": "old/base", "type": "a"}, {"base": "new/base", "type": "a"}, "old/run", "new/run")
    True
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(
            moved_together(value, after[name], was, now) for name, value in before.items()
        )
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return all(moved_together(one, other, was, now) for one, other in zip(before, after, strict=True))
    are_paths = all(isinstance(value, str) and os.sep in value for value in (before, after))
    return before == after or (are_paths and os.path.relpath(before, was) == os.path.relpath(after, now))
