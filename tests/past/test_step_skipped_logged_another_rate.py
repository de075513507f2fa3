"""A skipped step left its mark on rates, and rates on what came later.

Skipped, a step logged the rate of the step before it, or after a resume that of none; a fixed loss scale skipped steps
for ever; and the evaluation at the end of a run lowered the rates of the longer run that it was extended to.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from toy import Poisoned, StopAt, ToyTask, next_data, same_bits, toy_trainer, weights
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.step_log import StepLogCallback
from vaak.core.errors import NonFiniteError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.metrics_file import read_records
from vaak.engine.precision import LossScale
from vaak.engine.trainer import Trainer


def begun(folder: Path, *callbacks: Callback, task: ToyTask | None = None, **training: Any) -> Trainer:
    trainer = toy_trainer(folder, StepLogCallback(1), *callbacks, task=task, **training)
    trainer.resume("auto")
    return trainer


def rates(folder: Path) -> dict[int, float]:
    records = read_records(folder / "metrics.jsonl")
    return {record["step"]: record["learning_rate"] for record in records if record["kind"] == "step"}


class Reports(Callback):
    def __init__(self) -> None:
        self.skipped: dict[int, str | None] = {}

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        self.skipped[report.step] = report.skipped


@pytest.mark.parametrize("scheduler", [{"type": "cosine", "warmup_steps": 3}, {"type": "plateau", "patience": 0}])
def test_a_skipped_step_logs_its_own_rate_also_where_it_is_the_first_after_a_resume(
    scheduler: dict[str, Any], tmp_path: Path
):
    options: dict[str, Any] = {"scheduler": scheduler, "non_finite": {"max_skipped": 9}, "validation": {"interval": 1}}
    reports = Reports()
    whole = begun(tmp_path / "whole", reports, task=Poisoned(), **options)
    whole.fit()
    skipped = [step for step, why in reports.skipped.items() if why == "non_finite"]
    assert len(skipped) == 2
    for stop in range(1, 9):
        begun(tmp_path / "again", StopAt(stop), task=Poisoned(), **options).fit()
    begun(tmp_path / "again", task=Poisoned(), **options).fit()
    assert rates(tmp_path / "again") == rates(tmp_path / "whole")
    if scheduler["type"] == "cosine":
        schedule, peak = whole.step.schedule, whole.config.optimizer.lr
        assert rates(tmp_path / "whole") == {step: peak * schedule(step) for step in range(1, 9)}


def test_an_overflow_of_fp16_logs_its_own_rate(tmp_path: Path):
    trainer = toy_trainer(tmp_path, scheduler={"type": "linear", "warmup_steps": 4})
    trainer.state.loss_scale.enabled, trainer.state.loss_scale.value = True, 2.0**16
    trainer.model.get_parameter("head.weight").register_hook(lambda gradient: gradient * float("inf"))
    for step in range(1, 5):
        report = trainer.take_step(next_data(trainer))
        assert report.skipped == "overflow"
        assert report.learning_rate == 0.01 * trainer.step.schedule(step) == pytest.approx(0.01 * step / 4)


@pytest.mark.parametrize("allowed", [0, 2])
def test_a_fixed_loss_scale_that_overflows_ends_the_run(allowed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """No other scale will be tried, so each step would overflow as the first did."""
    trainer = toy_trainer(tmp_path, non_finite={"max_skipped": allowed})
    trainer.state.loss_scale = LossScale(enabled=True, fixed=65536.0)
    trainer.model.get_parameter("head.weight").register_hook(lambda gradient: gradient * float("inf"))
    before = weights(trainer)
    told = r"lower training\.amp_loss_scale or leave it out"
    with caplog.at_level(logging.WARNING, "vaak"), pytest.raises(NonFiniteError, match=told) as raised:
        trainer.fit()
    assert "\n" not in str(raised.value)
    assert trainer.position.step == trainer.position.non_finite_steps == allowed
    assert sum("the step is skipped" in message for message in caplog.messages) == allowed
    assert same_bits(weights(trainer), before)
    assert trainer.state.loss_scale.value == 65536.0


def test_a_scale_that_learns_goes_on_until_it_can_fall_no_further(tmp_path: Path):
    """Overflows count for nothing as long as a smaller scale may help."""
    trainer = toy_trainer(tmp_path, epochs=9)
    trainer.state.loss_scale.enabled, trainer.state.loss_scale.value = True, 2.0**5
    trainer.model.get_parameter("head.weight").register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NonFiniteError):
        trainer.fit()
    assert (trainer.position.step, trainer.state.loss_scale.value) == (5, 1.0)


@pytest.mark.parametrize("interval", [{"interval": 3}, {"interval": None, "interval_epochs": 2}])
def test_an_extended_run_is_the_longer_one(interval: dict[str, Any], tmp_path: Path):
    """The evaluation after the last step is on no schedule: rates and patience learn nothing of it."""
    options: dict[str, Any] = {
        "validation": interval,
        "scheduler": {"type": "plateau", "patience": 0, "factor": 0.5, "mode": "max"},  # the loss falls: never better
    }
    once = begun(tmp_path / "once", EarlyStoppingCallback(patience=99, mode="max"), **options, epochs=5)
    once.fit()
    for epochs in (1, 2, 3, 5):
        patient = EarlyStoppingCallback(patience=99, mode="max")
        extended = begun(tmp_path / "extended", patient, **options, epochs=epochs)
        assert extended.fit() == "finished"
        assert "val_loss" in extended.metrics, "a run ends with an evaluation"
    assert extended.state.plateau is not None
    assert once.state.plateau is not None
    assert extended.state.plateau.state_dict() == once.state.plateau.state_dict()
    assert once.state.rate_factor < 1.0
    assert patient.state_dict() == once.callbacks[1].state_dict()
    assert rates(tmp_path / "extended") == rates(tmp_path / "once")
    assert same_bits(weights(extended), weights(once))
