"""On a GPU an update is started before the program knows that its step is finite; if it isn't, nothing changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mock_cuda import MockDevice
from quick_cases import mostly_slow
from toy import Poisoned, ToyTask, next_data, same_bits, toy_trainer
from vaak.core.batch import Batch, Term
from vaak.engine.callback import StepReport
from vaak.engine.trainer import Trainer

STEPS = 8
"""Two epochs, in each of which one step has the example that isn't finite."""


@dataclass
class PoisonedIn16Bits(Poisoned):
    """Its numbers are finite in fp32."""

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return (Poisoned if torch.is_autocast_enabled("cuda") else ToyTask).losses(self, model, batch)


def taken(trainer: Trainer, gpu: MockDevice) -> tuple[list[StepReport], list[list[int]]]:
    """The reports of some steps, and how often the program had waited in each when an update was started."""
    waits, reports = list[list[int]](), list[StepReport]()
    (optimizer,) = trainer.state.optimizers
    step = optimizer.step

    def watched(*given: Any) -> Any:
        waits[-1].append(len(gpu.waits()) - before)
        return step(*given)

    setattr(optimizer, "step", watched)  # noqa: B010 (mypy refuses the assignment)
    for _ in range(STEPS):
        before = len(gpu.waits())
        waits.append([])
        reports.append(trainer.take_step(next_data(trainer)))
    return reports, waits


@pytest.mark.parametrize("task", [Poisoned, PoisonedIn16Bits])
@pytest.mark.parametrize("precision", mostly_slow(("no", "bf16"), "no"))
def test_an_update_that_was_started_changes_no_bit(
    precision: str, task: type[ToyTask], gpu: MockDevice, tmp_path: Path
):
    """All of the state is as if the program had waited first, and so is what it says and writes of the steps."""
    options: dict[str, Any] = {"device": "cuda", "non_finite": {"max_skipped": 9}, "ema": {"decay": 0.9}}
    ahead, waiting = (
        toy_trainer(tmp_path / name, task=task(), mixed_precision=precision, **options) for name in ("ahead", "waiting")
    )
    vars(waiting.state.optimizers[0])["obeys_found_inf"] = False
    (reports, waits), (expected, others) = taken(ahead, gpu), taken(waiting, gpu)
    skipped = [report.skipped for report in reports]
    assert skipped == [report.skipped for report in expected]
    assert skipped.count("non_finite") == (0 if task is PoisonedIn16Bits else 2)
    assert [bool(of_step) for of_step in others] == [one is None for one in skipped], "the skipped ones have no update"
    late = [of_step for of_step in waits if of_step[0] != 0]
    assert len(late) <= 1, "only the first update, which makes moments, may be late"
    before, after = (trainer.saving.snapshot() for trainer in (waiting, ahead))
    for part in ("model", "optimizer", "average", "loss"):
        assert same_bits(getattr(after, part), getattr(before, part)), part
    assert after.state == before.state
    assert ahead.state.precision.failures == (2 if precision == "bf16" and task is PoisonedIn16Bits else 0)
    written = [
        {one.name: one.read_text() for one in (tmp_path / name).glob("non_finite/*")} for name in ("ahead", "waiting")
    ]
    assert written[0] == written[1]
    assert len(written[0]) == skipped.count("non_finite")
