"""The JSON Schema of a task's configuration, for editors: completion, descriptions and checks while typing."""

from __future__ import annotations

from typing import Any

from vaak.config.check.describe import resolved
from vaak.config.experiment import experiment_type
from vaak.config.fields import SectionType, annotation_of, bare_field, item_of, section_of
from vaak.config.tasks import spec_of


def json_schema(task: str) -> dict[str, Any]:
    """The schema of a YAML of this task; bare values stand where they may.

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
    """A section's type and those of all below it."""
    below = []
    for name in section.model_fields:
        annotation = annotation_of(section, name)
        inner = section_of(annotation) or section_of(item_of(annotation))
        if inner is not None:
            below += _sections(inner)
    return [section, *below]


def _allow_sections(schema: dict[str, Any], task: str) -> None:
    """Sections that stand for others hold what those do."""
    found = {
        section: {key: option for target in targets for key, option in _properties_at(schema, target).items()}
        for section, targets in spec_of(task).stand_ins.targets.items()
    }
    for section, options in found.items():
        parent, _, key = section.rpartition(".")
        words = f"Options of {' and '.join(spec_of(task).stand_ins.targets[section])}."
        closed = {"type": "object", "properties": options, "additionalProperties": False}
        _properties_at(schema, parent)[key] = {"description": words, **closed}


def _properties_at(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return _properties(schema, key.split(".")) or {}


def _allow_aliases(schema: dict[str, Any], task: str) -> None:
    """Aliases are valid wherever they stand, though not suggested."""
    from vaak.config.resolve.aliases import flat_names, option_aliases

    aliases = spec_of(task).aliases
    spellings = {
        **flat_names(experiment_type(task)),
        **option_aliases(aliases),
        **spec_of(task).stand_ins.aliases(aliases),
    }
    for alias, name in spellings.items():
        *parents, key = alias.split(".")
        properties = _properties(schema, parents)
        if properties is not None:
            properties.setdefault(key, {"description": f"Another name of {name}.", "deprecated": True})


def _properties(schema: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    """The properties of the section at a path; None for a section that exists under another spelling only."""
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
