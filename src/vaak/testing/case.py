"""A small form of a task, ready to be checked; tests of equality; a callback that records the results of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.storage.files import scratch_folder
from vaak.core.task import Meters, Task, TaskWrapper
from vaak.data.loader import Microbatch
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.snapshot import model_tensors
from vaak.engine.trainer import Trainer

Losses = Callable[[nn.Module, Batch], dict[str, Term]]
SMALL_TRAINING: dict[str, Any] = {
    "device": "cpu",
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 8,
    "validation": {"interval": 4, "interval_epochs": None},
    "checkpoint": {"interval": 2, "interval_epochs": None, "save_total_limit": None},
    "logging": {"tensorboard": False},
}
"""How a case trains where it doesn't say otherwise."""
UNREHEARSED: dict[str, Any] = {"memory": {"rehearsal": False}}
"""Options of a check of a step or two, which take less time than trying the largest batch before them."""
UNEVALUATED: dict[str, Any] = {"validation": {"interval": None, "interval_epochs": None}}
"""Options of a check that looks at steps alone."""


@dataclass(frozen=True)
class Case:
    """A task as the checks need it.

    ``make_task`` makes a new task, prepared, each time it is called: small enough that a step takes milliseconds,
    with examples of different lengths where it can have them, and at least 16 of them. ``training`` overrides
    SMALL_TRAINING.

    ``counted`` counts a batch's units in another way than the task does; ``row_length`` gives the length of a batch's
    longest row in the unit of the dataset's ``lengths``, where that isn't the second dimension of its first tensor;
    ``inputs`` are for ``predict``, none if the task predicts nothing. In ``learning_steps`` steps at
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
        """Return the training section, with ``options`` over the case's own."""
        return TrainingConfig(**{**SMALL_TRAINING, "optimizer": {"lr": self.learning_rate}, **self.training, **options})

    def trainer(self, directory: Path, *callbacks: Callback, task: Task | None = None, **options: Any) -> Trainer:
        """A trainer of the case, or of ``task`` in its place, at its first step; its evaluations draw no pictures."""
        directory.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(task or self.make_task(), self.config(**options), directory, callbacks)
        # Drawing takes longer than all of a step.
        trainer.evaluator = replace(trainer.evaluator, show=None)
        return trainer


@contextlib.contextmanager
def open_trainer(case: Case, task: Task | None = None, **options: Any) -> Iterator[Trainer]:
    """A trainer of the case in a temporary folder."""
    with folder() as directory:
        yield case.trainer(directory, task=task, **options)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder for runs."""
    with scratch_folder("testing") as name:
        yield name


def microbatches(trainer: Trainer) -> list[Microbatch]:
    """Return the microbatches of the next step that have anything in them."""
    with contextlib.closing(trainer.data.steps(trainer.position)) as steps:
        return [microbatch for microbatch in next(steps).microbatches if microbatch.batch is not None]


def batches(trainer: Trainer) -> list[Batch]:
    """Return the batches of the next step."""
    return [microbatch.batch for microbatch in microbatches(trainer) if microbatch.batch is not None]


def compute_terms(trainer: Trainer, batch: Batch) -> dict[str, Term]:
    """Return the terms of a batch, of every objective of the task."""
    terms: dict[str, Term] = {}
    for objective in trainer.step.objectives:
        terms |= objective.gradient.forward.losses(trainer.model, batch)
    return terms


def in_float64(batch: Batch) -> Batch:
    """Return the same batch with every real number in double precision."""
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


class Exact(TaskWrapper):
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


def same(first: Any, second: Any) -> bool:
    """Return whether two values are equal to the last bit, NaN included: tensors, arrays, and what is built of them.

    Fields that a dataclass leaves out of comparisons (a time taken) may differ.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and first.shape == second.shape and _bits(first).equal(_bits(second))
    if isinstance(first, np.ndarray):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and (first.tobytes() == second.tobytes() if first.dtype != object else same([*first], [*second]))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if is_dataclass(first) and not isinstance(first, type):
        compared = [part.name for part in fields(first) if part.compare]
        return all(same(getattr(first, name), getattr(second, name)) for name in compared)
    if hasattr(first, "__dict__") and not callable(first):
        return same(vars(first), vars(second))
    return bool(first == second) or (first != first and second != second)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with a message where a condition doesn't hold, also under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def require_close(found: Mapping[Any, Any], expected: Mapping[Any, Any], what: str, tolerance: float) -> None:
    """Demand equal names, and values that differ by ``tolerance`` at most, relative to the largest or absolute."""
    _require_names(found, expected, what)
    for name, value in expected.items():
        first, second = (torch.as_tensor(one, dtype=torch.float64) for one in (found[name], value))
        require(
            first.shape == second.shape, f"{what}: {name} has shape {tuple(first.shape)}, not {tuple(second.shape)}"
        )
        if not first.numel():
            continue
        off = (first - second).abs().max().item()
        allowed = tolerance * max(1.0, second.abs().max().item())
        shown = f"{first.item():.10g} where {second.item():.10g} was expected" if first.numel() == 1 else "it differs"
        # Written so, NaN fails, too.
        require(off <= allowed, f"{what}: {name}: {shown} (off by {off:.3g}, allowed {allowed:.3g})")


def require_same(found: Mapping[Any, Any], expected: Mapping[Any, Any], what: str) -> None:
    """Demand equal names, and values that are equal to the bit."""
    _require_names(found, expected, what)
    different = [name for name, value in expected.items() if not same(found[name], value)]
    require(not different, f"{what}: {', '.join(map(str, different[:5]))} not equal to the bit")


def _require_names(found: Mapping[Any, Any], expected: Mapping[Any, Any], what: str) -> None:
    """Demand equal names; the message lists those that only one side has."""
    missing, unexpected = (
        [name for name in one if name not in other] for one, other in ((expected, found), (found, expected))
    )
    require(
        not missing and not unexpected, f"{what}: without {_list_names(missing)}, but with {_list_names(unexpected)}"
    )


def _list_names(names: list[Any]) -> str:
    return ", ".join(map(str, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


class KilledError(BaseException):
    """Ends a run as a kill does: nothing more is saved."""


class Witness(Callback):
    """Remembers each step's losses and counts, and the weights after it.

    It asks for the end after step ``stop_at``; at ``kill_at`` it ends the run without a chance to save.
    """

    def __init__(self, stop_at: int | None = None, kill_at: int | None = None) -> None:
        self.stop_at, self.kill_at = stop_at, kill_at
        self.losses: dict[int, dict[str, float]] = {}
        self.counts: dict[int, dict[str, float]] = {}
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.gradients: dict[int, dict[str, Tensor]] = {}

    def watch_gradients(self, trainer: Trainer) -> None:
        """Remember what each step's optimizers are given, too."""

        def remember(*_: Any) -> None:
            given = self.gradients.setdefault(trainer.position.step + 1, {})
            for name, parameter in trainer.model.named_parameters():
                if parameter.grad is not None:
                    given[name] = parameter.grad.clone()

        for optimizer in trainer.state.optimizers:
            optimizer.register_step_pre_hook(remember)

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        self.losses[report.step] = {name: float(loss) for name, loss in report.losses.items()}
        self.counts[report.step] = dict(report.counts)
        self.weights[report.step] = {name: value.clone() for name, value in model_tensors(trainer.model).items()}
        if report.step == self.stop_at:
            trainer.request_stop("seen enough")
        if report.step == self.kill_at:
            raise KilledError
