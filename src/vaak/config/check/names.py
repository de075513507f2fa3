"""Names of losses, metrics and other runs that a configuration gives and that don't exist, before there are data."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.base import REGISTERED, Component
from vaak.config.catalog import AUXILIARY_LOSSES, CALLBACKS, LOSSES, SMOOTHING_LOSSES
from vaak.config.components import did_you_mean, source_file
from vaak.config.experiment import Experiment
from vaak.config.task_spec import CheckFinding, impossible, remark
from vaak.config.training import AuxiliaryLoss, TrainingConfig

NO_OPTIONS = ast.arguments(args=[ast.arg("self")], posonlyargs=[], kwonlyargs=[], kw_defaults=[], defaults=[])
"""The parameters of a class without an ``__init__`` of its own."""

LOGGED = (
    *("loss", "learning_rate", "learning_rate/", "gradient_norm", "gradient_norm/"),
    *("loss_scale", "overflows", "non_finite_steps", "skipped", "seconds", "total_steps"),
    *("process_memory_gib", "cpu_percent", "machine_load", "disk_free_gib"),
    *("memory_pressure", "memory_limit_gib", "device_memory_gib", "device_utilisation_percent"),
)
"""Figures that training logs, whatever the task; a name that ends in ``/`` stands for all that begin with it."""


def unknown_losses(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Main and auxiliary losses that the task doesn't have, or that don't fit its data."""
    spec, loss = experiment.spec, experiment.training.loss
    name = loss.main.type
    fitting = spec.losses and tuple(spec.losses(experiment))
    if fitting and name in LOSSES and name not in fitting:
        yield impossible(
            "training.loss.main",
            f"{name} doesn't fit what the task {experiment.task} predicts; expected one of {', '.join(fitting)}, "
            "./file.py:Name or package.module:Name",
        )
    elif loss.main.options.get("weight") is not None and name == "cross_entropy" and not spec.has_class_weights:
        yield impossible("training.loss.main.weight", "only a classifier's classes have weights; leave it out")
    elif loss.label_smoothing and name in LOSSES and name not in SMOOTHING_LOSSES:
        yield impossible("training.loss.label_smoothing", f"{name} has no label smoothing; leave it out")
    if spec.auxiliary_losses is None:
        return
    unfit = {*AUXILIARY_LOSSES} - {*fitting} if fitting else set()
    unfit -= {"z_loss"} if spec.has_logits else set()
    known = sorted({*AUXILIARY_LOSSES, *REGISTERED["training.loss.auxiliary"], *spec.auxiliary_losses} - unfit)
    for other, about in loss.auxiliary.items():
        kind = other if isinstance(about, int | float) else about.type
        if kind in unfit:
            message = f"{kind} doesn't fit what the task {experiment.task} predicts; expected one of {', '.join(known)}"
            yield impossible(f"training.loss.auxiliary.{other}", message)
        elif isinstance(about, int | float) and other not in known:
            yield impossible(
                f"training.loss.auxiliary.{other}",
                f"is not known; expected one of {', '.join(known)}{did_you_mean(other, known)}",
            )


def smoothing_of_users_loss(experiment: Experiment[Any, Any], folder: Path) -> Iterator[CheckFinding]:
    """``label_smoothing`` with a user's loss whose class doesn't take it; its file is read, and not executed."""
    loss = experiment.training.loss
    if not loss.label_smoothing or loss.main.type in LOSSES:
        return
    taken = _registered_options(loss.main.type) or _options_in_file(loss.main.type, folder)
    if taken is not None and "label_smoothing" not in taken:
        yield impossible(
            "training.loss.label_smoothing", f"{loss.main.type} takes no label_smoothing; leave it out, or add it there"
        )


def _registered_options(name: str) -> Collection[str] | None:
    """The options of a class that a program registered; None where any are taken, or no class has that name."""
    found = REGISTERED["training.loss.main"].get(name)
    if found is None:
        return None
    parameters = inspect.signature(found).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return None if takes_any else parameters.keys() or {""}


def _options_in_file(reference: str, folder: Path) -> Collection[str] | None:
    """The options that ``__init__`` of a class in a file has; None where the class may inherit others."""
    file = source_file(reference, folder)
    if file is None or not file.is_file():
        return None
    found = _class_in(file, reference.rpartition(":")[2])
    if found is None or not _is_plain_module(found):
        return None
    made_by = _made_by(found)
    if made_by is None or made_by.kwarg is not None:
        return None if made_by else {""}
    return {one.arg for one in (*made_by.args, *made_by.kwonlyargs)}


def wrong_options_of_components(experiment: Experiment[Any, Any], folder: Path) -> Iterator[CheckFinding]:
    """Options of callbacks and losses that their classes don't have, or require; files are read, and not executed."""
    loss = experiment.training.loss
    for number, callback in enumerate(experiment.training.callbacks):
        yield from _wrong_options(f"training.callbacks.{number}", callback, CALLBACKS, folder)
    yield from _wrong_options("training.loss.main", loss.main, LOSSES, folder)
    for name, about in loss.auxiliary.items():
        if isinstance(about, AuxiliaryLoss):
            yield from _wrong_options(f"training.loss.auxiliary.{name}", about, AUXILIARY_LOSSES, folder)


def _wrong_options(
    key: str, component: Component, short_names: Mapping[str, str], folder: Path
) -> Iterator[CheckFinding]:
    """Those of one component, which stands under ``key``, as far as the source of its class tells."""
    reference = short_names.get(component.type, component.type)
    module, _, name = reference.rpartition(":")
    ours = importlib.util.find_spec(module) if module.startswith("vaak.") else None
    file = source_file(reference, folder) if ours is None else Path(str(ours.origin))
    found = _class_in(file, name) if file is not None and file.is_file() else None
    if found is None:
        return
    made_by = _made_by(found) or (NO_OPTIONS if _is_plain_module(found) else None)
    if made_by is None:
        return
    taken = [one.arg for one in (*made_by.args[1:], *made_by.kwonlyargs)]
    optional = made_by.args[len(made_by.args) - len(made_by.defaults) :]
    optional += [one for one, default in zip(made_by.kwonlyargs, made_by.kw_defaults, strict=True) if default]
    for option in () if made_by.kwarg is not None else component.options.keys() - {*taken}:
        has = f"its options are {', '.join(taken)}" if taken else "it has no options"
        message = f"{component.type} has no option {option}; {has}{did_you_mean(option, taken)}"
        yield impossible(f"{key}.{option}", message)
    for option in taken:
        if option not in component.options and option not in {one.arg for one in optional}:
            yield impossible(key, f"{component.type} requires its option {option}")


def _is_plain_module(found: ast.ClassDef) -> bool:
    """Whether a class inherits from torch's module alone, which takes no options."""
    return [ast.unparse(base) for base in found.bases] in (["nn.Module"], ["torch.nn.Module"])


def _class_in(file: Path, name: str) -> ast.ClassDef | None:
    """The source of a class in a file; None where it has none, or can't be read: training says what is wrong in it."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _made_by(found: ast.ClassDef) -> ast.arguments | None:
    """The parameters of the class's own ``__init__``; None where it has none."""
    functions = (node for node in found.body if isinstance(node, ast.FunctionDef))
    return next((node.args for node in functions if node.name == "__init__"), None)


def watched_metrics(training: TrainingConfig) -> dict[str, str]:
    """The metrics that training needs, by the options that name them."""
    watched = {"training.checkpoint.metric": training.checkpoint.metric}
    if training.scheduler.type == "plateau":
        watched["training.scheduler.metric"] = training.scheduler.metric
    if training.early_stopping is not None:
        watched["training.early_stopping.metric"] = training.early_stopping.metric
    for number, callback in enumerate(training.callbacks):
        if callback.type == "early_stopping" and isinstance(callback.options.get("metric"), str):
            watched[f"training.callbacks.{number}.metric"] = callback.options["metric"]
    return watched


def unknown_in_a_new_run(experiment: Experiment[Any, Any], further_metrics: Iterable[str]) -> Iterator[CheckFinding]:
    """What only who starts a run must have right: metrics, and the runs to begin with.

    ``further_metrics`` are those that a program adds to the task's. A run that was trained may have others, and may
    have outlived the one whose weights it began with.
    """
    training, metrics = experiment.training, experiment.spec.metrics
    if metrics is not None:
        known = [*metrics(experiment), *(f"val_{name}" for name in further_metrics)]
        for key, metric in watched_metrics(training).items():
            if not _is_among(metric, known):
                yield impossible(
                    key, f"is {metric}, and evaluations give {_listed(known)}{did_you_mean(metric, known)}"
                )
        yield from _unknown_logged(training, known)
    options = training.checkpoint
    resumes = options.resume is not None and (experiment.run_dir / "config.yml").exists()
    if options.init_from is not None and not resumes and not Path(options.init_from).exists():
        yield impossible(
            "training.checkpoint.init_from",
            f"{options.init_from} doesn't exist; give a run directory, or step-…, best or last in it",
        )
    if options.resume not in (None, "auto") and not Path(str(options.resume)).exists():
        yield impossible("training.checkpoint.resume", f"{options.resume} doesn't exist; give a checkpoint, or auto")


def _unknown_logged(training: TrainingConfig, known: list[str]) -> Iterator[CheckFinding]:
    """Names for the trackers that no figure has, as far as that can be told: callbacks may log any."""
    if training.profiling or training.callbacks:
        return
    losses = {"loss", training.loss.main.type, "bce", *training.loss.auxiliary}
    names = {name.removeprefix("val_") for name in known} | {*known, *LOGGED, *losses}
    names |= {f"{prefix}_{name}" for name in losses for prefix in ("train", "smoothed")}
    asked = (name for name in training.logging.log_metrics or () if not name.endswith(("_per_second", "_gib")))
    unknown = [name for name in asked if not _is_among(name, names)]
    if unknown:
        yield remark(
            "training.logging.log_metrics",
            f"no figure is called {' or '.join(unknown)}, so trackers get none; evaluations give {_listed(known)}"
            f"{did_you_mean(unknown[0], names)}",
        )


def _is_among(name: str, known: Iterable[str]) -> bool:
    return any(name == one or (one.endswith("/") and name.startswith(one)) for one in known)


def _listed(known: Iterable[str]) -> str:
    return ", ".join(f"{name}…" if name.endswith("/") else name for name in known)
