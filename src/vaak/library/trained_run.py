"""A run that was trained, opened to be used: its model, its task, its figures."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch

from vaak.config.experiment import Experiment
from vaak.config.tasks import TASKS, register_task
from vaak.config.yaml.text import flow_text, read_yaml
from vaak.config.yaml.tree import find, to_plain
from vaak.core.errors import UserError
from vaak.core.task import Dataset, Meters, Task
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import Evaluator
from vaak.engine.metrics_file import read_history
from vaak.engine.precision import make_deterministic
from vaak.library.config import as_plain
from vaak.report.charts import draw_history
from vaak.runs.open_run import OpenedRun, open_run, run_of
from vaak.tasks.base import Metric, WithMetrics

GIVEN = "given"
"""The name of the split that consists of the examples given."""


class TrainedRun:
    """A run: ``model`` (in evaluation mode, on its device), ``task``, ``config``, ``directory``, ``checkpoint``."""

    def __init__(self, opened: OpenedRun) -> None:
        self.model, self.task, self.config = opened.model, cast("Task", opened.task), opened.experiment
        self.directory, self.checkpoint = opened.directory, opened.checkpoint

    config: Experiment[Any, Any]

    @property
    def tokenizer(self) -> Any:
        """The task's tokenizer; None where it has none, or one for each side."""
        return getattr(self.task, "tokenizer", None)

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of the last evaluation; none where there was none."""
        evaluations = self.history("evaluation")
        return (
            {name: value for name, value in evaluations[-1].items() if isinstance(value, float)} if evaluations else {}
        )

    def history(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The records of ``metrics.jsonl`` in their order; of one ``kind``: step, evaluation, epoch."""
        return [record for record in read_history(self.directory) if kind in (None, record["kind"])]

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """A matplotlib figure of losses and figures over steps, written to ``path`` where one is given.

        Raises UserError where matplotlib is missing.
        """
        return draw_history(self.history(), str(self.directory), None if path is None else Path(path))

    @torch.no_grad()
    def predict(self, inputs: Any, **options: Any) -> Any:
        """Return the prediction for an input; for a list (a tuple, an iterator), a list. ``options`` are the task's."""
        several = isinstance(inputs, list | tuple | Iterator)
        results = list(self.task.predict(self.model, inputs if several else [inputs], **options))
        return results if several else results[0]

    def evaluate(self, data: Any = "valid") -> dict[str, float]:
        """The figures of a split by its name, of a list of examples, of a torch Dataset or of a ``vaak.Dataset``.

        In fp32, as ``vaak eval`` does. Those of a split have its prefix (``val_`` for valid, else ``SPLIT_``).
        """
        training = self.config.training.model_copy(update={"mixed_precision": "no"})
        task, split = self.task, data
        if not isinstance(data, str):
            dataset = data if isinstance(data, Dataset) else self.task.dataset_of(data)
            task, split = _task_on(self.task, dataset), GIVEN
        make_deterministic(training, self.device)
        evaluator = Evaluator(task, training, Ranks(self.device), self.config.skips_bad_examples)
        figures = evaluator.evaluate(self.model, split)
        return figures if split == data else {name.removeprefix(f"{GIVEN}_"): value for name, value in figures.items()}

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items() if math.isfinite(value))
        return f"TrainedRun({str(self.directory)!r}, {self.checkpoint.name}{f': {figures}' if figures else ''})"


def open(
    run: str | PathLike[str],
    *,
    task: Any = None,
    device: str = "auto",
    weights: str = "auto",
    metrics: Mapping[str, Metric] | None = None,
    trust_code: bool = False,
    **options: Any,
) -> TrainedRun:
    """Open a run, which stands for its best checkpoint, or one of its checkpoints.

    ``task`` is that of a run whose task is in no file: its class, or the object. ``weights`` are ``own``, their
    ``average`` (training.ema), or ``auto``: those that the run evaluated. ``metrics`` are further figures of
    ``evaluate``, and ``options`` go over the run's own (``data={...}``). Code that the run brings is executed only with
    ``trust_code``.

    ``device`` is cpu, cuda, mps or auto.

    Raises UserError for everything that is wrong with what is given or with the run.
    """
    path = Path(run)
    if task is not None:
        # register the task under the name that the run calls it by, unless the run has its task itself
        node = find(read_yaml(run_of(path) / "config.yml"), ("task",))
        name = None if node is None else str(to_plain(node))
        if name is None or ":" in name:
            raise UserError(f"{path} has its task itself ({name}): leave task out, and give trust_code=True")
        if name in TASKS and TASKS[name].task is not None:
            raise UserError(f"{path} is a run of {name}: leave task out")
        register_task(name, task)
    overrides = [f"{key}={flow_text(as_plain(value, key))}" for key, value in options.items()]
    opened = TrainedRun(open_run(path, (), overrides, device, weights=weights, trust_code=trust_code))
    if metrics:
        opened.task = with_metrics(opened.task, metrics)
    return opened


def with_metrics(task: Task, metrics: Mapping[str, Metric]) -> Task:
    """A task that measures more."""
    return cast("Task", _Measured(task, metrics))


def _task_on(task: Task, dataset: Dataset) -> Task:
    """A task whose only split is the given dataset."""
    if isinstance(task, _Measured):
        return with_metrics(_task_on(task.own, dataset), task.metrics)
    changed = copy.copy(task)
    vars(changed)["dataset"] = lambda split: dataset
    return changed


class _Measured:
    """A task whose evaluations have further figures."""

    def __init__(self, own: Task, metrics: Mapping[str, Metric]) -> None:
        self.own, self.metrics = own, metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def meters(self, split: str) -> Meters:
        return WithMetrics(self.own.meters(split), self.metrics)
