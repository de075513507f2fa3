"""The teacher of a run: a trained model and its task, and whether a student can learn from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset, Outputs, Task
from vaak.engine.checkpoint.files import about_checkpoint
from vaak.engine.devices.randomness import keeping_generators
from vaak.runs.open_run import open_run

KEY = "distillation.teacher"
READ_IN_USE = ("model.safetensors", "frozen.safetensors", "average.safetensors")


@dataclass(frozen=True)
class Teacher:
    """A trained model in evaluation mode; ``weights`` hashes its weights, ``source`` is where they are from."""

    task: Task
    model: nn.Module
    weights: str
    source: Path

    @classmethod
    def open(cls, run: str) -> Teacher:
        """The teacher of a run or a checkpoint, on the CPU. Raises UserError where it can't be opened."""
        with keeping_generators(torch.device("cpu")):
            try:
                opened = open_run(Path(run).expanduser(), device="cpu")
            except UserError as error:
                raise UserError(f"{KEY}: {error}") from error
        files = about_checkpoint(opened.checkpoint)["files"]
        mark = fingerprint_of([opened.weights, *(files[name]["sha256"] for name in READ_IN_USE if name in files)])
        return cls(opened.task, opened.model.requires_grad_(False), mark, opened.checkpoint)

    @torch.no_grad()
    def logits(self, batch: Batch) -> dict[str, Tensor]:
        """What it predicts, on the device of the batch."""
        return self.task.logits(self.on_device_of(batch), batch)

    def on_device_of(self, batch: Batch) -> nn.Module:
        """The model, moved to where the batch is."""
        device = next(iter(batch.tensors.values())).device
        if next(self.model.parameters()).device != device:
            self.model.to(device)
        return self.model

    def outputs(self) -> Outputs:
        """Raises UserError for a teacher without logits."""
        return self.task.outputs()

    def demand_same_classes(self, student: Outputs) -> None:
        """Raises UserError where it chooses between other things than the student."""
        own = self.outputs()
        if list(own.classes) != list(student.classes):
            raise UserError(
                f"{KEY}: {self.source} predicts {', '.join(own.classes)}, and this run {', '.join(student.classes)}: "
                "teacher and student must be of the same task and label columns"
            )
        for name, classes in student.classes.items():
            if own.classes[name] != classes:
                raise UserError(
                    f"{KEY}: {self.source} has other classes of {name} than this run "
                    f"({_difference(own.classes[name], classes)}): train both on the same labels and vocabulary"
                )

    def examples(self, student: Task, own: Outputs, dataset: Dataset) -> Dataset:
        """The student's training examples as the teacher reads them: the same, where both read alike.

        Raises UserError where it reads otherwise, and can't read these.
        """
        if self.outputs().reading == own.reading:
            return dataset
        rows = student.readable_elsewhere("train") if dataset.is_constant else None
        if rows is None:
            what = "whose examples are augmented" if not dataset.is_constant else "whose examples it can't read again"
            raise UserError(
                f"{KEY}: {self.source} reads other batches than this run, {what}: give both the same tokenizer, "
                "max_length and kind of model"
            )
        return self.task.dataset_of(rows)


def _difference(teacher: list[str], student: list[str]) -> str:
    """Where two lists of classes differ, in words."""
    for number, (one, other) in enumerate(zip(teacher, student, strict=False)):
        if one != other:
            return f"number {number} is {one!r} there and {other!r} here"
    return f"{len(teacher):,} there, {len(student):,} here"


def in_order(found: Mapping[str, Tensor], outputs: Outputs) -> list[Tensor]:
    """Logits in the order of their names, each with its unit first."""
    return [found[name] for name in outputs.classes]
