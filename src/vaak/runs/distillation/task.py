"""A task that also learns what a teacher predicts.

    loss = alpha · T² · KL(teacher, student) per unit + (1 - alpha) · the task's own loss + auxiliary losses

Everything else is as in the task itself: evaluations give the figures of the labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.config.distillation import DistillationConfig
from vaak.config.experiment import Experiment
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of, read_json, write_json
from vaak.core.task import Changed, Outputs, Task
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.engine.devices.randomness import keeping_generators
from vaak.engine.objective.distillation import divergence
from vaak.runs.distillation.hidden import KEY as HIDDEN_KEY
from vaak.runs.distillation.hidden import UNIT, HiddenLoss, Once, captured
from vaak.runs.distillation.stored import Stored, size_of, store
from vaak.runs.distillation.teacher import KEY, Teacher, in_order

GIBIBYTE = 2**30
TERM, HIDDEN_TERM = "distillation", "hidden"


def distilled(task: Task, experiment: Experiment[Any, Any], directory: Path) -> Task:
    """The task as the experiment trains it: with a teacher, if it has one."""
    return cast("Task", DistilledTask(task, experiment, directory)) if experiment.distillation else task


class DistilledTask(Changed):
    """A task with a teacher."""

    def __init__(self, task: Task, experiment: Experiment[Any, Any], directory: Path) -> None:
        super().__init__(task)
        assert experiment.distillation is not None
        self.options: DistillationConfig = experiment.distillation
        self.experiment, self.directory = experiment, directory
        self.loss_weights: Mapping[str, float] = {}
        self._hidden: HiddenLoss | None = None

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher. Raises UserError where this task can't learn from it."""
        teacher = Teacher.open(self.options.teacher)
        teacher.demand_same_classes(self.outputs)
        return teacher

    @cached_property
    def outputs(self) -> Outputs:
        return self.task.outputs()

    # Data.

    def prepare(self) -> None:
        """Prepare the data, and the teacher's predictions for them, where these are stored."""
        self.task.prepare()
        self._demand_teacher_of_this_run()
        dataset = self.task.dataset("train")
        examples = self.teacher.examples(self.task, self.outputs, dataset)
        if self._is_stored:
            store(self.teacher, examples, self._folder, self.experiment.training)
        elif examples is not dataset:
            what = "hidden states are learned" if self.options.hidden else "distillation.stored_gib is too small"
            raise UserError(
                f"{KEY}: {self.teacher.source} reads other batches than this run, which it can only where its "
                f"predictions are stored, and {what}: give both the same tokenizer, max_length and kind of model"
            )

    def _demand_teacher_of_this_run(self) -> None:
        """Write down which weights teach. Raises UserError where a run that has begun would resume with others."""
        file = self.directory / "teacher.json"
        about = {"teacher": self.options.teacher, "weights": self.teacher.weights, "source": str(self.teacher.source)}
        if file.exists() and list_checkpoints(self.directory / "checkpoints"):
            before = read_json(file)
            if before["weights"] != about["weights"]:
                raise UserError(
                    f"{KEY}: {self.options.teacher} has other weights than when this run began (then "
                    f"{before['source']}): name that checkpoint, if it is still there, or start a new run"
                )
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(file, about)

    @cached_property
    def _is_stored(self) -> bool:
        """Whether the teacher's predictions are stored: a function of options and data alone."""
        dataset = self.task.dataset("train")
        if self.options.hidden or not dataset.is_constant:
            return False
        return size_of(dataset, self.outputs) <= self.options.stored_gib * GIBIBYTE

    @cached_property
    def _folder(self) -> Path:
        """Where its predictions are stored: with a cache, next to prepared data."""
        cache = getattr(self.experiment.data, "cache_dir", None)
        if cache is None:
            return self.directory / "teacher"
        known = [self.teacher.weights, self.task.dataset("train").fingerprint, self.outputs.reading]
        return Path(cache) / f"teacher-{fingerprint_of(known)}"

    @cached_property
    def _stored(self) -> Stored:
        return Stored.open(self._folder)

    # Training.

    def model(self) -> nn.Module:
        """The student; by one example, the names of its losses and the widths of hidden states are found."""
        model = self.task.model()
        with keeping_generators(torch.device("cpu")):
            self._look_at(model)
        return model

    @torch.no_grad()
    def _look_at(self, model: nn.Module) -> None:
        dataset = self.task.dataset("train")
        batch = dataset.collate([[dataset.example(0, np.random.default_rng(0))]])
        batch.indices = [[0]]
        model.eval()
        with captured(model, [one.student for one in self.options.hidden]) as own:
            terms = self.task.losses(model, batch)
        model.train()
        further = {*self.experiment.training.loss.auxiliary, *self.task.observed}
        labels = dict.fromkeys((name for name in terms if name not in further), 1 - self.options.alpha)
        self.loss_weights = {**labels, TERM: self.options.alpha}
        if self.options.hidden:
            if UNIT not in batch.counts:
                raise UserError(f"{HIDDEN_KEY}: the batches of this task don't count positions; leave it out")
            _, other = self._taught(batch)
            self._hidden = HiddenLoss(self.options.hidden, own, other)

    def loss_modules(self) -> dict[str, nn.Module]:
        return {**self.task.loss_modules(), **({HIDDEN_TERM: self._hidden} if self._hidden is not None else {})}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        once = Once(model)
        with captured(model, [one.student for one in self.options.hidden]) as own:
            terms = self.task.losses(once, batch)
        found = in_order(self.task.logits(once, batch), self.outputs)
        wanted, other = self._taught(batch)
        parts = zip(self.outputs.classes, found, wanted, strict=True)
        total = sum(
            self.outputs.weights.get(name, 1.0) * divergence(one, two, self.options.temperature)
            for name, one, two in parts
        )
        terms[TERM] = Term(cast("Tensor", total), self.outputs.per)
        if self._hidden is not None:
            terms[HIDDEN_TERM] = Term(self._hidden(own, other, batch), UNIT)
        return terms

    def _taught(self, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """The teacher's logits of a batch, and its hidden states: as they were stored, or computed."""
        if self._is_stored:
            return self._stored.of(batch), []
        with captured(self.teacher.on_device_of(batch), [one.teacher for one in self.options.hidden]) as hidden:
            logits = self.teacher.logits(batch)
        return in_order(logits, self.outputs), hidden
