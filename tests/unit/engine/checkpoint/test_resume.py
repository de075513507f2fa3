"""A run that is stopped and resumed, in this process, has the bits and the records of one that never stopped."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from run_files import records_without_clock
from toy import StopAt, ToyTask, same_bits, toy_trainer, weights
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.training import TrainingConfig
from vaak.core.errors import CheckpointError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint import conditions, resume
from vaak.engine.checkpoint.files import list_checkpoints, load_checkpoint, pointed
from vaak.engine.metrics_file import read_records
from vaak.engine.trainer import Trainer

EVERYTHING: dict[str, Any] = {
    "epochs": 3,
    "validation": {"interval": 2},
    "checkpoint": {"interval": 1, "save_total_limit": None},
    "scheduler": {"type": "plateau", "patience": 0, "factor": 0.7},
    "feature_redraw_interval": 2,
}
"""Twelve steps in which all state (plateau, best, patience, logs' windows) keeps changing."""


class Adding(Callback):
    """Remembers the sum of the steps' numbers, each ``times`` over."""

    def __init__(self, times: int) -> None:
        self.times, self.total = times, 0

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        self.total += self.times * report.step

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def own_callbacks() -> list[Callback]:
    """Callbacks that remember, two of them of one class."""
    return [Adding(1), StepLogCallback(3), EarlyStoppingCallback(99), Adding(10)]


def run(folder: Path, *callbacks: Callback, resume: str | None = None, **training: Any) -> Trainer:
    """A run to its end or to a stop, watched by callbacks that remember."""
    trainer = toy_trainer(folder, *own_callbacks(), *callbacks, **(EVERYTHING | training))
    if resume is not None:
        last = trainer.callbacks[3]
        assert isinstance(last, Adding)
        last.total = 1000  # a resume overwrites it
        assert trainer.resume(resume)
    trainer.fit()
    return trainer


def assert_same_state(first: Trainer, second: Trainer) -> None:
    assert same_bits(weights(first), weights(second))
    snapshots = [one.saving.snapshot() for one in (first, second)]
    assert same_bits(*(snapshot.optimizer for snapshot in snapshots))
    states = [snapshot.state for snapshot in snapshots]
    assert states[0].keys() == states[1].keys()
    for key in ("position", "loss_scale", "plateau", "best", "optimizer", "callbacks", "data", "conditions"):
        assert states[0][key] == states[1][key], key


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return run(tmp_path_factory.mktemp("uninterrupted"))


@pytest.mark.parametrize("stop", [1, 3, 4, 7, 10])
def test_resumed_is_uninterrupted(stop: int, uninterrupted: Trainer, tmp_path: Path):
    """In an epoch and at its end, at a step with an evaluation due and without, in the middle of a log's window."""
    assert run(tmp_path, StopAt(stop)).position.step == stop
    resumed = run(tmp_path, resume="auto")
    assert_same_state(resumed, uninterrupted)
    assert records_without_clock(tmp_path) == records_without_clock(uninterrupted.directory)


def test_resumed_at_every_step_is_uninterrupted(uninterrupted: Trainer, tmp_path: Path):
    run(tmp_path, StopAt(1))
    for step in range(2, 12):
        run(tmp_path, StopAt(step), resume="auto")
    assert_same_state(run(tmp_path, resume="auto"), uninterrupted)
    assert records_without_clock(tmp_path) == records_without_clock(uninterrupted.directory)


def test_resumed_from_an_earlier_checkpoint_goes_the_same_way_and_cuts_the_rest(uninterrupted: Trainer, tmp_path: Path):
    run(tmp_path)
    folder = tmp_path / "checkpoints"
    trainer = toy_trainer(tmp_path, *own_callbacks(), **EVERYTHING)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "st')  # what a kill leaves
    assert trainer.resume(str(folder / "step-00000005"))
    assert max(record["step"] for record in read_records(tmp_path / "metrics.jsonl")) <= 5
    assert [path.name for path in list_checkpoints(folder)] == [f"step-{step:08d}" for step in range(1, 6)]
    assert pointed(folder, "last") == folder / "step-00000005"
    trainer.fit()
    assert_same_state(trainer, uninterrupted)
    assert records_without_clock(tmp_path) == records_without_clock(uninterrupted.directory)


def test_a_damaged_newest_checkpoint_costs_a_step_and_no_bit(
    uninterrupted: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run(tmp_path, StopAt(6))
    (tmp_path / "checkpoints" / "step-00000006" / "model.safetensors").write_bytes(b"torn")
    with caplog.at_level(logging.WARNING, "vaak"):
        assert_same_state(run(tmp_path, resume="auto"), uninterrupted)
    assert "model.safetensors does not match its MANIFEST.json; it is set aside" in caplog.text


def test_an_ended_run_that_is_resumed_takes_no_step_and_logs_nothing(tmp_path: Path):
    first = run(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    assert_same_state(run(tmp_path, resume="auto"), first)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_resumed_from_before_its_best_the_run_points_to_the_best_until_then(tmp_path: Path):
    """The better one, at step 4, no longer belongs to this run, whose later figures may all be worse."""
    task = ToyTask(scripted=iter([2.0, 1.0]))
    toy_trainer(tmp_path, StopAt(5), task=task, **EVERYTHING).fit()
    folder = tmp_path / "checkpoints"
    assert pointed(folder, "best") == folder / "step-00000004"
    assert toy_trainer(tmp_path, task=ToyTask(), **EVERYTHING).resume(str(folder / "step-00000003"))
    assert pointed(folder, "best") == folder / "step-00000002"


def test_a_run_that_stops_before_its_next_step_leaves_its_checkpoint_as_it_is(tmp_path: Path):
    """Two jobs in a row that end before their first step don't write the same state again."""
    run(tmp_path, StopAt(3))
    before = {path.name: path.stat().st_ino for path in list_checkpoints(tmp_path / "checkpoints")}
    trainer = toy_trainer(tmp_path, *own_callbacks(), **EVERYTHING)
    assert trainer.resume("auto")
    trainer.request_stop("SIGTERM")
    assert trainer.fit() == "SIGTERM"
    assert {path.name: path.stat().st_ino for path in list_checkpoints(tmp_path / "checkpoints")} == before


def test_nothing_to_resume_begins_anew_with_an_empty_log(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n')
    trainer = toy_trainer(tmp_path)
    assert not trainer.resume("auto")
    assert not (tmp_path / "metrics.jsonl").exists()


def test_other_data_are_refused(tmp_path: Path):
    run(tmp_path, StopAt(2))
    trainer = toy_trainer(tmp_path, task=ToyTask(num_examples=41), **EVERYTHING)
    with pytest.raises(CheckpointError, match="was made with other data than this run's"):
        trainer.resume("auto")


def test_another_optimizer_is_refused(tmp_path: Path):
    run(tmp_path, StopAt(2))
    trainer = toy_trainer(tmp_path, **(EVERYTHING | {"optimizer": {"type": "lion", "lr": 1e-3}}))
    with pytest.raises(CheckpointError, match="of another model or optimizer"):
        trainer.resume("auto")


def test_other_conditions_are_named_with_the_promise_that_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run(tmp_path, StopAt(2))
    with caplog.at_level(logging.INFO, "vaak"):
        run(tmp_path, resume="auto", mixed_precision="bf16")
        run(tmp_path, resume="auto", mixed_precision="bf16")
    assert "bits equal to rounding only (precision no -> bf16)" in caplog.text
    assert "same draws, same bits" in caplog.text


def test_what_nccl_and_the_driver_are_is_recorded_and_what_a_change_means_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """GPUs are simulated, with the answers of torch and of the system given."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    monkeypatch.setattr(conditions, "nvidia_driver", lambda: "535.104.05")
    precision: Any = SimpleNamespace(device=torch.device("cuda"), name="bf16")

    def found(world_size: int = 2, **distributed: str) -> dict[str, Any]:
        config = TrainingConfig.model_validate({"distributed": distributed})
        return conditions.conditions(config, precision, world_size)

    before = found()
    assert (before["nccl"], before["nccl settings"], before["driver"]) == ("2.27.3", {}, "535.104.05")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28))
    resume._log_promise(before, found(), [], tmp_path)
    assert "rounding only (nccl 2.27.3 -> 2.28: GPUs may add up gradients in another order; NCCL_ALGO" in caplog.text
    for others in (found(1), found(backend="gloo"), found(reduction="exact")):  # whole numbers have no order
        assert (others["nccl"], others["nccl settings"]) == (None, {})
    del before["nccl"], before["nccl settings"]  # written by an earlier version
    assert conditions.unknown(before, found(1)) == []
    assert conditions.unknown(before, found()) == ["nccl", "nccl settings"]


def test_conditions_are_compared_one_by_one_where_one_side_may_have_none():
    before = {"packages": {"rich": "13", "scipy": "1"}, "nccl settings": {}, "threads": 2}
    found = conditions.differences(before, {"packages": {"rich": "14"}, "nccl settings": None, "threads": 2})
    assert [(one.name, one.before, one.now) for one in found] == [
        ("rich", "13", "14"),
        ("scipy", "1", None),
        ("nccl settings", {}, None),
    ]


def test_the_best_survives_and_is_still_pointed_to(tmp_path: Path):
    worsening = ToyTask(scripted=map(float, count(1)))
    first = toy_trainer(tmp_path, StopAt(5), task=worsening, **EVERYTHING)
    first.fit()
    second = toy_trainer(tmp_path, task=worsening, **EVERYTHING)
    assert second.resume("auto")
    second.fit()
    assert (second.state.best.value, second.state.best.step) == (1.0, 2)
    best = pointed(tmp_path / "checkpoints", "best")
    assert best is not None
    assert load_checkpoint(best).step == 2
