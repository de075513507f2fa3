"""No tracker stops a run: failures are logged once, without secrets, and metrics.jsonl is complete."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from toy import toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.trackers import AccelerateTrackerCallback, NamesSent, Tracker, describe_error, numbers
from vaak.config.load import load
from vaak.config.resolved import resolved_values
from vaak.core.errors import UserError
from vaak.engine.callback import Callback
from vaak.engine.metrics_file import Record, read_records


class Failing(Tracker):
    """Fails in ``open``, at the third ``write`` or in ``close``; notes what it is asked to do."""

    name = "the tracker"

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.calls: list[str] = []

    def open(self, trainer: Any) -> None:
        self.note("open")

    def write(self, record: Record) -> None:
        self.note("write")

    def close(self) -> None:
        self.note("close")

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.where and (call != "write" or self.calls.count(call) == 3):
            raise ConnectionError("no route\nto the host")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("where", "what", "calls"),
    [
        ("open", "begin", ["open", "close"]),
        ("write", "continue", ["open", "write", "write", "write", "close"]),
        ("close", "end", ["open", *["write"] * 9, "close", "close"]),
    ],
)
def test_a_tracker_that_fails_is_said_once_and_left_out(
    where: str, what: str, calls: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    failing, working = Failing(where), Failing("nowhere")
    trainer = toy_trainer(tmp_path, StepLogCallback(1), failing, working)
    trainer.callbacks[0].on_epoch_end = lambda *_: None  # type: ignore[method-assign]
    trainer.callbacks[0].on_evaluate_end = lambda *_: None  # type: ignore[method-assign]
    assert trainer.fit() == "finished"
    assert failing.calls == calls
    assert working.calls == ["open", *["write"] * 9, "close"]
    assert warnings_in(caplog) == [
        f"the tracker can't {what} (no route); training continues without it, and metrics.jsonl has everything"
    ]
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [1, *range(1, 9)]


def test_a_run_that_fails_closes_its_trackers(tmp_path: Path):
    class Break(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            raise ZeroDivisionError

    tracker = Failing("nowhere")
    with pytest.raises(ZeroDivisionError):
        toy_trainer(tmp_path, tracker, Break()).fit()
    assert tracker.calls == ["open", "close"]


def test_a_reason_is_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "sesame")
    monkeypatch.setenv("EMPTY_TOKEN", "")
    monkeypatch.setenv("SOME_MODE", "offline")
    assert describe_error(ValueError("bad key sesame, offline\nTraceback")) == "bad key ***, offline"
    assert describe_error(ValueError()) == "ValueError"
    assert len(describe_error(ValueError("x" * 1000))) == 200


def test_trackers_of_accelerate_by_name(tmp_path: Path):
    tracker = AccelerateTrackerCallback("tensorboard", {"name": "run"})
    toy_trainer(tmp_path / "run", StepLogCallback(1), tracker).fit()
    shown = events_of(tmp_path / "run" / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert shown == [pytest.approx(record["loss"], rel=1e-6) for record in records if record["kind"] == "step"]


def test_a_trackers_configuration_is_flat_so_that_tensorboard_takes_it(
    tiny_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = resolved_values(load([tiny_text / "tiny.yml"]).experiment)
    tracker = AccelerateTrackerCallback("tensorboard", config)
    toy_trainer(tmp_path / "run", StepLogCallback(1), tracker).fit()
    assert warnings_in(caplog) == []
    [kept] = (tmp_path / "run" / "run").rglob("hparams.yml")
    assert f"training.batch_size: {config['training']['batch_size']}\n" in kept.read_text()


TRACKED_BY_WANDB = """
from pathlib import Path
from commands import Commands
from toy import toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.trackers import AccelerateTrackerCallback
tracker = AccelerateTrackerCallback("wandb", {"name": "run", "training": {"epochs": 3}})
toy_trainer(Path("runs/run"), StepLogCallback(1), tracker).fit()
"""
"""A separate process, because W&B has one service for all runs of a process."""


@pytest.mark.slow
def test_wandb_as_a_tracker_of_accelerate_writes_into_the_run(commands: Commands, tmp_path: Path):
    pytest.importorskip("wandb")
    script, here = tmp_path / "tracked.py", tmp_path / "here"
    script.write_text(TRACKED_BY_WANDB)
    here.mkdir()
    ended = commands.start([], here, {"WANDB_MODE": "offline"}, script=script).wait()
    assert ended.status == 0, ended.errors
    assert [path.name for path in here.iterdir()] == ["runs"]
    assert list((here / "runs" / "run" / "wandb").glob("offline-run-*/*.wandb"))


def events_of(folder: Path) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [event.value for event in accumulator.Scalars("train/loss")]


def test_an_unknown_tracker_and_one_not_installed_are_named_before_training():
    for name, message in (
        ("tensorbored", "unknown tracker 'tensorbored'; did you mean 'tensorboard'"),
        ("clearml", "clearml isn't installed"),
    ):
        with pytest.raises(UserError, match=message):
            AccelerateTrackerCallback(name, {})


def test_names_that_no_record_has_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """After the first logged step; those that evaluations may have, after the first evaluation."""
    names = NamesSent(["loss", "los", "val_loss", "accuracy"], awaited=["loss", "val_loss", "accuracy"])
    said: dict[str, int] = {}

    class Listen(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            said.update({one: report.step for one in warnings_in(caplog) if one not in said})

    toy_trainer(tmp_path, StepLogCallback(2), names, Listen()).fit()
    start, end = "training.logging.log_metrics: no metric so far is called ", "; trackers get none"
    mistyped, absent = f"{start}'los'; did you mean 'loss'?{end}", f"{start}'accuracy'{end}"
    assert warnings_in(caplog) == [mistyped, absent]
    logged = [one["step"] for one in read_records(tmp_path / "metrics.jsonl") if one["kind"] == "step"]
    assert said == {mistyped: logged[0] + 1}, "at once; the other at the end, after the evaluation"


def test_names_of_numbers():
    record = {"kind": "evaluation", "step": 3, "epoch": 0, "scheduled": True, "val_loss": 2, "accuracy/number": 0.5}
    assert numbers(record, None) == {"evaluation/val_loss": 2.0, "evaluation/accuracy/number": 0.5}
    assert numbers(record, ("loss",)) == {"evaluation/val_loss": 2.0}
