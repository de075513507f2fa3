"""The research kit's Python names that no other part of Vaak has.

    from src.training.distillation import DistillationTrainer   →   from vaak.compat.research_kit import ...
    from src.training.multitask import MultiTaskTrainer

They train models that are in memory, on examples of Python; a YAML does the same for runs (docs/distillation.md,
docs/multitask.md).
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from vaak.compat.stages import Stages
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Meters
from vaak.core.task import Task as AnyTask
from vaak.library.fit import fit
from vaak.library.simple_task import Collate, SimpleTask, padded
from vaak.library.trained_run import TrainedRun
from vaak.nn.losses import divergence
from vaak.tasks.base import EXAMPLE, Metric
from vaak.tasks.multitask.data import JointDataset
from vaak.tasks.multitask.metrics import JointMeters
from vaak.tasks.multitask.task import JointTask

log = logging.getLogger("vaak")


def cross_entropy(model: nn.Module, batch: Batch) -> Term:
    """The loss of a classifier that gives logits ``(row, class)`` for the inputs of a batch."""
    logits = _logits(model, batch)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return Term(F.cross_entropy(precise, batch["targets"], reduction="sum"), EXAMPLE)


def accuracy(model: nn.Module, batch: Batch) -> Tensor:
    """1 for each row whose class is right, and 0 for the others."""
    return (_logits(model, batch).argmax(-1) == batch["targets"]).float()


class Trainer:
    """Trains a model in place, each time ``train`` is called: freeze, train, unfreeze, lower a rate, train.

    Each training is a run: ``directory``, then DIRECTORY-2, and so on. It starts from the present weights and the
    previous run's moments, and leaves the weights of its best checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[str, Any] | Any,
        directory: str | PathLike[str] = "runs/trained",
        *,
        loss: Callable[[nn.Module, Batch], Any] = cross_entropy,
        metrics: Mapping[str, Metric] | None = None,
        collate: Collate = padded,
        **training: Any,
    ) -> None:
        """``data`` are examples ``(inputs, label)``, or these by split.

        ``loss``, ``metrics`` (``accuracy`` if not given) and ``collate`` are those of ``vaak.SimpleTask``, and
        ``training`` options of ``vaak.fit``.
        """
        self.model, self.directory, self.training = model, Path(directory), training
        values = {"accuracy": accuracy} if metrics is None else metrics
        self._task = SimpleTask(
            data=data, model=lambda: model, loss=loss, metrics=values, collate=collate, name="research_kit"
        )
        self._stages, self._done = Stages(), 0

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the last training. A rate set in its ``param_groups`` is the rate of the next ``train``.

        Raises UserError before the first training.
        """
        if not self._stages.optimizers:
            raise UserError("training hasn't begun: call train first")
        return self._stages.optimizers[0]

    def train(self, epochs: float | None = None, **training: Any) -> TrainedRun:
        """Train, in place, and open the run; ``epochs`` and ``training`` replace the trainer's own options.

        Raises what ``vaak.fit`` does.
        """
        options = {"random_seed": TrainingConfig().random_seed, **self.training, **training}
        options |= {} if epochs is None else {"epochs": epochs}
        options["random_seed"] += self._done
        configured = [options.get(name) for name in ("learning_rate", "optimizer")]
        rate = self._stages.rate(self.optimizer if self._done else None, configured)
        if rate is not None:
            options.pop("learning_rate", None)
            own = options.get("optimizer") or {}
            options["optimizer"] = {**({"type": own} if isinstance(own, str) else own), "lr": rate}
        ending = f"-{self._done + 1}" if self._done else ""
        directory = self.directory.with_name(self.directory.name + ending)
        run = fit(self._task, directory, callbacks=(self._stages,), **options)
        self._done += 1
        self._stages.remember(self.optimizer, self._stages.peak)
        return run


class DistillationTrainer:
    """Trains a small classifier to predict what a large one predicts, and the labels.

    The loss is alpha · T² · KL(teacher, student) + (1 - alpha) · cross-entropy, each a mean over the examples of a
    step. Both models give logits ``(row, class)`` for the inputs of a batch; the teacher isn't changed.
    """

    def __init__(
        self, student_model: nn.Module, teacher_model: nn.Module, temperature: float = 4.0, alpha: float = 0.7
    ) -> None:
        """Raises UserError for a temperature that isn't above 0, or an alpha that isn't from 0 to 1."""
        if not temperature > 0:
            raise UserError(f"temperature is {temperature}; expected a number above 0")
        if not 0 <= alpha <= 1:
            raise UserError(f"alpha is {alpha}; expected a number from 0 to 1")
        self.student_model, self.teacher_model = student_model, teacher_model
        self.temperature, self.alpha = temperature, alpha

    def train(
        self,
        data: Mapping[str, Any] | Any,
        directory: str | PathLike[str] = "runs/distilled",
        *,
        collate: Collate = padded,
        **training: Any,
    ) -> TrainedRun:
        """Train the student, in place, and open its run.

        ``data`` are examples ``(inputs, label)``, or these by split, put together by ``collate``
        (``vaak.SimpleTask``); ``training`` are options of ``vaak.fit``, such as ``epochs``. Raises what ``fit`` does,
        and UserError if the models give logits of different shapes.
        """
        trainer = Trainer(self.student_model, data, directory, loss=self.losses, collate=collate, **training)
        return trainer.train()

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        """The two parts of the loss of a batch, weighted, as sums over its examples."""
        student, targets = _logits(model, batch), batch["targets"]
        with torch.no_grad():
            teacher = _logits(self.teacher_model.to(student.device).eval(), batch)
        if student.shape != teacher.shape:
            shapes = f"{tuple(student.shape)} and {tuple(teacher.shape)}"
            raise UserError(f"student and teacher give logits of shapes {shapes}; both must have the same classes")
        soft = self.alpha * divergence(student, teacher, self.temperature)
        precise = student.to(torch.promote_types(student.dtype, torch.float32))
        hard = (1 - self.alpha) * F.cross_entropy(precise, targets, reduction="sum")
        return {"distillation": Term(soft, EXAMPLE), "cross_entropy": Term(hard, EXAMPLE)}


class MultiTaskTrainer:
    """Trains classifiers, each on its own examples, at once; those with a module in common learn it from all.

    The loss is the sum of each task's ``loss_weights`` times its cross-entropy, a mean over its examples of a step.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        datasets: Mapping[str, Any],
        loss_weights: Mapping[str, float] | None = None,
    ) -> None:
        """``datasets`` are examples ``(inputs, label)`` of each task, or these by split; a weight not given is 1.

        Raises UserError if models, datasets and weights aren't of the same tasks.
        """
        weights = dict(loss_weights or {})
        for name in {**models, **datasets, **weights}:
            if name not in models or name not in datasets:
                lacking = "model" if name not in models else "dataset"
                raise UserError(
                    f"the task {name} has no {lacking}: models, datasets and loss_weights have the same names"
                )
        self.models, self.datasets, self.loss_weights = dict(models), dict(datasets), weights

    def train(
        self, directory: str | PathLike[str] = "runs/multitask", *, collate: Collate = padded, **training: Any
    ) -> TrainedRun:
        """Train the models, in place, and open their run; ``collate`` and ``training`` as in ``DistillationTrainer``.

        Raises what ``vaak.fit`` does.
        """
        run = fit(_InMemory(self, collate), directory, **training)
        for name, model in self.models.items():
            model.load_state_dict(run.model.get_submodule(f"tasks.{name}").state_dict())
        return run


class _InMemory(JointTask):
    """The tasks of models in memory, which are copied together, so that what they have in common stays so."""

    name = "several_tasks"

    def __init__(self, trainer: MultiTaskTrainer, collate: Collate) -> None:
        self.models = trainer.models
        parts = {
            name: SimpleTask(
                data=trainer.datasets[name],
                model=model,
                loss=cross_entropy,
                metrics={"accuracy": accuracy},
                collate=collate,
                name=name,
            )
            for name, model in trainer.models.items()
        }
        super().__init__(parts, trainer.loss_weights)
        without = [name for name, part in parts.items() if not part.evaluation_splits]
        if without and len(without) < len(parts):
            log.warning("%s: no examples for valid, so evaluations are of the other tasks", ", ".join(without))
        elif without:
            log.warning("no task has examples for valid, so nothing is evaluated: give datasets by split")
        self.evaluation_splits = ("valid",) if len(without) < len(parts) else ()

    def dataset(self, split: str) -> JointDataset:
        """The examples of the tasks that have this split."""
        if split in self.evaluation_splits:
            return JointDataset({name: part.dataset(split) for name, part in self._evaluated_tasks().items()})
        return super().dataset(split)

    def meters(self, split: str) -> Meters:
        meters = {name: part.meters(split) for name, part in self._evaluated_tasks().items()}
        return JointMeters(meters, split, self.weights) if split in self.evaluation_splits else super().meters(split)

    def _evaluated_tasks(self) -> dict[str, AnyTask]:
        return {name: part for name, part in self.inner_tasks.items() if part.evaluation_splits}

    def models_of_tasks(self) -> dict[str, nn.Module]:
        return copy.deepcopy(self.models)


MASKS = ("mask", "inputs_mask", "input_mask", "attention_mask", "padding_mask")
"""Names of a parameter of ``forward`` that takes a mask, True where data is real."""


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return a model's logits for the inputs of a batch; the model may be one of transformers.

    Where rows are sequences, a ``forward`` with a mask among its parameters, or a second one that it requires, gets
    theirs. Raises UserError if there is none, but the rows differ in length.
    """
    found = model(batch["inputs"], *_mask_by_place(model, batch), **_mask_by_name(model, batch))
    logits: Tensor = getattr(found, "logits", found)
    return logits


def _mask_by_name(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    name = next((one for one in _parameters(model) if one in MASKS), None)
    return {} if name is None or "inputs_mask" not in batch.tensors else {name: batch["inputs_mask"]}


def _mask_by_place(model: nn.Module, batch: Batch) -> list[Tensor]:
    if "inputs_mask" not in batch.tensors or _mask_by_name(model, batch):
        return []
    second = [*_parameters(model).values()][1:2]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if second and second[0].default is inspect.Parameter.empty and second[0].kind in by_place:
        return [batch["inputs_mask"]]
    if not bool(batch["inputs_mask"].all()):
        raise UserError(
            f"inputs differ in length, so they are padded, and {type(model).__name__}.forward has no parameter mask: "
            "add one, True where data is real, or give inputs of one length"
        )
    return []


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(getattr(model, "_orig_mod", model).forward).parameters
