"""The examples of several tasks as one dataset; every microbatch has those of one task.

    examples   0 ... n1 - 1 | n1 ... n1 + n2 - 1 | ...     task after task
    units      intent/example, domain/example, ...         each task counts its own

A batch holds the tensors that its task collated; ``unwrap_batch`` gives them back to the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Dataset, Padding

PART = "task"
LOWEST = 0.2


class OfPart(NamedTuple):
    """An example of the task at ``place``."""

    place: int
    example: Any


@dataclass(frozen=True)
class Shares:
    """The exponent of the tasks' sizes in an epoch: 1 / ``temperature``, or annealed over some epochs.

    >>> [round(Shares(annealed_over=5)(epoch), 2) for epoch in (0, 2, 4, 5)], Shares(temperature=2.0)(7)
    ([1.0, 0.6, 0.2, 0.2], 0.5)

    Source: Stickland and Murray 2019, "BERT and PALs", section 3.3. Differs: shares are kept, not drawn.
    """

    temperature: float = 1.0
    annealed_over: int | None = None

    def __call__(self, epoch: int) -> float:
        if self.annealed_over is None:
            return 1 / self.temperature
        return max(1 - (1 - LOWEST) * epoch / max(self.annealed_over - 1, 1), LOWEST)


class JointDataset(Dataset):
    """The datasets of several tasks, one after another."""

    parts: np.ndarray

    def __init__(self, datasets: Mapping[str, Dataset], shares: Callable[[int], float] | None = None) -> None:
        self.names, self.datasets = list(datasets), list(datasets.values())
        self.shares = shares
        for name, one in datasets.items():
            if one.parts is not None:
                raise UserError(f"tasks.{name}: data.mixture isn't read where several tasks are trained; leave it out")
        sizes = [len(one.lengths) for one in self.datasets]
        self.starts = np.cumsum([0, *sizes])
        self.lengths = np.concatenate([np.asarray(one.lengths) for one in self.datasets])
        self.parts = np.repeat(np.arange(len(sizes), dtype=np.min_scalar_type(len(sizes))), sizes)
        strata = [one.strata for one in self.datasets if one.strata is not None]
        self.strata = np.concatenate([np.asarray(one) for one in strata]) if len(strata) == len(sizes) else None
        self.fingerprint = compute_fingerprint([[name, one.fingerprint] for name, one in datasets.items()])
        self.length_of_position = max(one.length_of_position for one in self.datasets)
        self.draws_globally = any(one.draws_globally for one in self.datasets)
        self.is_constant = all(one.is_constant for one in self.datasets)
        self.useful_workers = max(one.useful_workers for one in self.datasets)
        budgets = [one.evaluation_budget for one in self.datasets if one.evaluation_budget is not None]
        # Any batch must fit, so the task with the least decides.
        self.evaluation_budget = min(budgets, default=None)

    def example(self, index: int, rng: np.random.Generator) -> OfPart:
        place = int(self.parts[index])
        return OfPart(place, self.datasets[place].example(index - int(self.starts[place]), rng))

    def collate(self, rows: list[list[OfPart]]) -> Batch:
        place = rows[0][0].place
        assert all(one.place == place for row in rows for one in row), "a batch has examples of two tasks"
        batch, name = self.datasets[place].collate([[one.example for one in row] for row in rows]), self.names[place]
        counts = {f"{name}/{unit}": counted for unit, counted in batch.counts.items()}
        return replace(batch, counts=counts, extra={**batch.extra, PART: (name, int(self.starts[place]))})

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        return self.datasets[self.names.index(batch.extra[PART][0])].padding(batch)

    def difficulty(self, measure: str) -> np.ndarray:
        """Return the difficulty of examples by the measure of each task, which are compared within their task only."""
        return np.concatenate([one.difficulty(measure) for one in self.datasets])

    def describe(self, index: int) -> str:
        place = int(self.parts[index])
        return f"{self.names[place]}: {self.datasets[place].describe(index - int(self.starts[place]))}"

    def get_content(self, index: int) -> str:
        place = int(self.parts[index])
        return self.datasets[place].get_content(index - int(self.starts[place]))


def unwrap_batch(batch: Batch) -> tuple[str, Batch]:
    """Return the task of a batch, and the batch as that task collated it, with its own counts and indices."""
    name, start = batch.extra[PART]
    return name, replace(
        batch,
        counts={unit.removeprefix(f"{name}/"): counted for unit, counted in batch.counts.items()},
        indices=[[index - start for index in row] for row in batch.indices],
        extra={key: value for key, value in batch.extra.items() if key != PART},
    )
