"""The loss scale learns from overflows, precision falls back with one warning, and bf16 trains on a CPU."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from toy import ToyTask, one_step, same_bits, toy_trainer, weights
from vaak.engine.devices import precision
from vaak.engine.devices.precision import LossScale, Precision
from vaak.engine.trainer import Trainer

CPU = torch.device("cpu")


def trainer_with_scale(folder: Path, fixed: float | None = None) -> Trainer:
    """A trainer that scales its loss as with fp16, which a CPU doesn't have."""
    trainer = toy_trainer(folder, task=ToyTask(dropout=0.0))
    trainer.state.loss_scale = LossScale(True, fixed)
    return trainer


class Overflows(torch.nn.Module):
    """The module inside, with gradients that are infinite while ``on``."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside, self.on = inside, True

    def forward(self, x: Tensor) -> Tensor:
        result = self.inside(x)
        if self.on:
            result.register_hook(lambda gradient: gradient * float("inf"))
        return result


def test_the_scale_halves_at_an_overflow_and_doubles_after_2000_steps_without():
    scale = LossScale(True)
    scale.update(None)
    scale.update("overflow")
    assert scale.value == 32768
    for _ in range(1999):
        scale.update(None)
    assert scale.value == 32768
    scale.update(None)
    assert scale.value == 65536


def test_the_scale_never_falls_below_one():
    scale = LossScale(True)
    for _ in range(40):
        scale.update("overflow")
    assert scale.value == 1


def test_a_fixed_scale_stays_and_none_is_one():
    for scale, value in ((LossScale(True, 128.0), 128.0), (LossScale(False), 1.0)):
        for finite in [False] * 3 + [True] * 3000:
            scale.update(None if finite else "overflow")
        assert scale.value == value


def test_the_scale_goes_on_after_a_round_trip():
    first = LossScale(True)
    for finite in [True, False, *[True] * 1500]:
        first.update(None if finite else "overflow")
    second = LossScale(True)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        for _ in range(500):
            scale.update(None)
    assert first.state_dict() == second.state_dict() == {"value": 65536, "steps_since_change": 0}


def test_a_checkpoint_without_fp16_leaves_the_scale_of_a_run_with_it():
    scale = LossScale(True)
    scale.load_state_dict(LossScale(False).state_dict())
    assert scale.value == 65536


@pytest.mark.parametrize("fixed", [None, 128.0])
def test_a_scaled_step_is_the_unscaled_one(fixed: float | None, tmp_path: Path):
    """The scale is a power of two, so nothing is rounded."""
    plain, scaled = toy_trainer(tmp_path, task=ToyTask(dropout=0.0)), trainer_with_scale(tmp_path, fixed)
    for _ in range(3):
        one_step(plain)
        report, _ = one_step(scaled)
        assert report.loss_scale == (fixed or 65536)
        assert not report.skipped
    assert same_bits(weights(plain), weights(scaled))


def test_an_overflow_skips_the_update_but_is_a_step(tmp_path: Path):
    trainer = trainer_with_scale(tmp_path)
    trainer.model.head = overflows = Overflows(trainer.model.head)
    before, state = weights(trainer), len(trainer.state.optimizers[0].state)
    report, gradients = one_step(trainer)
    assert report.skipped == "overflow"
    assert report.loss_scale == 65536
    assert not gradients  # the optimizer was never asked
    assert same_bits(before, weights(trainer))
    assert len(trainer.state.optimizers[0].state) == state
    assert (trainer.position.step, trainer.position.place, trainer.state.loss_scale.value) == (1, 3, 32768)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    overflows.on = False
    report, _ = one_step(trainer)
    assert (report.step, report.skipped, report.loss_scale) == (2, None, 32768)
    assert not same_bits(before, weights(trainer))


def test_fp16_on_a_cpu_goes_on_in_fp32_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    precision.supported.cache_clear()
    with caplog.at_level(logging.WARNING, "vaak"):
        trainer = toy_trainer(tmp_path, mixed_precision="fp16", validation={"interval": 2})
        trainer.fit()
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["mixed_precision: fp16 can't be used (a CPU has no fast fp16); training continues in fp32"]
    assert trainer.precision.name == "no"
    assert not trainer.state.loss_scale.enabled


def test_bf16_trains_on_a_cpu_near_fp32(tmp_path: Path):
    losses = {}
    for name in ("no", "bf16"):
        trainer = toy_trainer(tmp_path / name, task=ToyTask(noise=0.0, dropout=0.0), mixed_precision=name, epochs=10)
        first, _ = one_step(trainer)
        trainer.fit()
        losses[name] = (float(first.losses["main"]), trainer.metrics["val_loss"])
        assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())
    assert losses["bf16"] != losses["no"]
    assert losses["bf16"] == pytest.approx(losses["no"], rel=0.02)


def test_autocast_computes_in_the_type_it_is_named_after():
    layer = torch.nn.Linear(2, 2)
    for name, dtype in (("no", torch.float32), ("bf16", torch.bfloat16)):
        with Precision(name, CPU).autocast():
            assert layer(torch.ones(1, 2)).dtype == dtype
