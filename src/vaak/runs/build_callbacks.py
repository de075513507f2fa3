"""The callbacks that a configuration asks for."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from vaak.callbacks.console import ConsoleCallback
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiler import TRACED_BY, InterbatchProfiler, TraceCallback, WaitingForDataCallback
from vaak.callbacks.routing import RoutingCallback
from vaak.callbacks.step_log import StepLogCallback, SystemMetricsCallback
from vaak.config.base import Component
from vaak.config.components import CALLBACKS, resolve_class
from vaak.config.experiment import Experiment
from vaak.config.metric_names import metric_names
from vaak.config.resolved import resolved_values
from vaak.core.errors import UserError
from vaak.engine.callback import Callback


def build_callbacks(experiment: Experiment[Any, Any], folder: Path) -> list[Callback]:
    """Return the callbacks of ``training:``, those of its ``callbacks:`` last."""
    training = experiment.training
    logging, stopping = training.logging, training.early_stopping
    callbacks: list[Callback] = [SystemMetricsCallback(logging.interval)] if logging.system_metrics else []
    callbacks.append(StepLogCallback(logging.interval, logging.smoothing))
    callbacks.append(ConsoleCallback(logging.progress_bar and not logging.json_lines))
    further = [built(component, folder) for component in training.callbacks]
    if training.memory.manager and not any(isinstance(callback, AdaptiveMemoryManager) for callback in further):
        # it resets peaks, so it comes after the callbacks that record and show them
        manager = AdaptiveMemoryManager(training.memory.thresholds, cleanup_interval=training.memory.cleanup_interval)
        callbacks.append(manager)
    callbacks += _trackers(experiment)
    # Traced steps take longer, so they count as warm-up and not in the shares.
    if training.profiling == "trace":
        callbacks += [TraceCallback(), InterbatchProfiler(logging.interval, warm_up=TRACED_BY + 1)]
    elif training.profiling:
        callbacks.append(InterbatchProfiler(logging.interval))
    if stopping is not None:
        callbacks.append(EarlyStoppingCallback(stopping.patience, stopping.metric, stopping.min_delta, stopping.mode))
    if getattr(experiment.model, "experts", None) is not None:
        callbacks.append(RoutingCallback(training.checkpoint.metric, training.checkpoint.mode))
    # A run's phases have one reader, and a profiler's verdict says this as well.
    if not any(isinstance(callback, InterbatchProfiler) for callback in callbacks + further):
        callbacks.append(WaitingForDataCallback(logging.interval))
    return callbacks + further


def built(component: Component, folder: Path) -> Callback:
    """Return a callback by name with its options. Raises UserError for options its class doesn't have."""
    kind = resolve_class(component.type, CALLBACKS, folder)
    signature = inspect.signature(kind)
    try:
        signature.bind(**component.options)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise UserError(f"training.callbacks: {component.type}: {error}; its options are {known}") from error
    callback: Callback = kind(**component.options)
    return callback


def _trackers(experiment: Experiment[Any, Any]) -> list[Callback]:
    logging = experiment.training.logging
    callbacks: list[Callback] = []
    # Each is imported only where it is asked for: some need the package of an extra.
    if logging.json_lines:
        from vaak.callbacks.console import JsonLinesCallback

        callbacks.append(JsonLinesCallback())
    if logging.tensorboard:
        from vaak.callbacks.trackers import TensorBoardCallback

        callbacks.append(TensorBoardCallback(logging.log_metrics))
    if logging.wandb:
        from vaak.callbacks.wandb import WandbCallback

        settings = {name: value for name, value in experiment.wandb.model_dump().items() if value is not None}
        settings = {"name": experiment.name, **settings, "tags": list(experiment.wandb.tags)}
        callbacks.append(WandbCallback(settings, resolved_values(experiment), logging.log_metrics))
    for name in logging.trackers:
        from vaak.callbacks.trackers import AccelerateTrackerCallback, TrackioCallback

        about = (resolved_values(experiment), logging.log_metrics)
        if name == "trackio":
            callbacks.append(TrackioCallback(experiment.wandb.project or "vaak", *about))
        else:
            callbacks.append(AccelerateTrackerCallback(name, *about))
    if callbacks and logging.log_metrics:
        from vaak.callbacks.trackers import NamesSent

        metrics = experiment.spec.metrics
        awaited = metric_names(experiment.training, metrics(experiment) if metrics is not None else ())
        callbacks.append(NamesSent(logging.log_metrics, awaited))
    return callbacks
