"""A toy that runs out of memory where a batch has too many rows: forward, backward, or when it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from backwards import FullBackwards, out_of_memory
from processes import join
from toy import ToyMeters, ToyTask, toy_trainer
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.engine.trainer import Trainer


@dataclass
class SmallMachine(ToyTask):
    """A toy that runs out of memory, forward or backward, where a batch has too many rows.

    It does so from step ``in_step`` to ``until_step``.
    """

    where: str = "forward"
    most_rows: int = 4
    in_step: int = 3
    until_step: int = 1000
    trainer: Trainer | None = None
    meters_rows: int = 1000

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = super().losses(model, batch)
        full = self.trainer is not None and self.in_step <= self.trainer.position.step + 1 <= self.until_step
        if full and batch.num_rows > self.most_rows:
            if self.where == "forward":
                raise out_of_memory()
            total = FullBackwards.apply(terms["main"].total)  # type: ignore[no-untyped-call]
            terms["main"] = Term(total, "token")
        return terms

    def meters(self, split: str) -> ToyMeters:
        return SmallMeters(self.meters_rows)


class SmallMeters(ToyMeters):
    def __init__(self, most_rows: int) -> None:
        super().__init__()
        self.most_rows = most_rows

    def update(self, model: nn.Module, batch: Batch) -> None:
        if batch.num_rows > self.most_rows:
            raise out_of_memory()
        super().update(model, batch)


RANKS: dict[str, Any] = {"batch_size": 4, "gradient_accumulation_steps": 4, "epochs": 2, "validation": {"interval": 3}}
"""Ten microbatches an epoch, in steps of 4, 4 and 2; two processes have two or one of each."""


def train_beside_a_small_machine(rank: int, port: int, folder: Path) -> None:
    """One of several processes trains without dropout in float64; only rank 1 runs out of memory, from step 2 on."""
    torch.set_num_threads(1)
    ranks = join(rank, port)
    rows = 1 if rank == 1 else 1000
    task = SmallMachine(dropout=0.0, dtype=torch.float64, most_rows=rows, in_step=2, meters_rows=2 * rows)
    task.trainer = toy_trainer(folder, task=task, ranks=ranks, **RANKS)
    task.trainer.fit()
    ranks.close()


def train_a_divided_model(rank: int, port: int, folder: Path) -> None:
    """The same, with a model that is divided over both: rank 1 runs out of memory in step 2 if it has two rows."""
    torch.set_num_threads(1)
    ranks = join(rank, port)
    task = SmallMachine(dropout=0.0, dtype=torch.float64, most_rows=2 if rank == 1 else 1000, in_step=2)
    options = RANKS | {"distributed": {"strategy": "fsdp"}, "checkpoint": {"interval": 1, "interval_epochs": None}}
    task.trainer = toy_trainer(folder, task=task, ranks=ranks, **options)
    try:
        task.trainer.resume("auto")
        task.trainer.fit()
    except UserError as error:
        (folder / f"said-{rank}").write_text(str(error))
        raise SystemExit(2) from None
    ranks.close()
