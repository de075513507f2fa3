"""What each example contributes to a run's figures: its sums, of the run's own meters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.task import Meters, Task
from vaak.runs.evaluate import evaluate_run
from vaak.runs.open_run import OpenedRun

FOLDERS = re.compile(r"[^\s:]*/")
AS_READ = "position"
"""The unit that counts how a model reads an example, which another may read otherwise."""


class ByExample(Meters):
    """Shows other meters one row at a time, and keeps by how much their sums grow, and what the row counts and is."""

    def __init__(self, meters: Meters, task: Task, split: str) -> None:
        self.protocol, self.meters = meters.protocol, meters
        self.rows: dict[str, dict[str, float]] = {}
        self.counts: dict[str, dict[str, float]] = {}
        self.contents: dict[str, list[str]] = {}
        self._dataset = task.dataset(split)

    def update(self, model: nn.Module, batch: Batch) -> None:
        for row in batch.split(batch.num_rows):
            before = dict(self.meters.sums())
            self.meters.update(model, row)
            name = self._name(row.indices[0])
            self.rows[name] = {key: value - before.get(key, 0.0) for key, value in self.meters.sums().items()}
            self.counts[name] = {unit: number for unit, number in row.totals().items() if unit != AS_READ}
            self.contents[name] = [self._dataset.content_of(index) for index in row.indices[0]]

    def _name(self, indices: list[int]) -> str:
        """Without folders, which two runs may have elsewhere; numbered where there are several of a name."""
        name = FOLDERS.sub("", ", ".join(map(self._dataset.describe, indices)))
        others = sum(there == name or there.startswith(f"{name} #") for there in self.rows)
        return f"{name} #{others + 1}" if others else name

    def sums(self) -> dict[str, float]:
        return self.meters.sums()

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return self.meters.results(sums)


@dataclass(frozen=True)
class Examples:
    """The examples of a run's split by name, with their sums, counts and contents; ``meters`` make figures of sums.

    ``metric`` is the one that the run chose its best checkpoint by.
    """

    run: Path
    figures: dict[str, float]
    protocol: dict[str, Any]
    metric: str
    meters: Meters
    rows: dict[str, dict[str, float]] = field(repr=False)
    counts: dict[str, dict[str, float]] = field(repr=False)
    contents: dict[str, list[str]] = field(repr=False)

    @property
    def keys(self) -> list[str]:
        """The names of the sums."""
        return sorted({key for sums in self.rows.values() for key in sums})

    def names_of(self, metric: str) -> list[str]:
        """The examples that a metric is of: those that count TASK/unit where it is TASK/figure, otherwise all."""
        task = f"{metric.rpartition('/')[0]}/"
        own = [name for name, counts in self.counts.items() if any(unit.startswith(task) for unit in counts)]
        return sorted(own or self.rows)

    def table(self, names: Sequence[str], keys: Sequence[str]) -> np.ndarray:
        """Sums of examples ``(example, sum)``."""
        return np.array([[self.rows[name].get(key, 0.0) for key in keys] for name in names])

    def figure(self, metric: str, sums: np.ndarray, keys: Sequence[str]) -> np.ndarray:
        """A metric ``(sample,)`` of sums ``(sample, sum)``; not a number where they give none."""
        found: list[float] = []
        for row in sums:
            try:
                found.append(self.meters.results(dict(zip(keys, row.tolist(), strict=True))).get(metric, np.nan))
            except ZeroDivisionError:
                found.append(np.nan)
        return np.array(found)


def examples_of(
    run: Path, files: Sequence[Path], overrides: Sequence[str], split: str, device: str = "auto", weights: str = "auto"
) -> Examples:
    """Evaluates the ``split`` of a run as ``evaluate_run`` does, and keeps every example's sums.

    ``files``, ``overrides``, ``device`` and ``weights`` are those of ``evaluate_run``.

    Raises UserError where there are fewer than two examples.
    """
    made: list[ByExample] = []
    metric = ""

    def watched(opened: OpenedRun, split: str, meters: Meters) -> Meters:
        nonlocal metric
        metric = opened.experiment.training.checkpoint.metric
        made.append(ByExample(meters, opened.task, split))  # once more where memory ran out
        return made[-1]

    report = evaluate_run(run, files, overrides, [split], device, weights, watched=watched)
    seen = made[-1]
    rows, prefix = seen.rows, f"{'val' if split == 'valid' else split}_"
    if len(rows) < 2:
        raise UserError(f"{run}: {split} has {len(rows)} examples; a comparison requires at least two")
    figures = {name.removeprefix(prefix): value for name, value in report["metrics"].items()}
    metric = metric.removeprefix("val_")
    return Examples(run, figures, report["protocol"][split], metric, seen.meters, rows, seen.counts, seen.contents)
