"""What is logged is total over count of all steps since the last log, on ragged batches, and after a resume."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from toy import ToyTask, one_step, toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.engine.callback import Callback, StepReport
from vaak.engine.metrics_file import read_records

TWO_LOSSES: dict[str, Any] = {"loss": {"auxiliary": {"z_loss": 0.1}}}


class Keeping(Callback):
    """Keeps every report."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        self.reports.append(report)


def mean(reports: list[StepReport], name: str) -> float:
    """Totals over counts, added up in another way than the log does."""
    counts = torch.tensor([report.counts["token"] for report in reports], dtype=torch.float64)
    means = torch.tensor([float(report.losses[name]) for report in reports], dtype=torch.float64)
    return float((means * counts).sum() / counts.sum())


def stat_records(folder: Path, kind: str) -> dict[int, dict[str, Any]]:
    records = read_records(folder / "metrics.jsonl")
    return {record["step"]: record for record in records if record["kind"] == kind}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StepReport]]:
    """Sixteen steps in four epochs, logged every 5: at 1, 5, 10, 15 and 16."""
    folder = tmp_path_factory.mktemp("run")
    keeping = Keeping()
    toy_trainer(folder, keeping, StepLogCallback(5), epochs=4, **TWO_LOSSES).fit()
    return folder, keeping.reports


def test_a_logged_loss_is_total_over_count_since_the_last_log(run: tuple[Path, list[StepReport]]):
    folder, reports = run
    assert len({report.counts["token"] for report in reports}) > 4  # ragged
    logged = stat_records(folder, "step")
    assert list(logged) == [1, 5, 10, 15, 16]
    before = 0
    for step, record in logged.items():
        window = reports[before:step]
        assert record["main"] == pytest.approx(mean(window, "main"), rel=1e-9)
        assert record["z_loss"] == pytest.approx(mean(window, "z_loss"), rel=1e-9)
        assert record["loss"] == pytest.approx(record["main"] + 0.1 * record["z_loss"], rel=1e-9)
        assert record["learning_rate"] == reports[step - 1].learning_rate
        assert record["gradient_norm"] == float(reports[step - 1].gradient_norm)
        assert record["clock"]["tokens_per_second"] > 0
        before = step


def test_an_epochs_loss_is_over_all_its_steps(run: tuple[Path, list[StepReport]]):
    folder, reports = run
    epochs = stat_records(folder, "epoch")
    assert list(epochs) == [4, 8, 12, 16]
    for number, (step, record) in enumerate(epochs.items()):
        assert record["epoch"] == number
        assert record["train_main"] == pytest.approx(mean(reports[step - 4 : step], "main"), rel=1e-9)
        assert record["token"] == sum(report.counts["token"] for report in reports[:step])


def test_an_evaluation_makes_no_step_slower(tmp_path: Path):
    """It is part of the seconds since the last log, not of the time by which tokens are divided."""
    slow = 0.3

    class Slow(Callback):
        def on_evaluate_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            time.sleep(slow)

    keeping = Keeping()
    toy_trainer(tmp_path, keeping, StepLogCallback(1), Slow(), epochs=1, validation={"interval": 2}).fit()
    evaluated, logged = stat_records(tmp_path, "evaluation"), stat_records(tmp_path, "step")
    after = [step for step in logged if step - 1 in evaluated]
    assert after
    for step in after:
        clock, (tokens,) = logged[step]["clock"], [one.counts["token"] for one in keeping.reports if one.step == step]
        assert clock["seconds"] > slow
        assert tokens / clock["tokens_per_second"] < clock["seconds"] - 0.99 * slow


@pytest.mark.parametrize("cut", [2, 4, 5, 7])
def test_a_resumed_run_logs_the_same_numbers(cut: int, run: tuple[Path, list[StepReport]], tmp_path: Path):
    """In the middle of a window, of an epoch, and at the ends of both."""
    first = toy_trainer(tmp_path, StepLogCallback(5), epochs=4, **TWO_LOSSES)

    class Stop(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            if report.step == cut:
                trainer.request_stop("enough")

    first.callbacks.append(Stop())
    first.fit()
    second = toy_trainer(tmp_path, StepLogCallback(5), epochs=4, **TWO_LOSSES)
    assert second.resume("auto")
    second.fit()
    for kind in ("step", "epoch", "evaluation"):
        resumed, whole = stat_records(tmp_path, kind), stat_records(run[0], kind)
        for record in (*resumed.values(), *whole.values()):
            record.pop("clock", None)
        assert resumed == whole


def test_reports_are_read_where_something_is_logged(tmp_path: Path):
    """Reading one waits for the device; those between logs wait to be read together."""
    callback = StepLogCallback(100)
    trainer = toy_trainer(tmp_path, callback)
    for _ in range(3):
        callback.on_step_end(trainer, one_step(trainer)[0])
    assert [report.step for report in callback.unread] == [2, 3]  # step 1 is logged at once


def test_evaluations_say_whether_they_were_scheduled(tmp_path: Path):
    """One that was asked for is not, nor is the last step's, which is on no schedule."""

    class AsksAt6(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            if report.step == 6:
                trainer.request_evaluate()

    task = ToyTask(scripted=iter([2.0, 1.0, 3.0]))
    options: dict[str, Any] = {"validation": {"interval": 5}, "memory": {"rehearsal": False}}
    toy_trainer(tmp_path, StepLogCallback(5), AsksAt6(), task=task, **options).fit()
    records = stat_records(tmp_path, "evaluation")
    said = [(step, record["scheduled"], record["val_loss"]) for step, record in records.items()]
    assert said == [(5, True, 2.0), (6, False, 1.0), (8, False, 3.0)]


def test_few_reports_are_kept_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They hold tensors: however seldom is logged, memory stays flat, and the log is the same."""
    monkeypatch.setattr("vaak.callbacks.step_log.MOST_UNREAD", 3)
    callback = StepLogCallback(100)
    held: list[int] = []

    class Watch(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            held.append(len(callback.unread))

    toy_trainer(tmp_path / "few", callback, Watch()).fit()
    monkeypatch.undo()
    assert held == [0, 1, 2, 0, 1, 2, 0, 0]
    toy_trainer(tmp_path / "many", StepLogCallback(100)).fit()
    few, many = stat_records(tmp_path / "few", "step")[8], stat_records(tmp_path / "many", "step")[8]
    del few["clock"], many["clock"]
    assert few == many


def test_smoothed_losses_weigh_all_steps(tmp_path: Path):
    keeping = Keeping()
    toy_trainer(tmp_path, keeping, StepLogCallback(3, smoothing=0.5), **TWO_LOSSES).fit()
    for step, record in stat_records(tmp_path, "step").items():
        weights = [0.5 ** (step - number) for number in range(1, step + 1)]
        for name in ("main", "z_loss"):
            values = [float(report.losses[name]) for report in keeping.reports[:step]]
            expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
            assert record[f"smoothed_{name}"] == pytest.approx(expected, rel=1e-6)
        total = record["smoothed_main"] + 0.1 * record["smoothed_z_loss"]
        assert record["smoothed_loss"] == pytest.approx(total, rel=1e-12)


def test_without_smoothing_there_are_no_smoothed_losses(run: tuple[Path, list[StepReport]]):
    assert not [name for record in stat_records(run[0], "step").values() for name in record if "smoothed" in name]


def test_a_resumed_run_smooths_on_to_the_bit(tmp_path: Path):
    class Stop(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            if report.step == 3:
                trainer.request_stop("enough")

    toy_trainer(tmp_path / "whole", StepLogCallback(2, smoothing=0.9), **TWO_LOSSES).fit()
    toy_trainer(tmp_path / "cut", StepLogCallback(2, smoothing=0.9), Stop(), **TWO_LOSSES).fit()
    second = toy_trainer(tmp_path / "cut", StepLogCallback(2, smoothing=0.9), **TWO_LOSSES)
    assert second.resume("auto")
    second.fit()
    whole, cut = stat_records(tmp_path / "whole", "step"), stat_records(tmp_path / "cut", "step")
    for record in (*whole.values(), *cut.values()):
        del record["clock"]
    assert cut == whole


def report_of(step: int, loss: float, skipped: str | None) -> StepReport:
    return StepReport(
        step=step,
        epoch=0,
        sums={"main": torch.tensor(10.0 * loss)},
        units={"main": "token"},
        counts={"token": 10.0},
        learning_rate=0.1,
        gradient_norm=torch.tensor(1.0),
        loss_scale=2.0,
        skipped=skipped,
        seconds=0.5,
        ends_epoch=False,
    )


def test_overflows_and_non_finite_steps_are_counted_apart_and_no_number_is_hidden(tmp_path: Path):
    """A loss that is NaN is written as such and not left out; it isn't smoothed into those that follow."""
    trainer = toy_trainer(tmp_path)
    callback = StepLogCallback(1, smoothing=0.5)
    told = [(1, 3.0, None), (2, 3.0, "overflow"), (3, float("nan"), "non_finite"), (4, 3.0, "overflow")]
    for step, loss, skipped in told:
        trainer.position.step = step
        callback.on_step_end(trainer, report_of(step, loss, skipped))
        restored = StepLogCallback(1, smoothing=0.5)
        restored.load_state_dict(json.loads(json.dumps(callback.state_dict())))
        callback = restored
    logged = stat_records(tmp_path, "step")
    assert [record["overflows"] for record in logged.values()] == [0, 1, 1, 2]
    assert [record.get("non_finite_steps", 0) for record in logged.values()] == [0, 0, 1, 1]
    assert [record["loss"] for record in logged.values()] == [3.0, 3.0, "nan", 3.0]
    assert {record["smoothed_loss"] for record in logged.values()} == {3.0}
    assert {record["loss_scale"] for record in logged.values()} == {2.0}
    assert {record["clock"]["tokens_per_second"] for record in logged.values()} == {20.0}
