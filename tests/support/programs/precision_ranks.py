"""The program of the two real processes in tests/process/test_precision_ranks.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from processes import join
from toy import ToyTask, toy_trainer, weights
from vaak.testing.case import KilledError, Witness


class FailsOnRankOne(nn.Module):
    """The module inside, whose result is infinite in 16 bits on the second process alone."""

    def __init__(self, inside: nn.Module, rank: int) -> None:
        super().__init__()
        self.inside, self.rank = inside, rank

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inside(x)
        fails = self.training and self.rank == 1 and result.dtype == torch.bfloat16
        return result * float("inf") if fails else result


def train_both(rank: int, port: int, folder: Path) -> None:
    """Train whole, and killed after step 2 and resumed; NAME-RANK.safetensors has the weights, .json what was done."""
    ranks = join(rank, port)

    def run(name: str, *callbacks: Witness) -> None:
        options: dict[str, Any] = {"mixed_precision": "bf16", "checkpoint": {"interval": 1}}
        options |= {"gradient_accumulation_steps": 4, "max_steps": 5}
        trainer = toy_trainer(folder / name, *callbacks, task=ToyTask(dropout=0.1), ranks=ranks, **options)
        trainer.model.head = FailsOnRankOne(trainer.model.head, rank)  # type: ignore[arg-type]
        trainer.resume("auto")
        before = trainer.state.precision.failures
        trainer.fit()
        save_file(weights(trainer), folder / f"{name}-{rank}.safetensors")
        said = [before, trainer.state.precision.failures, trainer.position.step, trainer.position.non_finite_steps]
        (folder / f"{name}-{rank}.json").write_text(json.dumps(said))

    run("whole")
    try:
        run("killed", Witness(kill_at=2))
    except KilledError:
        run("killed")
    ranks.close()
