"""The task of a configuration: the one that it names, or the only one that its keys belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from vaak.config.components import did_you_mean, explain_missing, find_code, is_vaaks_task, seen_from, source_file
from vaak.config.experiment import experiment_type
from vaak.config.tasks import TASKS, TaskSpec, installed, load_spec, tasks_recognised
from vaak.config.trust import decide, find_owning_run
from vaak.config.yaml.fields import get_annotation, get_section
from vaak.config.yaml.layers import get_folder
from vaak.config.yaml.named_code import find_doubt
from vaak.config.yaml.tree import ConfigError, Placed, PlacedDict, Problem, YamlPlace, find, split_key, take, walk
from vaak.core.errors import UserError


@dataclass(frozen=True)
class ChosenTask:
    """A task's name as written, an absolute reference to it (None if it wasn't found), and its spec."""

    written: str = ""
    reference: str | None = None

    @property
    def spec(self) -> TaskSpec:
        return load_spec(self.reference) if self.reference else TaskSpec()


def find_task(
    layers: list[PlacedDict], source: Path, folder: Path, problems: list[Problem], trust_code: bool
) -> ChosenTask:
    """Find the task: the one that is given last, or else the only one that the keys in the files belong to.

    Without one, the result is an empty task, and a problem is added that names the file ``source``. A user's
    ``./file.py`` is looked for in ``folder``; if a run brings it along, it is executed only with ``trust_code``.
    """
    given = [one for layer in layers if (one := find(layer, ("task",))) is not None]
    if given:
        task, place = given[-1]
        if isinstance(task, str) and task in TASKS:
            return ChosenTask(task, task)
        if isinstance(task, str) and task in installed():
            # An installed task that isn't in TASKS can't be imported; load_spec raises the reason.
            try:
                load_spec(task)
            except UserError as error:
                problems.append(Problem(place, "task", str(error)))
                return ChosenTask()
        if isinstance(task, str) and ":" in task:
            return _load_users_task(task, place, folder, problems, trust_code)
        problems.append(Problem(place, "task", _describe_unknown_task(task, place)))
        return ChosenTask()
    # A task may be recognised by its keys, or by a key together with its value.
    keys = set()
    for path, (value, _) in (one for layer in layers for one in walk(layer)):
        keys.add(".".join(path))
        if isinstance(value, str):
            keys.add(f"{'.'.join(path)}={value}")
    found = tasks_recognised(keys)
    if len(found) == 1:
        return ChosenTask(found[0], found[0])
    what = f"fits {' and '.join(found)}" if found else "is not given and can't be inferred from the sections"
    problems.append(Problem(YamlPlace(str(source)), "task", f"{what}; write task: with one of {', '.join(TASKS)}"))
    return ChosenTask()


def _load_users_task(
    task: str, place: YamlPlace | None, folder: Path, problems: list[Problem], trust_code: bool
) -> ChosenTask:
    """Load a user's task, which imports its class; paths of files are relative to ``folder``.

    Mistakes are added to ``problems``. Raises ConfigError for code that isn't trusted.
    """
    written = seen_from(task, get_folder(place) if place else folder, folder)
    if message := explain_missing(written, folder):
        problems.append(Problem(place, "task", message))
        return ChosenTask()
    source = source_file(written, folder)
    # Judged before load_spec, which imports the file.
    doubt = None if trust_code or is_vaaks_task(written) else find_doubt(place, source)
    decide(find_code(written, folder), doubt)
    if doubt is not None:
        message = f"names code that is executed to read this configuration: {written}; read it, and add --trust-code"
        raise ConfigError([Problem(place, "task", f"{message} ({doubt})")])
    reference = written if source is None else f"{source.absolute()}:{written.rpartition(':')[2]}"
    try:
        load_spec(reference)
    except UserError as error:
        problems.append(Problem(place, "task", str(error)))
        return ChosenTask()
    return ChosenTask(written, reference)


def _describe_unknown_task(task: Any, place: YamlPlace | None) -> str:
    """Return the message about a task that doesn't exist, or that only another program defines."""
    run = find_owning_run(Path(place.file)) if place else None
    if run is not None:
        return (
            f"is {task}, which only the Python program that trained this run defines; there, "
            f"vaak.open({str(run)!r}, task=...) opens it"
        )
    hint = did_you_mean(task, TASKS)
    return f"is {task!r}; expected one of {', '.join(TASKS)}, ./file.py:Name or package.module:Name{hint}"


def find_model_type(reference: str | None) -> FieldInfo | None:
    """Return the field ``model.model_type`` of a task; None if it doesn't have one."""
    model = get_section(get_annotation(experiment_type(reference), "model"))
    return model.model_fields.get("model_type") if model else None


def require_model_of_task(given: Placed | None, task: ChosenTask) -> None:
    """Raise ConfigError if the model belongs to another task; other mistakes would only follow from that one."""
    field = find_model_type(task.reference)
    if field is None or given is None or given.value in (types := get_args(field.annotation)):
        return
    having = {name: get_args(other.annotation) for name in TASKS if (other := find_model_type(name))}
    others = [name for name, known in having.items() if given.value in known]
    if others:
        sections = [side for side in ("encoder", "decoder") if side not in types and side in str(given.value)]
        leave = f" and leave out model.{sections[0]}" if sections else ""
        raise ConfigError(
            [
                Problem(
                    given.place,
                    "model.model_type",
                    f"is {given.value}, which only the task {' and '.join(others)} has; the task {task.written} has "
                    f"{' and '.join(types)}: write model_type: {types[0]}{leave}",
                )
            ]
        )


def drop_options_of_other_tasks(layer: PlacedDict, task: ChosenTask) -> list[Problem]:
    """Remove options of ``training`` that only other tasks have, so that tasks can share files; return warnings."""
    found = []
    training = layer.get("training")
    keys = {*layer, *(training if isinstance(training, dict) else ())}
    unknown = keys - set(task.spec.training.model_fields) - set(experiment_type(task.reference).model_fields)
    # Specs of other tasks are imported only if the file has unknown options.
    for other, spec in TASKS.items() if unknown else ():
        for name in set(spec.training.model_fields) - set(task.spec.training.model_fields):
            for key in (name, f"training.{name}"):
                given = take(layer, split_key(key))
                if task.reference and given is not None and given.value not in (None, False):
                    message = f"options of {other}; the task {task.written} does not read them"
                    found.append(Problem(given.place, f"training.{name}", message))
    return found
