"""The metrics that options name: which of them a run will have, and which of their values are better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vaak.config.components import did_you_mean
from vaak.config.experiment import Experiment
from vaak.config.metrics import find_metric
from vaak.config.optimization import SchedulerConfig
from vaak.config.tasks import CheckFinding, built_in, impossible, remark
from vaak.config.training import CheckpointConfig, EarlyStoppingConfig, TrainingConfig

LOGGED = (
    *("loss", "learning_rate", "learning_rate/", "gradient_norm", "gradient_norm/"),
    *("loss_scale", "overflows", "non_finite_steps", "skipped", "seconds", "gap_ms", "total_steps"),
    *("process_memory_gib", "cpu_percent", "machine_load", "disk_free_gib"),
    *("memory_pressure", "memory_limit_gib", "device_memory_gib", "device_utilisation_percent"),
)
"""Values that training logs, whatever the task; a name that ends in ``/`` stands for all that begin with it."""


def check_metrics(experiment: Experiment[Any, Any], further_metrics: Iterable[str]) -> Iterator[CheckFinding]:
    """Yield the metrics that a new run won't have, and those whose worse values it would look for.

    ``further_metrics`` are those that a program adds to the task's.
    """
    training, spec = experiment.training, experiment.spec
    if spec.metrics is not None:
        is_ours = experiment.reference in built_in()
        own = () if is_ours else (one.name for one in spec.own_metrics)
        known = [*spec.metrics(experiment), *(f"val_{name}" for name in (*own, *further_metrics))]
        for key, metric in watched_metrics(training).items():
            if not is_among(metric, known):
                found = f"is {metric}, and evaluations give {_list_names(known)}{did_you_mean(metric, known)}"
                yield impossible(key, found if is_ours else f"{found}; SPEC.own_metrics of a task declares its own")
        yield from _check_logged(training, known)
    yield from _check_modes(training)


def watched_metrics(training: TrainingConfig) -> dict[str, str]:
    """Return the metrics that training needs, by the options that name them."""
    watched = {"training.checkpoint.metric": training.checkpoint.metric}
    if training.scheduler.type == "plateau":
        watched["training.scheduler.metric"] = training.scheduler.metric
    if training.early_stopping is not None:
        watched["training.early_stopping.metric"] = training.early_stopping.metric
    for number, callback in enumerate(training.callbacks):
        if callback.type == "early_stopping" and isinstance(callback.options.get("metric"), str):
            watched[f"training.callbacks.{number}.metric"] = callback.options["metric"]
    return watched


def _check_modes(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield remarks on metrics that are better in the other direction than the ``mode`` of their section."""
    watching: dict[str, CheckpointConfig | EarlyStoppingConfig | SchedulerConfig] = {
        "training.checkpoint": training.checkpoint,
        **({"training.early_stopping": training.early_stopping} if training.early_stopping is not None else {}),
        **({"training.scheduler": training.scheduler} if training.scheduler.type == "plateau" else {}),
    }
    for section, options in watching.items():
        declared = find_metric(options.metric)
        if declared is None or declared.higher is None or declared.higher == (options.mode == "max"):
            continue
        better, mode = ("higher", "max") if declared.higher else ("lower", "min")
        yield remark(
            f"{section}.metric", f"{options.metric} is better when it is {better}; set {section}.mode to {mode}"
        )


def _check_logged(training: TrainingConfig, known: list[str]) -> Iterator[CheckFinding]:
    """Yield a remark on names in ``log_metrics`` that no metric has; nothing if callbacks may log any name."""
    if training.profiling or training.callbacks:
        return
    names = metric_names(training, known)
    asked = (name for name in training.logging.log_metrics or () if not name.endswith(("_per_second", "_gib")))
    unknown = [name for name in asked if not is_among(name, names)]
    if unknown:
        yield remark(
            "training.logging.log_metrics",
            f"no metric is called {' or '.join(unknown)}, so trackers get none; evaluations give {_list_names(known)}"
            f"{did_you_mean(unknown[0], names)}",
        )


def metric_names(training: TrainingConfig, known: Iterable[str]) -> set[str]:
    """Return the names of values in a run's records, if its evaluations give the ``known`` ones."""
    losses = {"loss", training.loss.main.type, "bce", *training.loss.auxiliary}
    names = {name.removeprefix("val_") for name in known} | {*known, *LOGGED, *losses}
    return names | {f"{prefix}_{name}" for name in losses for prefix in ("train", "smoothed")}


def is_among(name: str, known: Iterable[str]) -> bool:
    """Return whether a name is known; a known one that ends in ``/`` stands for all that begin with it."""
    return any(name == one or (one.endswith("/") and name.startswith(one)) for one in known)


def _list_names(known: Iterable[str]) -> str:
    return ", ".join(f"{name}…" if name.endswith("/") else name for name in known)
