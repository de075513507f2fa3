"""A number that is not finite never reaches the weights: the run stops with all it had, or skips up to the limit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from toy import Poisoned, ToyTask, next_data, same_bits, toy_trainer, weights
from vaak.callbacks.step_log import StepLogCallback
from vaak.core.errors import NonFiniteError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint.files import find_latest_checkpoint, load_checkpoint
from vaak.engine.metrics_file import read_records
from vaak.engine.trainer import Trainer


class Watch(Callback):
    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        self.reports.append(report)
        self.weights.append(weights(trainer))


def begun(folder: Path, *callbacks: Callback, **training: Any) -> Trainer:
    trainer = toy_trainer(folder, *callbacks, task=Poisoned(), **training)
    trainer.resume("auto")
    return trainer


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_run_stops_before_the_weights_and_keeps_what_it_had(value: float, tmp_path: Path):
    watch = Watch()
    trainer = toy_trainer(tmp_path, watch, task=Poisoned(value=value))
    with pytest.raises(NonFiniteError, match=r"the loss main is not a finite number.*example 9 \(toy.txt line 10\)"):
        trainer.fit()
    done = trainer.position.step
    assert 0 < done < 4  # of an epoch's four steps, one holds the example
    assert same_bits(weights(trainer), watch.weights[-1])
    newest = find_latest_checkpoint(trainer.checkpoints)
    assert newest is not None
    assert newest.name == f"step-{done:08d}"
    assert same_bits(load_checkpoint(newest).model, trainer.saving.snapshot().model)
    record = json.loads((tmp_path / "non_finite" / f"step-{done + 1:08d}.json").read_text())
    assert [example["index"] for example in record["examples"]] == [9]


def test_resumed_it_stops_again_and_with_leave_to_skip_goes_on(tmp_path: Path):
    for _ in range(2):
        with pytest.raises(NonFiniteError):
            begun(tmp_path).fit()
    assert begun(tmp_path, non_finite={"max_skipped": 2}).fit() == "finished"


def test_it_skips_as_often_as_it_may(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Two epochs hold the example twice: two steps are skipped, and a third would have stopped the run."""
    watch = Watch()
    trainer = begun(tmp_path, watch, StepLogCallback(1), non_finite={"max_skipped": 2})
    with caplog.at_level(logging.WARNING, "vaak"):
        assert trainer.fit() == "finished"
    skipped = [report.step for report in watch.reports if report.skipped == "non_finite"]
    assert len(skipped) == trainer.position.non_finite_steps == 2
    for step in skipped:
        before = watch.weights[step - 2] if step > 1 else None
        assert before is None or same_bits(watch.weights[step - 1], before)
    assert sum("the step is skipped" in message for message in caplog.messages) == 2
    steps = [record for record in read_records(tmp_path / "metrics.jsonl") if record["kind"] == "step"]
    assert [record["step"] for record in steps if record["loss"] == "nan"] == skipped
    assert steps[-1]["non_finite_steps"] == 2
    with pytest.raises(NonFiniteError):
        begun(tmp_path / "once", non_finite={"max_skipped": 1}).fit()


def test_moments_average_and_plateau_are_untouched_by_a_skipped_step(tmp_path: Path):
    trainer = begun(tmp_path, non_finite={"max_skipped": 9}, ema={"decay": 0.9})
    for _ in range(4):
        before = trainer.saving.snapshot()
        report = trainer.take_step(next_data(trainer))
        after = trainer.saving.snapshot()
        same = [same_bits(getattr(before, part), getattr(after, part)) for part in ("model", "optimizer", "average")]
        assert all(same) == (report.skipped == "non_finite")


def test_skipping_resumes_to_the_bit(tmp_path: Path):
    options: dict[str, Any] = {"non_finite": {"max_skipped": 2}, "checkpoint": {"interval": 1}}
    once = begun(tmp_path / "once", **options)
    once.fit()

    class StopAt(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            trainer.request_stop("enough")

    for _ in range(7):
        begun(tmp_path / "again", StopAt(), **options).fit()
    again = begun(tmp_path / "again", **options)
    again.fit()
    assert same_bits(weights(again), weights(once))
    assert again.position == once.position


def test_overflow_of_fp16_is_another_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Gradients alone that aren't finite lower the scale; at the lowest scale they stop the run, as a loss does."""
    trainer = toy_trainer(tmp_path, task=ToyTask())
    trainer.state.loss_scale.enabled, trainer.state.loss_scale.value = True, 4.0

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf")

    trainer.model.get_parameter("head.weight").register_hook(overflow)
    before = weights(trainer)
    reports = [trainer.take_step(next_data(trainer)) for _ in range(2)]
    assert [report.skipped for report in reports] == ["overflow", "overflow"]
    assert [report.loss_scale for report in reports] == [4.0, 2.0]
    assert not (tmp_path / "non_finite").exists()
    assert trainer.position.non_finite_steps == 0
    with pytest.raises(NonFiniteError, match=r"the gradient is not a finite number, nor is that of head\.weight"):
        trainer.take_step(next_data(trainer))
    assert same_bits(weights(trainer), before)
