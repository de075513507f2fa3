"""How a trained run is used: predictions, the command lines to try on it, and the formats that it can be exported in.

A task's spec declares both (``TaskSpec.commands``, ``TaskSpec.exports``). Which formats a run of it can't have may
depend on what it was prepared with, so a session writes down those that are left, and a page needs no torch.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.tasks import TASKS, ExportFormat, TaskSpec, has_value, value_at
from vaak.core.errors import UserError
from vaak.core.names import nearest_name, require_known
from vaak.core.task import Task

log = logging.getLogger("vaak")
FORMATS = "exports"
"""The key under which a session writes down the formats that its run can be exported in."""
RUN = "{run}"
EVAL = f"eval {RUN}"
FORMAT_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def available_formats(task: Task) -> list[str]:
    """Return the formats that a task writes this run in, as its spec orders them."""
    refused = task.refused_exports()
    return [name for name in declared_formats(task) if name not in refused]


def usable_formats(task: Task) -> list[str]:
    """Return those of ``available_formats`` that other software runs a model from."""
    declared = declared_formats(task)
    return [name for name in available_formats(task) if not declared[name].is_weights_alone]


def formats_to_record(task: Task) -> list[str]:
    """Return the ``usable_formats`` for the run's folder; none, with a warning, where a task fails to say."""
    try:
        return usable_formats(task)
    except Exception as error:
        # The code of a user's task must not end its training.
        log.warning("which formats this run can be exported in isn't known: %s: %s", type(error).__name__, error)
        return []


def require_format(task: Task, name: str) -> None:
    """Raises UserError, with the reason and what to use instead, where a task doesn't write this run in a format."""
    if name not in available_formats(task):
        formats = usable_formats(task)
        names = " or ".join(filter(None, (", ".join(formats[:-1]), *formats[-1:])))
        instead = f"use --format {names}" if formats else "this run has no other format"
        near = "" if name in declared_formats(task) else nearest_name(name, formats)
        raise UserError(f"--format {name}: {explain_refusal(task, name)}{near}; {instead}")


def require_quantization(format: str, declared: ExportFormat, quantization: str) -> None:
    """Raises UserError where a format's weights can't have a type."""
    known = declared.quantizations
    if quantization not in known:
        remedy = "" if known else "leave it out"
        require_known(
            [quantization], known, f"--quantization: --format {format} has no type", remedy=remedy, error=UserError
        )


def find_writer(task: Task, name: str) -> Callable[..., None]:
    """Return the method by which a task writes a format; what exports leave out is reported.

    Raises UserError where the task only declares the format.
    """
    method = f"export_{name.replace('-', '_')}"
    writer: Callable[..., None] | None = getattr(task, method, None)
    if writer is None:
        raise UserError(f"{type(task).__name__} declares the format {name} in its SPEC, but has no method {method}")
    for one in task.left_out_of_exports():
        log.warning("--format %s: %s", name, one)
    return writer


def explain_refusal(task: Task, name: str) -> str:
    """Return why a task doesn't write this run in a format."""
    kind = getattr(getattr(task, "experiment", None), "task", type(task).__name__)
    return task.refused_exports().get(name, f"a run of task {kind} can't be exported so")


def declared_formats(task: Task) -> Mapping[str, ExportFormat]:
    """Return the formats that a task has, whether or not this run can be written in them."""
    return find_spec(task).exports


def find_spec(task: Task) -> TaskSpec:
    """Return the spec of a task object; an empty one where its class has none."""
    spec = getattr(task, "SPEC", None)
    return spec if isinstance(spec, TaskSpec) else TaskSpec()


def command_lines(
    spec: TaskSpec,
    options: Mapping[str, Any],
    run: Path,
    *,
    splits: Sequence[str],
    formats: Sequence[str],
) -> list[str]:
    """Return the command lines to try on a run: those of its task, then its export.

    ``splits`` are those that have examples to evaluate. ``formats`` are those that the run can be exported in; names
    that no format can have are left out, since they may be a stranger's.
    """
    folder = shlex.quote(str(run))
    lines = list(_of_task(spec, options, splits))
    lines += [f"export {RUN} --format {name}" for name in formats[:1] if FORMAT_NAME.fullmatch(name)]
    return [f"vaak {line.replace(RUN, folder)}" for line in lines]


def _of_task(spec: TaskSpec, options: Mapping[str, Any], splits: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the task, each evaluation with its split."""
    for line in spec.commands(lambda key: value_at(options, key)):
        if line != EVAL:
            yield line
        elif "test" in splits:
            yield f"{EVAL} --split test"
        elif splits:
            yield EVAL


@dataclass(frozen=True)
class Use:
    """How a command, or an option of another run, uses a run or a pretrained model.

    ``name`` is that of a task's ``uses``; ``by`` is what errors call it, if it is called otherwise. With ``of_part``,
    one task of a run of several is used, which ``part`` names.
    """

    name: str
    by: str = ""
    of_part: bool = False
    part: str | None = None

    def require(self, path: Path, experiment: Experiment[Any, Any], *, is_pretrained: bool) -> None:
        """Raise UserError where the task of an experiment doesn't declare that models like this are used so.

        ``path`` is the run's or the pretrained model's. For the latter, the error names a command that uses it.
        """
        uses = experiment.spec.uses
        if _meets(experiment, uses.get(self.name)):
            return
        # A run of the right task lacks one of the values: the error shows those that it has.
        keys = dict.fromkeys(condition.partition("=")[0] for condition in uses.get(self.name, ()))
        own = [f"{key}={attrgetter(key)(experiment)}" for key in keys]
        able = [_describe_kind(name, spec.uses[self.name]) for name, spec in TASKS.items() if self.name in spec.uses]
        asked = self.by or (self.name if "." in self.name else f"vaak {self.name}")
        commands = (one for one, conditions in uses.items() if "." not in one and _meets(experiment, conditions))
        instead = f"; this one is for vaak {next(commands, 'predict')}" if is_pretrained else ""
        raise UserError(
            f"{path} is {'a model' if is_pretrained else 'a run'} of {_describe_kind(str(experiment.task), own)}; "
            f"{asked} requires a run of {', or of '.join(able)}{instead}"
        )


def _meets(experiment: Experiment[Any, Any], conditions: Sequence[str] | None) -> bool:
    """Return whether an experiment meets one of the ``key=value`` conditions of a use; None: there is no such use."""
    return conditions is not None and (not conditions or any(has_value(experiment, one) for one in conditions))


def _describe_kind(task: str, conditions: Sequence[str]) -> str:
    named = " or ".join(condition.replace("=", ": ") for condition in conditions)
    return f"task {task} with {named}" if named else f"task {task}"


def reads_files(task: Task) -> bool:
    """Return whether a task's inputs are files of audio."""
    return task.predict_files is not None


def predict_inputs(task: Any, model: Any, inputs: Iterable[Any], batch_size: int | None = None) -> Iterator[Any]:
    """Yield the prediction for each input, in their order; for a file that can't be read, the UserError.

    Inputs are paths where the task reads files. Both ``vaak predict`` and ``vaak serve`` predict so.
    """
    # A user's own task may not have the option, so it is passed only if given.
    given = {} if batch_size is None else {"batch_size": batch_size}
    if reads_files(task):
        yield from (found for _, found in task.predict_files(model, list(inputs), **given))
    else:
        yield from task.predict(model, inputs, **given)


def to_json(result: Any) -> Any:
    """Return a prediction as plain values, which can be written as JSON."""
    if hasattr(result, "to_json"):
        return result.to_json()
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    return result if isinstance(result, str | int | float | bool | list | dict | None) else str(result)
