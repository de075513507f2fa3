"""The specification of training on several tasks; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vaak.config.components import did_you_mean
from vaak.config.experiment import Experiment
from vaak.config.tasks import CheckFinding, ExportFormat, NetworkKind, TaskSpec, impossible, no_effect, spec_by_name
from vaak.core.errors import UserError
from vaak.tasks.formats import DCP, ONNX, PEFT, transformers_format
from vaak.tasks.multitask import METRICS
from vaak.tasks.multitask.config import ALIASES, DEFAULTS, MultiTaskConfig, MultiTaskDataConfig

Experiments = Mapping[str, Experiment[Any, Any]]
UNIT_BY_BUDGET = {"max_tokens": "tokens", "max_duration": "seconds"}


def checks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield the findings on an experiment of this task."""
    tasks: Experiments = experiment.data.inner_experiments
    if not tasks:
        return
    if len(tasks) == 1:
        yield impossible("data.tasks", "has one task; give two or more, or train it alone")
    yield from _model(experiment.model, tasks)
    sampling, steps = experiment.data.sampling, experiment.training.max_steps
    if sampling.type == "annealed" and sampling.epochs is None and steps is not None:
        yield impossible(
            "data.sampling.epochs", f"max_steps ({steps}) decides when training ends; say how many epochs it takes"
        )
    yield from _loop(experiment, tasks)


def _model(model: MultiTaskConfig, tasks: Experiments) -> Iterator[CheckFinding]:
    named = [("loss_weights", name) for name in model.loss_weights if model.loss_weights != "uncertainty"]
    named += [("shared", name) for paths in model.shared if isinstance(paths, dict) for name in paths]
    for key, name in named:
        if name not in tasks:
            hint = did_you_mean(name, tasks)
            yield impossible(f"model.{key}", f"{name} is not among the tasks; expected {', '.join(tasks)}{hint}")
    if any(isinstance(paths, dict) and len(paths) < 2 for paths in model.shared):
        yield impossible("model.shared", "a module is shared by two tasks or more; name it for each")
    first, *others = tasks
    own = {name: getattr(one.data, "tokenizer", None) for name, one in tasks.items()}
    for name in others if model.shared else ():
        if None not in (own[first], own[name]) and own[first] != own[name]:
            yield impossible(
                f"data.tasks.{name}.data.tokenizer",
                f"is not that of {first}, whose vocabulary all tasks read where they share modules; give both the same",
            )


def _loop(experiment: Experiment[Any, Any], tasks: Experiments) -> Iterator[CheckFinding]:
    training = experiment.training
    yield no_effect("training.loss", "each task has its own: give it as training.loss of the task")
    if training.performance.compile:
        yield impossible("training.performance.compile", "models of several tasks aren't compiled; leave it out")
    if experiment.distillation is not None:
        yield impossible("distillation", "several tasks can't be taught at once; leave it out")
    for name, task in tasks.items():
        if task.reference == experiment.reference:
            yield impossible(f"data.tasks.{name}.task", f"is {task.task}, which can't be one of several tasks")
        if reason := task.spec.refused_batching.get(training.batching.type):
            yield impossible("training.batching.type", f"{name}: {reason}")
        for option, unit in UNIT_BY_BUDGET.items():
            if getattr(training.batching, option) is not None and task.spec.length_unit not in (None, unit):
                yield impossible(f"training.batching.{option}", f"{name} has no {unit}; leave it out")


def refused_difficulties(experiment: Experiment[Any, Any]) -> dict[str, str]:
    """Return the measures that one of the tasks doesn't have, each with the reason."""
    return {
        measure: f"{name}: {reason}"
        for name, task in reversed(experiment.data.inner_experiments.items())
        for measure, reason in task.spec.refused_difficulties(task).items()
    }


def metrics(experiment: Experiment[Any, Any]) -> list[str]:
    """Return the metrics that evaluations give."""
    found = ["val_loss", *(f"val_{name}/" for name in experiment.data.tasks if not experiment.data.inner_experiments)]
    for name, task in experiment.data.inner_experiments.items():
        own = task.spec.metrics(task) if task.spec.metrics is not None else ("val_/",)
        found += [f"val_{name}/{metric.removeprefix('val_').removeprefix('/')}" for metric in own]
    return found


def list_networks(experiment: Experiment[Any, Any]) -> set[NetworkKind]:
    """Return the kinds of all tasks' networks; none if that of one isn't known."""
    tasks: Experiments = experiment.data.inner_experiments
    kinds = [one.spec.networks(one) for one in tasks.values()]
    return {kind for each in kinds for kind in each} if all(kinds) else set()


def explain_uncaptured(experiment: Experiment[Any, Any]) -> str:
    """Return what a CUDA graph of a step of several tasks can't have."""
    return "the losses of several tasks read how many examples of each there are"


def num_parameters(experiment: Experiment[Any, Any]) -> int:
    """About how many parameters the models have, before they share any."""
    tasks: Experiments = experiment.data.inner_experiments
    return sum(one.spec.num_parameters(one) for one in tasks.values() if one.spec.num_parameters)


def commands(get: Callable[[str], Any]) -> Iterator[str]:
    """Yield what may be done with a run, and with each of its classifiers."""
    yield "eval {run}"
    tasks = get("data.tasks")
    for name, task in tasks.items() if isinstance(tasks, Mapping) else ():
        if isinstance(task, Mapping) and "classify" in spec_by_name(task.get("task")).uses:
            yield f'classify {{run}} --task {shlex.quote(name)} "…"'


def _written_apart(declared: ExportFormat) -> ExportFormat:
    """Return a format without the code of a card, which would be of each task's own folder."""
    return replace(declared, code=lambda exported: "")


def require_base(experiment: Experiment[Any, Any], folder: Path) -> None:
    """Raise UserError for the first task whose base can't be used."""
    for name, task in experiment.data.inner_experiments.items():
        try:
            task.spec.require_base(task, folder)
        except UserError as error:
            raise UserError(f"data.tasks.{name}.{error}") from error


SPEC = TaskSpec(
    task="vaak.tasks.multitask.task:MultiTask",
    model=MultiTaskConfig,
    data=MultiTaskDataConfig,
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    own_metrics=METRICS,
    auxiliary_losses=(),
    refused_batching={"packed": "rows of several tasks aren't packed; expected fixed, bucketed or stratified"},
    refused_difficulties=refused_difficulties,
    networks=list_networks,
    explain_uncaptured=explain_uncaptured,
    num_parameters=num_parameters,
    checks=checks,
    require_base=require_base,
    commands=commands,
    exports={
        "hf": _written_apart(transformers_format("")),
        "onnx": _written_apart(ONNX),
        "peft": PEFT,
        "dcp": _written_apart(DCP),
    },
)
