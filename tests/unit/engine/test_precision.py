"""The loss scale learns from overflows, precision falls back with one warning, and bf16 trains on a CPU."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quick_cases import mostly_slow
from toy import QUIET, Poisoned, ToyTask, one_step, same_bits, toy_trainer, weights
from toy_duel import DuelTask
from vaak.config.training import PerformanceConfig, TrainingConfig
from vaak.core import machine
from vaak.core.batch import Batch, Term
from vaak.core.errors import NonFiniteError, UserError
from vaak.engine import precision
from vaak.engine.precision import LossScale, Precision
from vaak.engine.trainer import Trainer
from vaak.testing.case import KilledError, Witness

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
    trainer.model.head = overflows = Overflows(trainer.model.get_submodule("head"))
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
    assert warnings == ["mixed_precision: fp16 can't be used (a CPU has no fast fp16); fp32 is used instead"]
    assert trainer.precision.name == "no"
    assert not trainer.state.loss_scale.enabled


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ("flags\t\t: fpu amx_bf16 x\n", True),
        ("Features\t: fp bf16\n", True),
        ("flags : fpu avx2\n", False),
        ("", None),
    ],
)
def test_processors_with_bf16(text: str, fast: bool | None, tmp_path: Path):
    (tmp_path / "cpuinfo").write_text(text)
    assert machine.has_fast_bf16(tmp_path / "cpuinfo") is fast
    assert machine.has_fast_bf16(tmp_path / "none") is None


@pytest.mark.parametrize("fast", [False, True, None])
def test_bf16_that_is_slower_than_fp32_is_said_once(
    fast: bool | None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    precision.supported.cache_clear()
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: fast)
    with caplog.at_level(logging.WARNING, "vaak"):
        trainer = toy_trainer(tmp_path, mixed_precision="bf16", validation={"interval": 2})
        trainer.fit()
    told = "mixed_precision: this processor has no instructions for bf16, which is slower here than fp32 "
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ([told + "(training.mixed_precision=no)"] if fast is False else [])
    assert trainer.precision.name == "bf16"


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


@pytest.mark.parametrize("in_hardware", [True, False])
def test_auto_is_bf16_on_a_gpu_that_multiplies_it_and_tf32_follows(in_hardware: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: in_hardware)
    gpu, auto = torch.device("cuda"), TrainingConfig()
    expected = "bf16" if in_hardware else "no"
    precision.supported.cache_clear()
    assert Precision(auto.mixed_precision, gpu).name == expected
    assert precision.uses_tf32(auto, gpu) is in_hardware
    assert not precision.uses_tf32(TrainingConfig(deterministic=True), gpu)
    assert not precision.uses_tf32(TrainingConfig(mixed_precision="no"), gpu)
    for asked in (True, False):
        assert (
            precision.uses_tf32(TrainingConfig(deterministic=True, performance=PerformanceConfig(tf32=asked)), gpu)
            is asked
        )
    said = precision.precision_in_words(auto, Precision("auto", gpu))
    assert said == ("bf16 with TF32" if in_hardware else "fp32")
    precision.supported.cache_clear()


@pytest.mark.parametrize("fast", [True, False])
def test_auto_is_fp32_on_a_cpu_that_multiplies_bf16_too(fast: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: fast)
    assert Precision("auto", CPU).name == "no"
    assert not precision.uses_tf32(TrainingConfig(), CPU)


def test_autocast_computes_in_the_type_it_is_named_after():
    layer = torch.nn.Linear(2, 2)
    for name, dtype in (("no", torch.float32), ("bf16", torch.bfloat16)):
        with Precision(name, CPU).autocast():
            assert layer(torch.ones(1, 2)).dtype == dtype


class OverflowsInBf16(torch.nn.Module):
    """The module inside, whose result is infinite in 16 bits in the given steps."""

    def __init__(self, inside: torch.nn.Module, trainer: Trainer, steps: range) -> None:
        super().__init__()
        self.inside, self.position, self.steps = inside, trainer.state.position, steps

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inside(x)
        failing = self.training and result.dtype == torch.bfloat16 and self.position.step + 1 in self.steps
        return result * float("inf") if failing else result


def overflowing(folder: Path, steps: range, *, poisoned: bool = False, **options: Any) -> Trainer:
    task = Poisoned() if poisoned else ToyTask(dropout=0.1)
    trainer = toy_trainer(folder, task=task, mixed_precision="bf16", **options)
    head, trainer.model.head = trainer.model.head, torch.nn.Identity()
    trainer.model.head = OverflowsInBf16(head, trainer, steps)  # type: ignore[arg-type]
    return trainer


def test_a_step_that_only_fp32_can_take_is_taken_in_fp32(tmp_path: Path):
    trainer = overflowing(tmp_path, range(2, 3))
    reports = [one_step(trainer)[0] for _ in range(3)]
    assert [report.skipped for report in reports] == [None, None, None]
    assert (trainer.state.precision.failures, trainer.state.precision.fell_back) == (1, False)


def test_after_three_such_steps_training_stays_in_fp32_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    trainer = overflowing(tmp_path, range(2, 99))
    trainer.state.loss_scale = LossScale(True)
    with caplog.at_level(logging.WARNING, "vaak"):
        reports = [one_step(trainer)[0] for _ in range(7)]
    assert [report.skipped for report in reports] == [None] * 7
    assert trainer.state.precision.fell_back
    assert not trainer.state.loss_scale.enabled
    assert [record.getMessage() for record in caplog.records] == [
        "mixed_precision: 3 steps were finite in fp32 but not in bf16; training continues in fp32 "
        "(training.fp32_fallback)"
    ]


def test_a_resume_falls_back_at_the_same_step(tmp_path: Path):
    whole = overflowing(tmp_path / "whole", range(2, 99))
    for _ in range(3):
        one_step(whole)
    snapshot = whole.saving.snapshot()
    for _ in range(4):
        one_step(whole)
    resumed = overflowing(tmp_path / "resumed", range(2, 99))
    resumed.restore(snapshot, tmp_path)
    assert resumed.state.precision.failures == 2
    for _ in range(4):
        one_step(resumed)
    assert resumed.state.precision.fell_back
    assert same_bits(weights(whole), weights(resumed))


def test_without_the_fallback_it_ends_the_run(tmp_path: Path):
    trainer = overflowing(tmp_path, range(2, 3), fp32_fallback=None)
    one_step(trainer)
    with pytest.raises(NonFiniteError):
        one_step(trainer)


class Remembers(torch.nn.Module):
    """The module inside; a buffer follows the mean of its results, as batch normalisation's do."""

    mean: Tensor

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inside(x)
        if self.training:
            self.mean.lerp_(result.detach().float().mean(), 0.1)
        return result


def remembering(trainer: Trainer) -> Trainer:
    trainer.model.head = Remembers(trainer.model.head)  # type: ignore[arg-type]
    return trainer


def test_a_step_that_is_computed_again_has_the_bits_of_fp32_in_buffers_too(tmp_path: Path):
    fallen = remembering(overflowing(tmp_path / "fallen", range(1, 99)))
    plain = remembering(overflowing(tmp_path / "plain", range(0)))
    plain.state.precision.name = "no"
    for _ in range(5):
        assert one_step(fallen)[0].skipped is None
        one_step(plain)
    assert fallen.state.precision.fell_back
    assert same_bits(weights(fallen), weights(plain))


@pytest.mark.parametrize("killed_at", mostly_slow((1, 2, 3, 4, 5), 2, 4))
def test_killed_between_the_failing_steps_a_run_ends_with_the_same_bits(killed_at: int, tmp_path: Path):
    """Steps 1, 3 and 4 fail; from then on, training is in fp32."""

    class FailsIn(OverflowsInBf16):
        def forward(self, x: Tensor) -> Tensor:
            self.steps = range(0) if self.position.step + 1 == 2 else range(1, 99)
            return super().forward(x)

    def made(folder: Path, *callbacks: Witness) -> Trainer:
        trainer = toy_trainer(
            folder, *callbacks, task=ToyTask(dropout=0.1), mixed_precision="bf16", checkpoint={"interval": 1}
        )
        trainer.model.head = FailsIn(trainer.model.head, trainer, range(0))  # type: ignore[arg-type]
        return trainer

    whole = made(tmp_path / "whole")
    assert whole.fit() == "finished"
    witness = Witness(kill_at=killed_at)
    with pytest.raises(KilledError):
        made(tmp_path / "killed", witness).fit()
    resumed = made(tmp_path / "killed")
    assert resumed.resume("auto") == (killed_at > 1)
    assert resumed.state.precision.failures == [0, 1, 1, 2, 3][killed_at - 1]
    assert resumed.fit() == "finished"
    assert resumed.state.precision.fell_back
    assert same_bits(weights(whole), weights(resumed))
    assert whole.metrics == resumed.metrics


def duel(folder: Path, task: DuelTask) -> Trainer:
    """A trainer of two objectives, both of which only fp32 can compute."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(task, TrainingConfig(**QUIET, mixed_precision="bf16"), folder)
    trainer.model.judge = OverflowsInBf16(trainer.model.judge, trainer, range(1, 99))  # type: ignore[arg-type]
    return trainer


def test_a_step_of_two_objectives_is_one_failure(tmp_path: Path):
    trainer = duel(tmp_path, DuelTask())
    for failures in (1, 2, 3, 3):
        assert one_step(trainer)[0].skipped is None
        assert trainer.state.precision.failures == failures


def test_a_step_that_was_not_taken_is_no_failure(tmp_path: Path):
    class Failing(DuelTask):
        def maker_losses(self, model: Any, batch: Batch) -> dict[str, Term]:
            raise UserError("the disk of the maker is full")

    trainer = duel(tmp_path, Failing())
    before = trainer.state.values()
    with pytest.raises(UserError, match="of the maker"):
        one_step(trainer)
    assert trainer.state.values() == before


def test_what_is_not_finite_in_fp32_either_is_diagnosed_in_fp32(tmp_path: Path):
    trainer = overflowing(tmp_path, range(1, 99), poisoned=True, fp32_fallback=99)
    with pytest.raises(NonFiniteError, match=r"the loss main is not a finite number, though all outputs of the model"):
        trainer.fit()


def test_a_restored_state_scales_its_loss_again(tmp_path: Path):
    trainer = overflowing(tmp_path, range(1, 99))
    trainer.state.loss_scale = LossScale(True)
    snapshot = trainer.saving.snapshot()
    for _ in range(4):
        one_step(trainer)
    assert not trainer.state.loss_scale.enabled
    trainer.restore(snapshot, tmp_path)
    assert (trainer.state.loss_scale.enabled, trainer.state.loss_scale.value) == (True, 65536.0)
