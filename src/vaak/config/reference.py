"""Every option of a task, for readers: a YAML with comments, a JSON Schema, the table of docs/resuming.md."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from vaak.config.base import ResumeClass
from vaak.config.changes import Leaf, leaves
from vaak.config.checks import check_options
from vaak.config.experiment import experiment_type
from vaak.config.resolved import default_experiment
from vaak.config.tasks import TASKS, load_spec
from vaak.config.yaml.aliases import SectionShortcuts, flat_names, option_aliases
from vaak.config.yaml.fields import (
    SectionType,
    applies,
    bare_field,
    get_annotation,
    get_item_annotation,
    get_section,
    in_words,
    own_types,
    resolved,
    types_reading,
)
from vaak.config.yaml.text import entry_text

_WIDTH = 116
_OF_OTHER_TASKS = (dict[str, Any], tuple[Any, ...])
"""The types that global_config and datasets have in a task without audio."""
_HEAD = """\
Every option of the task {task}, with its default. Generated from the option types by
  vaak config show --all {task}
so edit those, not this text. Commented-out options are read only by the types named next to them, or belong to a
section that is off by default. Other names without a dot go at the top level; those of the training loop also in
training:.
"""


def all_options(task: str) -> str:
    """Return a YAML that loads, with every option; those that can't apply with the defaults are commented out."""
    kind = experiment_type(task)
    untouched = default_experiment(task, "all_options", "runs/all_options")
    head = "".join(f"# {line}\n" for line in _HEAD.format(task=task).splitlines())
    unread = {found.key: found.message for found in check_options(untouched) if found.kind == "no effect"}
    writer = _Writer(kind.model_json_schema(), unread, other_names(task), load_spec(task).stand_ins)
    return head + "\n" + writer.section(kind, untouched)


def other_names(task: str) -> dict[str, list[str]]:
    """The aliases of each option by its dotted name; one that may stand in its section or flat is listed flat."""
    aliases = option_aliases(load_spec(task).aliases)
    names: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        if alias.partition(".")[2] not in aliases:
            names.setdefault(name.rstrip(".0123456789"), []).append(alias)
    return names


class _Writer:
    """Writes sections with a comment above each option; ``unread`` has the options that do nothing by default."""

    def __init__(
        self, schema: dict[str, Any], unread: dict[str, str], names: dict[str, list[str]], sides: SectionShortcuts
    ) -> None:
        self.schema = schema
        self.unread = unread
        self.names = names
        self.sides = sides

    def section(self, section: SectionType, values: BaseModel | None, path: str = "", indent: int = 0) -> str:
        """Return all options of a section, with its values, or else with the types' defaults."""
        names = [name for name, field in section.model_fields.items() if field.annotation not in _OF_OTHER_TASKS]
        entries = []
        for shared, targets in self.sides.shared.items():
            parent, _, name = shared.rpartition(".")
            # A section that stands for others is empty: its options are shown at those.
            if parent == path:
                words = f"Any option of {' and '.join(targets)}, used where the same file doesn't give it there."
                entries.append(_comment(words, indent) + f"{' ' * indent}{name}: {{}}\n")
        entries += [self._option(section, name, values, f"{path}.{name}".lstrip("."), indent) for name in names]
        return ("" if path else "\n").join(entries)

    def _option(self, section: SectionType, name: str, values: BaseModel | None, path: str, indent: int) -> str:
        """Return the YAML of one option: a comment with its description, then its value, indented by ``indent`` spaces.

        ``name`` is an option of ``section`` at ``path``; ``values`` has its value, None for a section that is off by
        default: then the default of the option.
        """
        field = section.model_fields[name]
        value = getattr(values, name) if values is not None else "..." if field.is_required() else field.default
        inner, item = get_section(field.annotation), get_section(get_item_annotation(field.annotation))
        if inner is not None and isinstance(value, BaseModel):
            note = field.description or ""
            body = self.section(inner, value, path, indent + 2)
            is_empty = all(line.lstrip().startswith("#") for line in body.splitlines())
            entry = f"{' ' * indent}{'# ' * is_empty}{name}:\n{body}"
        else:
            note = self._words(section, name, path)
            entry = entry_text(name, _plain(value), indent)
        read = values is None or applies(section, name, getattr(values, "type", None))
        if path in self.unread and value not in (None, False):
            read, note = False, f"{note} Not here: {self.unread[path]}."
        text = _comment(note, indent) + (entry if read else _comment_out(entry, indent))
        if inner is not None and value is None:
            body = self.section(inner, None, path, indent + 2)
            text += _comment_out(f"{' ' * indent}{name}:\n{body}", indent)
        # As one item of a list: its first option gets the dash, with the comment above that.
        if item is not None:
            margin, lines = " " * (indent + 2), self.section(item, None, path, indent + 4).splitlines()
            first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
            above = [f"{margin}{line.lstrip()}" for line in lines[:first]]
            body = "\n".join([*above, f"{margin}- {lines[first].lstrip()}", *lines[first + 1 :]]) + "\n"
            text += _comment_out(f"{' ' * indent}{name}:\n{body}", indent)
        return text

    def _words(self, section: SectionType, name: str, path: str) -> str:
        """Return the option's description, accepted values, the types that read it, and its aliases."""
        field = section.model_fields[name]
        definition = self.schema["$defs"].get(section.__name__) or resolved(self.schema, self.schema)
        properties = definition["properties"][name]
        kind = get_section(field.annotation) or get_section(get_item_annotation(field.annotation))
        takes = "" if kind else f" Takes {in_words(properties, self.schema)}."
        reading = types_reading(section, name)
        # Where all types read it, none is named.
        types = "" if {*own_types(section)} <= {*reading} else ", ".join(reading)
        others = ", ".join(self.names.get(path, ()))
        return (
            f"{field.description}{takes}"
            + (f" Read by {types}." if types else "")
            + (f" Other names: {others}." if others else "")
        )


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | dict | None) else str(value)


def _comment(text: str, indent: int) -> str:
    lines = textwrap.wrap(text, _WIDTH - indent, break_on_hyphens=False, break_long_words=False)
    return "".join(f"{' ' * indent}# {line}\n" for line in lines)


def _comment_out(text: str, indent: int) -> str:
    return "".join(f"{' ' * indent}# {line[indent:]}\n" for line in text.splitlines())


def schema_file(task: str) -> Path:
    """Return where the schema of one of Vaak's tasks is, in a checkout and in an installed Vaak."""
    return Path(__file__).resolve().parents[1] / "schemas" / f"{task}.json"


def schema_text(task: str) -> str:
    """Return the schema of a task as JSON, with a line for each definition."""
    schema = json_schema(task)
    definitions = schema.pop("$defs")
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in definitions.items()
    )
    own = ",\n".join(f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in schema.items())
    return f'{{{own},\n"$defs": {{\n{lines}\n}}}}'


def json_schema(task: str) -> dict[str, Any]:
    """Return the schema of a YAML of this task; bare values stand where they may.

    Nothing is required, since files extend each other.
    """
    kind = experiment_type(task)
    schema = kind.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"Vaak: {task}"
    schema.pop("required", None)
    schema["properties"]["task"]["const"] = task
    schema["properties"]["extends"] = {"description": "A YAML file that this one extends.", "type": ["string", "array"]}
    sections = {section.__name__: section for section in _sections(kind)}
    for name, definition in schema["$defs"].items():
        definition.pop("required", None)
        bare = bare_field(sections[name]) if name in sections else None
        if bare:
            schema["$defs"][name] = {"anyOf": [definition, definition["properties"][bare]]}
    _allow_sections(schema, task)
    _allow_aliases(schema, task)
    return schema


def _sections(section: SectionType) -> list[SectionType]:
    """Return a section's type and those of all below it."""
    below = []
    for name in section.model_fields:
        annotation = get_annotation(section, name)
        inner = get_section(annotation) or get_section(get_item_annotation(annotation))
        if inner is not None:
            below += _sections(inner)
    return [section, *below]


def _allow_sections(schema: dict[str, Any], task: str) -> None:
    """Sections that stand for others hold what those do."""
    found = {
        section: {key: option for target in targets for key, option in _properties_at(schema, target).items()}
        for section, targets in load_spec(task).stand_ins.targets.items()
    }
    for section, options in found.items():
        parent, _, key = section.rpartition(".")
        words = f"Options of {' and '.join(load_spec(task).stand_ins.targets[section])}."
        closed = {"type": "object", "properties": options, "additionalProperties": False}
        _properties_at(schema, parent)[key] = {"description": words, **closed}


def _properties_at(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return _properties(schema, key.split(".")) or {}


def _allow_aliases(schema: dict[str, Any], task: str) -> None:
    """Aliases are valid wherever they stand, though not suggested."""
    aliases = load_spec(task).aliases
    spellings = {
        **flat_names(experiment_type(task)),
        **option_aliases(aliases),
        **load_spec(task).stand_ins.aliases(aliases),
    }
    for alias, name in spellings.items():
        *parents, key = alias.split(".")
        properties = _properties(schema, parents)
        if properties is not None:
            properties.setdefault(key, {"description": f"Another name of {name}.", "deprecated": True})


def _properties(schema: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    """Return the properties of the section at a path; None for a section that exists under another spelling only."""
    here = schema
    for key in path:
        below = here["properties"].get(key)
        if below is None:
            return None
        here = resolved(below, schema)
        here = next((part for part in here.get("anyOf", ()) if "properties" in part), here)
        if "properties" not in here:
            return None
    properties: dict[str, Any] = here["properties"]
    return properties


TOP = "top level"
SWITCHED = "\\*"
"""Marks an option that has another class where it changes between null or 0 and a value."""
_PAGE_HEAD = "| section | class | options |\n|---|---|---|\n"


def resume_page() -> str:
    """Return the options that all tasks have, then those of each task: a row for each class of a section.

    Raises ValueError where an option has no class.
    """
    of_task = {task: {leaf.key: leaf for leaf in leaves(task)} for task in TASKS}
    shared = set.intersection(*(set(options) for options in of_task.values()))
    first = next(iter(of_task.values()))
    parts = ["### All tasks\n\n" + _PAGE_HEAD + _rows(leaf for key, leaf in first.items() if key in shared)]
    for task, options in of_task.items():
        own = _rows(leaf for key, leaf in options.items() if key not in shared)
        parts.append(f"### {task}\n\n{_PAGE_HEAD}{own}")
    return "\n".join(parts)


def _rows(options: Iterable[Leaf]) -> str:
    rows: dict[tuple[str, ResumeClass], list[str]] = {}
    for leaf in options:
        if leaf.rule is None:
            raise ValueError(f"{leaf.key} has no class: give it resume=, or its section a resume_class")
        section, _, name = leaf.key.rpartition(".")
        mark = SWITCHED if leaf.rule.switch != leaf.rule.always else ""
        rows.setdefault((section, leaf.rule.always), []).append(f"`{name}`{mark}")
    order = get_args(ResumeClass)
    sections = list(dict.fromkeys(section for section, _ in rows))
    ranked = sorted(rows, key=lambda row: (sections.index(row[0]), order.index(row[1])))
    return "".join(
        f"| {f'`{section}`' if section else TOP} | {kind} | {', '.join(rows[section, kind])} |\n"
        for section, kind in ranked
    )
