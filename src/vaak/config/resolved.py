"""A configuration as the YAML that repeats it: every option that applies, with its value."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from vaak.config.base import ExtensibleSection
from vaak.config.checks import check_options
from vaak.config.experiment import Experiment, experiment_type
from vaak.config.tasks import load_spec
from vaak.config.yaml.fields import applies, is_users_type
from vaak.config.yaml.layers import merge_all
from vaak.config.yaml.text import yaml_text
from vaak.config.yaml.tree import place_all
from vaak.core.secrets import refer


def as_yaml(experiment: Experiment[Any, Any]) -> str:
    """The whole configuration; loading this text gives an equal experiment, where its secrets are in the environment.

    Options that can't apply (another optimizer's, another task's) are omitted where they have their defaults.
    """
    return yaml_text(resolved_values(experiment))


def resolved_values(experiment: Experiment[Any, Any], *, with_secrets: bool = False) -> dict[str, Any]:
    """Return the values that ``as_yaml`` writes; without ``with_secrets``, secrets are replaced by references."""
    untouched = default_experiment(experiment.reference, experiment.name, str(experiment.run_dir))
    values = _values(experiment, untouched)
    for found in check_options(experiment):
        if found.kind != "impossible":
            _drop_default(values, untouched, found.key.split("."))
    for key in ("global_config", "datasets"):
        if not values[key]:
            del values[key]
    return values if with_secrets else refer(values)


def default_experiment(task: str, name: str, run_dir: str) -> Experiment[Any, Any]:
    """Return a task's experiment with all defaults, given only the name and the run directory."""
    layers = [
        {"model": {}, "data": {}},
        dict(load_spec(task).defaults),
        {"task": task, "name": name, "run_dir": run_dir},
    ]
    kind = experiment_type(task)
    tree, _ = merge_all(map(place_all, layers), kind)
    return kind.model_validate(tree)


def _values(section: BaseModel, untouched: Any) -> dict[str, Any]:
    """A section's options, without those of other types that nobody set; a user's class has none of Vaak's types."""
    section_type = getattr(section, "type", None)
    is_users = is_users_type(type(section), section_type)
    values = {}
    for name in (*type(section).model_fields, *(section.model_extra or {})):
        value, field = getattr(section, name), type(section).model_fields.get(name)
        default = getattr(untouched, name, None)
        if default is None and not hasattr(untouched, name) and field is not None and not field.is_required():
            # It may be missing in a section of a list, where nobody gave it.
            default = field.get_default(call_default_factory=True)
        unused = value == default or (is_users and name != "options")
        if unused and not applies(type(section), name, section_type):
            continue
        values[name] = _plain(value, default)
    if isinstance(section, ExtensibleSection):
        values |= values.pop("options", {})
    return values


def _plain(value: Any, default: Any) -> Any:
    if isinstance(value, BaseModel):
        return _values(value, default)
    if isinstance(value, list | tuple):
        return [_plain(item, None) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, None) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _drop_default(values: dict[str, Any], untouched: Any, path: list[str]) -> None:
    """Leave an option out if it has its default; a section that is off by default stays whole."""
    key, rest = path[0], path[1:]
    if key not in values or untouched is None:
        return
    default = getattr(untouched, key)
    if rest:
        _drop_default(values[key], default, rest)
    elif values[key] == _plain(default, default):
        del values[key]
