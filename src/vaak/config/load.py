"""YAML files and ``key=value`` overrides in, one validated experiment out, or every mistake at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.config.catalog import TASKS, tasks_recognised
from vaak.config.check import limits
from vaak.config.check.validate import Validation, given_keys, options_of_other_types, settle_components
from vaak.config.components import did_you_mean
from vaak.config.experiment import Experiment, aliases_of, defaults_of, experiment_type, sides_of
from vaak.config.fields import SectionType, annotation_of, section_of
from vaak.config.resolve.aliases import canonical, option_aliases
from vaak.config.resolve.global_config import Sides, take_other_sides
from vaak.config.resolve.layers import read_layers
from vaak.config.resolve.merge import fill_items, merge_all
from vaak.config.resolve.run_files import run_of_configuration
from vaak.config.yaml.errors import ConfigError, Problem
from vaak.config.yaml.tree import Node, Place, find, from_plain, split_key, to_plain, walk

NOT_BUILT_YET = {
    "distillation": "distillation isn't built yet; leave the section out",
    "tasks": "training on several tasks isn't built yet; expected one task:",
}

IN_MEMORY = Place("set in Python")


@dataclass(frozen=True)
class Loaded:
    """A validated experiment, what there is to say about it, and what the user gave.

    ``folder`` is where ``./file.py:Name`` is looked for: that of the last file.
    """

    experiment: Experiment[Any, Any]
    warnings: list[str]
    given: set[str]
    folder: Path


def load(files: Sequence[Path | str], overrides: Sequence[str] = ()) -> Loaded:
    """The experiment that the files give, the later over the earlier, with ``key.path=value`` on top.

    Raises ConfigError with every mistake, one line each, before any data is read or torch is imported.
    """
    return _experiment_of(read_layers(files, overrides), Path(files[-1]))


def load_values(values: Sequence[Mapping[str, Any]], source: Path) -> Loaded:
    """The experiment that sections in memory give, the later over the earlier; ``source`` is the file they came from.

    The first holds what was resolved before: of its options, there is nothing to warn about.
    """
    places = [None, *[IN_MEMORY] * (len(values) - 1)]
    return _experiment_of([from_plain(dict(layer), place) for layer, place in zip(values, places, strict=True)], source)


def _experiment_of(layers: list[Node], source: Path) -> Loaded:
    """The experiment of layers, the lowest first; ``source`` is the file that the run and its folder are named by."""
    problems = _not_built_yet(layers)
    task = _task_of(layers, source, problems)
    tree, warnings = _merged(layers, task, problems)
    _name_run(tree, source)
    folder = run_of_configuration(source) or source.parent
    kind = experiment_type(task)
    problems += settle_components(tree, kind, folder)
    problems += options_of_other_types(tree, kind)
    validation = Validation(tree, kind, _other_names(task))
    experiment = validation.experiment()
    problems += validation.problems
    if experiment is not None and task is not None:
        problems += [_at(tree, key, reason) for key, reason in limits.impossible(experiment)]
        if not validation.problems:  # else it may be the default of what was left out for a mistake that excludes it
            problems += _of_those_given(limits.impossible_if_asked(experiment), tree)
    if problems or experiment is None:
        raise ConfigError(problems)
    given = given_keys(tree)
    warnings += _of_those_given((*limits.without_effect(experiment), *limits.remarks(experiment)), tree)
    return Loaded(experiment, list(dict.fromkeys(map(str, warnings))), given, folder)


def _not_built_yet(layers: list[Node]) -> list[Problem]:
    """Sections of the whole that have no meaning yet; they are taken out."""
    taken = [(key, layer.value.pop(key)) for layer in layers for key in NOT_BUILT_YET if key in layer.value]
    return [Problem(node.place, key, NOT_BUILT_YET[key]) for key, node in taken]


def _task_of(layers: list[Node], source: Path, problems: list[Problem]) -> str | None:
    """The task given last, or the only one that has keys of its own in the files; else None and a problem."""
    names = ", ".join(TASKS)
    given = [layer.value["task"] for layer in layers if "task" in layer.value]
    if given:
        task = to_plain(given[-1])
        if isinstance(task, str) and task in TASKS:
            return task
        hint = did_you_mean(task, TASKS)
        message = f"is {task!r}; expected one of the tasks built: {names}{hint}"
        problems.append(Problem(given[-1].place, "task", message))
        return None
    found = tasks_recognised({key for layer in layers for path, node in walk(layer) for key in _telling(path, node)})
    if len(found) == 1:
        return found[0]
    what = f"fits {' and '.join(found)}" if found else "is not given and can't be told from the sections"
    problems.append(Problem(Place(str(source)), "task", f"{what}; write task: with one of {names}"))
    return None


def _telling(path: tuple[str, ...], node: Node) -> tuple[str, str]:
    """What a task may be recognised by: a key, and a key with its value."""
    key = ".".join(path)
    return key, f"{key}={node.value}" if isinstance(node.value, str) else key


def _other_names(task: str | None) -> list[str]:
    """Every dotted key that is none of the types', but understood."""
    aliases, sides = (aliases_of(task), sides_of(task)) if task else ({}, Sides())
    return [*option_aliases(aliases), *sides.aliases(aliases), *sides.targets]


def _merged(layers: list[Node], task: str | None, problems: list[Problem]) -> tuple[Node, list[Problem]]:
    """All layers over the task's defaults, under canonical names, and what was dropped on the way."""
    kind = experiment_type(task)
    aliases, sides = (aliases_of(task), sides_of(task)) if task else ({}, Sides())
    problems += take_other_sides(layers, sides, _default_model_type(kind))
    known = []
    for layer in layers:
        tree, twice = canonical(layer, kind, aliases, sides)
        known.append(tree)
        problems += twice
    defaults = {"task": task or "", "model": {}, "data": {}, **(defaults_of(task) if task else {})}
    tree, dropped = merge_all([from_plain(defaults), *known], kind)
    tree.value["task"].value = task or ""
    return fill_items(tree, kind), dropped


def _default_model_type(kind: SectionType) -> str | None:
    model = section_of(annotation_of(kind, "model"))
    field = model.model_fields.get("model_type") if model else None
    return field.default if field else None


def _name_run(tree: Node, last_file: Path) -> None:
    """Give the run the name of its last file, and a folder of that name, where the user gave none.

    A run's own configuration means the directory that it lies in, wherever that was copied or moved.
    """
    name = tree.value.setdefault("name", Node(last_file.stem))
    run_dir = tree.value.setdefault("run_dir", Node(f"runs/{name.value}"))
    run = run_of_configuration(Path(run_dir.place.file)) if run_dir.place else None
    if run is not None:
        run_dir.value = str(run)


def _at(tree: Node, key: str, message: str) -> Problem:
    """A problem at the nearest place that the user wrote."""
    path = split_key(key)
    nodes = [find(tree, path[:length]) for length in range(len(path), -1, -1)]
    places = [node.place for node in nodes if node is not None and node.place is not None]
    return Problem(places[0] if places else None, key, message)


def _of_those_given(said: Iterable[tuple[str, str]], tree: Node) -> list[Problem]:
    """What is said of the keys that the user gave."""
    given = given_keys(tree)
    return [_at(tree, key, reason) for key, reason in said if key in given and _asks(tree, key)]


def _asks(tree: Node, key: str) -> bool:
    """Whether a warning is due: ``profiling: false`` and the like ask for nothing."""
    node = find(tree, split_key(key))
    return node is not None and node.value not in (None, False)
