"""A small form of a task, ready to be checked."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.callback import Callback
from vaak.core.task import Changed, Meters, Task
from vaak.data.reader import Microbatch
from vaak.engine.trainer import Trainer

Losses = Callable[[nn.Module, Batch], dict[str, Term]]

SMALL: dict[str, Any] = {
    "device": "cpu",
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 8,
    "validation": {"interval": 4, "interval_epochs": None},
    "checkpoint": {"interval": 2, "interval_epochs": None, "save_total_limit": None},
    "logging": {"tensorboard": False},
}
"""How a case trains where it doesn't say otherwise."""


@dataclass(frozen=True)
class Case:
    """What the checks need to know of a task.

    ``make_task`` makes a new task, prepared, each time it is called: small enough that a step takes milliseconds,
    with examples of different lengths where it can have them, and at least 16 of them. ``training`` goes over SMALL.

    ``counted`` counts a batch's units in another way than the task does; ``row_length`` gives the length of a batch's
    longest row in the unit of the dataset's ``lengths``, where that isn't the second dimension of its first tensor;
    ``inputs`` are for ``predict``, none where the task predicts nothing. In ``learning_steps`` steps at
    ``learning_rate``, one batch is to be overfitted: its loss ``learned_loss``, the first one where that is None,
    falls to the fraction ``learned`` of what it was.
    """

    make_task: Callable[[], Task]
    inputs: Sequence[Any] = ()
    counted: Callable[[Batch], Mapping[str, float]] | None = None
    row_length: Callable[[Batch], float] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float = 0.01
    learning_steps: int = 80
    learned: float = 0.35
    learned_loss: str | None = None

    def config(self, **options: Any) -> TrainingConfig:
        """The training section, with ``options`` over the case's own."""
        return TrainingConfig(**{**SMALL, "optimizer": {"lr": self.learning_rate}, **self.training, **options})

    def trainer(self, directory: Path, *callbacks: Callback, task: Task | None = None, **options: Any) -> Trainer:
        """A trainer of the case, or of ``task`` in its place, at its first step."""
        directory.mkdir(parents=True, exist_ok=True)
        return Trainer(task or self.make_task(), self.config(**options), directory, callbacks)


@contextlib.contextmanager
def open_trainer(case: Case, task: Task | None = None, **options: Any) -> Iterator[Trainer]:
    """A trainer of the case in a temporary folder."""
    with folder() as directory:
        yield case.trainer(directory, task=task, **options)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder for runs."""
    with tempfile.TemporaryDirectory(prefix="vaak-testing-") as name:
        yield Path(name)


def microbatches(trainer: Trainer) -> list[Microbatch]:
    """The microbatches of the next step that have anything in them."""
    with contextlib.closing(trainer.data.steps(trainer.position)) as steps:
        return [microbatch for microbatch in next(steps).microbatches if microbatch.batch is not None]


def batches(trainer: Trainer) -> list[Batch]:
    """The batches of the next step."""
    return [microbatch.batch for microbatch in microbatches(trainer) if microbatch.batch is not None]


def terms_of(trainer: Trainer, batch: Batch) -> dict[str, Term]:
    """The terms of a batch, of every objective of the task."""
    terms: dict[str, Term] = {}
    for objective in trainer.step.objectives:
        terms |= objective.gradient.forward.losses(trainer.model, batch)
    return terms


def in_float64(batch: Batch) -> Batch:
    """The same batch with every real number in double precision."""
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.tensors.items()
    }
    return replace(batch, tensors=tensors)


class ExactMeters(Meters):
    """Meters that are shown batches in float64."""

    def __init__(self, meters: Meters) -> None:
        self.protocol = meters.protocol
        self._meters = meters

    def update(self, model: nn.Module, batch: Batch) -> None:
        self._meters.update(model, in_float64(batch))

    def sums(self) -> dict[str, float]:
        return self._meters.sums()

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return self._meters.results(sums)


class Exact(Changed):
    """A task in float64 and, unless ``dropout``, in evaluation mode, where sums in any order are equal to 1e-9."""

    def __init__(self, task: Task, dropout: bool = False) -> None:
        super().__init__(task)
        self.dropout = dropout
        self.objectives = tuple(replace(one, losses=self._exactly(one.losses)) for one in task.objectives)

    def model(self) -> nn.Module:
        return self.task.model().double()

    def loss_modules(self) -> dict[str, nn.Module]:
        return {name: module.double() for name, module in self.task.loss_modules().items()}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return self._exactly(self.task.losses)(model, batch)

    def meters(self, split: str) -> Meters:
        return ExactMeters(self.task.meters(split))

    def _exactly(self, losses: Losses) -> Losses:
        def exact_losses(model: nn.Module, batch: Batch) -> dict[str, Term]:
            model.train(self.dropout)
            return losses(model, in_float64(batch))

        return exact_losses


def exact(task: Task, dropout: bool = False) -> Task:
    """``Exact`` as a task."""
    return cast("Task", Exact(task, dropout))
