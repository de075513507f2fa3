"""A run that was trained, opened to be used: its model, its task, its metrics."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch

from vaak.config.experiment import Experiment
from vaak.config.metrics import chance_in_words, in_words
from vaak.config.tasks import TASKS, register_task
from vaak.config.yaml.text import flow_text, read_yaml
from vaak.core.errors import UserError
from vaak.core.task import Dataset, Meters, Task
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import Evaluator
from vaak.engine.metrics_file import read_history
from vaak.engine.precision import keeping_kernels, make_deterministic
from vaak.library.config import as_plain
from vaak.report.charts import draw_histories
from vaak.report.tables import html_table
from vaak.runs.open_run import OpenedRun, open_run, resolve_run
from vaak.tasks.base import Metric, WithMetrics
from vaak.tasks.batches import compute_alone

GIVEN = "given"
"""The name of the split that consists of the examples given."""


class Metrics(dict[str, float]):
    """Metrics by their names; in a notebook a table, in percent where people read them so, with what chance gives."""

    def _repr_html_(self) -> str:
        rows = [(name, in_words(name, value), chance_in_words(name)) for name, value in self.items()]
        return html_table([("metric", "value", "chance"), *rows]) if rows else "<p>not evaluated yet</p>"


class History(list[dict[str, Any]]):
    """Records of a run in their order; in a notebook a table of the last ones.

    ``pandas.DataFrame(history.table())`` has a row for each, and ``pandas.DataFrame(history)`` the same with what the
    clock said in one column.
    """

    SHOWN = 10

    def __call__(self, kind: str | None = None) -> History:
        """Return the records of one ``kind``: step, evaluation, epoch."""
        return History(record for record in self if kind in (None, record["kind"]))

    def table(self) -> dict[str, list[Any]]:
        """Return the columns by name (``clock.seconds``), each with a value for each record, None if it has none."""
        rows = [dict(_flat(record)) for record in self]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def _repr_html_(self) -> str:
        last = History(self[-self.SHOWN :])
        shown = {name: values for name, values in last.table().items() if not name.startswith("clock.")}
        texts = [[_cell(value) for value in values] for values in shown.values()]
        more = f"<p>{len(self):,} records, the last {len(last)}:</p>" if len(self) > len(last) else ""
        return more + html_table([tuple(shown), *zip(*texts, strict=True)]) if last else "<p>no records</p>"


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


class TrainedRun:
    """A run: ``model`` (in evaluation mode, on its device), ``task``, ``config``, ``directory``, ``checkpoint``."""

    def __init__(self, opened: OpenedRun) -> None:
        self.model, self.task, self.config = opened.model, cast("Task", opened.task), opened.experiment
        self.directory, self.checkpoint = opened.directory, opened.checkpoint

    config: Experiment[Any, Any]

    @property
    def tokenizer(self) -> Any:
        """The task's tokenizer; None if it has none, or one for each side."""
        return getattr(self.task, "tokenizer", None)

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def metrics(self) -> Metrics:
        """The metrics of the last evaluation; none if there was none."""
        last = self.history("evaluation")[-1:]
        return Metrics({name: value for one in last for name, value in one.items() if isinstance(value, float)})

    @property
    def history(self) -> History:
        """The present records of ``metrics.jsonl``, in order; ``history("evaluation")`` has one kind."""
        return History(read_history(self.directory))

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """Return a matplotlib figure of losses and figures over steps, written to ``path`` where one is given.

        Raises UserError if matplotlib is missing.
        """
        return draw_histories({"": self.history}, str(self.directory), None if path is None else Path(path))

    @torch.no_grad()
    def predict(self, inputs: Any, *, exact: bool = False, **options: Any) -> Any:
        """Return the prediction for an input; for a list (a tuple, an iterator), a list. ``options`` are the task's.

        With ``exact``, each input is computed alone: on a CPU, no bit of its result depends on the others.
        """
        several = isinstance(inputs, list | tuple | Iterator)
        with compute_alone() if exact else nullcontext():
            results = list(self.task.predict(self.model, inputs if several else [inputs], **options))
        return results if several else results[0]

    def evaluate(self, data: Any = "valid") -> Metrics:
        """The metrics of a split by its name, of a list of examples, of a torch Dataset or of a ``vaak.Dataset``.

        In fp32, as ``vaak eval`` does. Those of a split have its prefix (``val_`` for valid, else ``SPLIT_``).
        """
        training = self.config.training.model_copy(update={"mixed_precision": "no"})
        task, split = self.task, data
        if not isinstance(data, str):
            dataset = data if isinstance(data, Dataset) else self.task.make_dataset_from(data)
            task, split = _task_on(self.task, dataset), GIVEN
        with keeping_kernels():
            make_deterministic(training, self.device)
            evaluator = Evaluator(task, training, Ranks(self.device), self.config.skips_bad_examples)
            metrics = evaluator.evaluate(self.model, split)
        prefix = "" if split == data else f"{GIVEN}_"
        return Metrics({name.removeprefix(prefix): value for name, value in metrics.items()})

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the run, and the metrics of its last evaluation."""
        where = f"<b>{escape(self.config.name)}</b>: {escape(str(self.config.task))}, {escape(self.checkpoint.name)}"
        return f"<p>{where} in <code>{escape(str(self.directory))}</code></p>{self.metrics._repr_html_()}"

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items() if math.isfinite(value))
        return f"TrainedRun({str(self.directory)!r}, {self.checkpoint.name}{f': {metrics}' if metrics else ''})"


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
    ``average`` (training.ema), or ``auto``: those that the run evaluated. ``metrics`` are further metrics of
    ``evaluate``, and ``options`` go over the run's own (``data={...}``). Code that the run brings is executed only with
    ``trust_code``.

    ``device`` is cpu, cuda, mps or auto.

    Raises UserError for every mistake in the arguments or in the run.
    """
    path = Path(run)
    if task is not None:
        # register the task under the name that the run calls it by, unless the run has its task itself
        own = read_yaml(resolve_run(path) / "config.yml")
        name = str(own["task"]) if "task" in own else None
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
    """Return a task that measures more."""
    return cast("Task", _Measured(task, metrics))


def _task_on(task: Task, dataset: Dataset) -> Task:
    """Return a task whose only split is the given dataset."""
    if isinstance(task, _Measured):
        return with_metrics(_task_on(task.own, dataset), task.metrics)
    changed = copy.copy(task)
    vars(changed)["dataset"] = lambda split: dataset
    return changed


class _Measured:
    """A task whose evaluations have further metrics."""

    def __init__(self, own: Task, metrics: Mapping[str, Metric]) -> None:
        self.own, self.metrics = own, metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def meters(self, split: str) -> Meters:
        return WithMetrics(self.own.meters(split), self.metrics)
