"""An error ended a run and what it had trained since its last checkpoint was lost.

A run evaluated and only then saved, and of all errors only a number that isn't finite saved on the way out. Now an
error between two updates leaves a checkpoint of the last boundary, before anything else was done there.
"""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from commands import checkpoints_of, state_of
from run_files import records_without_clock
from shortage import SmallMachine
from toy import ToyDataset, ToyTask, same_bits, toy_trainer
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.step_log import StepLogCallback
from vaak.core.batch import Batch, Term
from vaak.core.errors import CheckpointError, DataError, UserError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.files import list_checkpoints, load_checkpoint
from vaak.engine.state import Position
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData

OPTIONS: dict[str, Any] = {
    "epochs": 3,
    "validation": {"interval": 2},
    "scheduler": {"type": "plateau", "patience": 0, "factor": 0.5},
    "feature_redraw_interval": 2,
}
"""Twelve steps. Every evaluation changes the rate, the patience and the best checkpoint."""

SAVES: dict[str, dict[str, Any]] = {
    "nothing else is saved": {"checkpoint": {"interval": None, "interval_epochs": None}},
    "all is saved": {"checkpoint": {"interval": 1, "save_total_limit": None}},
}
UNREHEARSED: dict[str, Any] = {"memory": {"rehearsal": False}}


class Worsening(ToyTask):
    """The first evaluation is the best, so that each later one lowers the rate."""

    def __init__(self, start: int = 1, **options: Any) -> None:
        super().__init__(scripted=map(float, count(start)), **options)


def begun(folder: Path, *callbacks: Callback, task: ToyTask | None = None, **training: Any) -> Trainer:
    all_callbacks = [StepLogCallback(3), EarlyStoppingCallback(patience=99), *callbacks]
    trainer = toy_trainer(folder, *all_callbacks, task=task, **(OPTIONS | training))
    trainer.resume("auto")
    return trainer


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = begun(tmp_path_factory.mktemp("undisturbed"))
    assert trainer.fit() == "finished"
    return trainer


def saved_steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(folder / "checkpoints")]


def assert_as_if_nothing_had_happened(trainer: Trainer, undisturbed: Trainer) -> None:
    """Weights, moments, everything else that is remembered, and the log."""
    found, expected = trainer.saving.snapshot(), undisturbed.saving.snapshot()
    assert same_bits(found.model, expected.model)
    assert same_bits(found.optimizer, expected.optimizer)
    for name in ("position", "best", "plateau", "metrics"):
        assert found.state[name] == expected.state[name], name
    remembered = [[entry for entry in one.state["callbacks"] if entry[0] != "Failing"] for one in (found, expected)]
    assert remembered[0] == remembered[1]
    assert records_without_clock(trainer.directory) == records_without_clock(undisturbed.directory)


# A callback that raises.


class Failing(Callback):
    """Raises in an event at a step."""

    def __init__(self, event: str, step: int) -> None:
        def fail(trainer: Any, *_: Any) -> None:
            if trainer.position.step >= step:
                raise LookupError(f"in {event}")

        setattr(self, event, fail)


EVENTS = {
    "on_step_end": (5, 5),
    "on_evaluate_end": (4, 4),
    "on_epoch_end": (4, 4),
    "on_checkpoint": (3, 12),
    "on_fit_end": (0, 12),
}
"""The step from which on each event fails, and the one that is reached where nothing but the end is saved."""


@pytest.mark.parametrize("saves", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_callback_that_raises(event: str, saves: dict[str, Any], undisturbed: Trainer, tmp_path: Path):
    step, reached = EVENTS[event]
    failing = begun(tmp_path, Failing(event, step), **saves)
    with pytest.raises(LookupError, match=f"in {event}") as raised:
        failing.fit()
    assert f"in {event} of the callback Failing" in raised.value.__notes__
    if event != "on_checkpoint":
        assert failing.position.step == reached
    assert saved_steps(tmp_path)[-1] == failing.position.step
    resumed = begun(tmp_path, **saves)
    assert resumed.position.step == failing.position.step
    assert resumed.fit() == "finished"
    assert_as_if_nothing_had_happened(resumed, undisturbed)


def test_one_that_raises_at_the_start_leaves_nothing_and_nothing_is_lost(undisturbed: Trainer, tmp_path: Path):
    with pytest.raises(LookupError):
        begun(tmp_path, Failing("on_fit_start", 0)).fit()
    assert saved_steps(tmp_path) == []
    again = begun(tmp_path)
    again.fit()
    assert_as_if_nothing_had_happened(again, undisturbed)


def test_it_raises_again_and_again_and_no_step_is_lost(undisturbed: Trainer, tmp_path: Path):
    """At every step and every evaluation in turn: each session gets one step further."""
    for step in range(1, 13):
        for event in ("on_step_end", "on_evaluate_end") if step % 2 == 0 else ("on_step_end",):
            failing = begun(tmp_path, Failing(event, step), **UNREHEARSED)
            with pytest.raises(LookupError):
                failing.fit()
            assert failing.position.step == saved_steps(tmp_path)[-1] == step
    resumed = begun(tmp_path)
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, undisturbed)


def test_its_checkpoints_are_those_of_a_run_without_errors(tmp_path: Path):
    """Also where an error came before anyone had asked what is due at the boundary that was saved."""
    for step in range(1, 13):
        with pytest.raises(LookupError):
            begun(tmp_path / "failing", Failing("on_step_end", step), **UNREHEARSED, **SAVES["all is saved"]).fit()
    begun(tmp_path / "failing", Failing("on_step_end", 99), **SAVES["all is saved"]).fit()
    begun(tmp_path / "whole", Failing("on_step_end", 99), **SAVES["all is saved"]).fit()
    assert saved_steps(tmp_path / "failing") == saved_steps(tmp_path / "whole") == list(range(1, 13))
    for name in checkpoints_of(tmp_path / "whole"):
        found, expected = (tmp_path / run / "checkpoints" / name for run in ("failing", "whole"))
        assert state_of(found) == state_of(expected), name


# Evaluations that can't be done.


class TornValidation(ToyTask):
    """The shortest example of the validation data can't be read, which only a whole evaluation meets."""

    def dataset(self, split: str) -> ToyDataset:
        dataset = super().dataset(split)
        if split == "valid":
            dataset.bad = (int(dataset.lengths.argmin()),)
        return dataset


class TornLongest(ToyTask):
    def dataset(self, split: str) -> ToyDataset:
        dataset = super().dataset(split)
        if split == "valid":
            dataset.bad = (int(dataset.lengths.argmax()),)
        return dataset


@pytest.mark.parametrize("saves", SAVES.values(), ids=SAVES)
def test_an_unreadable_validation_file(saves: dict[str, Any], undisturbed: Trainer, tmp_path: Path):
    torn = begun(tmp_path, task=TornValidation(), **saves)
    with pytest.raises(DataError, match=r"toy\.txt line \d+"):
        torn.fit()
    assert torn.position.step == saved_steps(tmp_path)[-1] == 2
    resumed = begun(tmp_path, **saves)
    assert resumed.position.schedule_pending, "the evaluation is still to be done"
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, undisturbed)


def test_one_in_the_longest_batch_is_found_before_the_first_step(tmp_path: Path):
    torn = begun(tmp_path, task=TornLongest())
    with pytest.raises(DataError, match=r"toy\.txt line \d+"):
        torn.fit()
    assert torn.position.step == 0
    assert begun(tmp_path / "skips", task=TornLongest(), **UNREHEARSED).position.step == 0


METRICS = {
    "training.checkpoint.metric": {"checkpoint": {"metric": "val_wer"}},
    "training.scheduler.metric": {"scheduler": OPTIONS["scheduler"] | {"metric": "val_wer"}},
}


@pytest.mark.parametrize("key", METRICS)
def test_a_mistyped_metric(
    key: str, undisturbed: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """It is reported before the first step; the first evaluation ends the run, and no step is lost."""
    monkeypatch.setattr("vaak.engine.rehearsal.log.propagate", True)
    mistyped = begun(tmp_path, **METRICS[key])
    with pytest.raises(UserError, match=rf"{key}.*val_wer.*val_loss"):
        mistyped.fit()
    assert f"{key} is val_wer, which a first batch of evaluation did not give (it gives val_loss" in caplog.text
    assert mistyped.position.step == saved_steps(tmp_path)[-1] == 2
    resumed = begun(tmp_path)
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, undisturbed)


# Training data, memory and bugs.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_training_file_in_mid_epoch(workers: int, undisturbed: Trainer, tmp_path: Path):
    third = next(data for data in undisturbed.data.steps(Position(step=2, place=6)))
    bad = third.microbatches[1].address.rows[0][0]
    torn = begun(tmp_path, task=ToyTask(bad=(bad,)), performance={"num_workers": workers}, **UNREHEARSED)
    with pytest.raises(DataError, match=rf"toy\.txt line {bad + 1}\b"):
        torn.fit()
    assert torn.position.step == saved_steps(tmp_path)[-1] == 2
    resumed = begun(tmp_path)
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, undisturbed)


def test_a_row_that_does_not_fit_in_memory(tmp_path: Path):
    """Batches of one row, which can't be cut: resumed where there is more memory, no bit is another."""
    options: dict[str, Any] = {"batch_size": 1, "max_steps": 9, **UNREHEARSED}
    whole = begun(tmp_path / "whole", **options)
    whole.fit()
    task = SmallMachine(most_rows=0, in_step=6)
    full = begun(tmp_path / "full", task=task, **options)
    task.trainer = full
    with pytest.raises(UserError, match=r"out of memory in step 6: example .* does not fit even alone"):
        full.fit()
    assert full.position.step == saved_steps(tmp_path / "full")[-1] == 5
    resumed = begun(tmp_path / "full", **options)
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, whole)


class Buggy(ToyTask):
    """Its losses fail from step 8 on."""

    trainer: Trainer | None = None

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        if self.trainer is not None and self.trainer.position.step >= 7:
            raise RuntimeError("shapes can't be multiplied")
        return super().losses(model, batch)


@pytest.mark.parametrize("saves", SAVES.values(), ids=SAVES)
def test_a_bug_in_a_step(saves: dict[str, Any], undisturbed: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    task = Buggy()
    task.trainer = buggy = begun(tmp_path, task=task, **saves)
    with caplog.at_level(logging.INFO, "vaak"), pytest.raises(RuntimeError, match="shapes can't be multiplied"):
        buggy.fit()
    assert buggy.position.step == saved_steps(tmp_path)[-1] == 7
    assert ("step 7, which was reached before the error, is saved" in caplog.text) == (
        saves["checkpoint"]["interval"] is None
    )
    resumed = begun(tmp_path, **saves)
    assert not resumed.position.schedule_pending
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, undisturbed)


def test_where_saving_fails_too_the_first_error_is_the_one_that_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any, **__: Any) -> Path:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_checkpoint", full)
    failing = begun(tmp_path, Failing("on_step_end", 1), validation={"interval": None})
    with pytest.raises(LookupError) as raised:
        failing.fit()
    assert "and the state reached can't be saved: the disk is full" in raised.value.__notes__


@pytest.fixture(scope="module")
def worsened(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = begun(tmp_path_factory.mktemp("worsened"), task=Worsening())
    trainer.fit()
    return trainer


def test_an_evaluation_that_lowered_the_rate_does_so_once(worsened: Trainer, tmp_path: Path):
    """A callback fails after the second evaluation, of which plateau, patience and the best have learned."""
    failing = begun(tmp_path, Failing("on_evaluate_end", 4), task=Worsening())
    with pytest.raises(LookupError):
        failing.fit()
    assert failing.state.rate_factor == 0.5
    saved = load_checkpoint(failing.checkpoints / "step-00000004").state
    assert saved["position"]["duties_pending"]
    assert saved["plateau"]["factor"] == 1.0, "that of before the evaluation of step 4"
    resumed = begun(tmp_path, task=Worsening(start=2))
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, worsened)


def test_where_the_evaluation_was_done_the_next_step_s_error_does_not_repeat_it(worsened: Trainer, tmp_path: Path):
    failing = begun(tmp_path, task=Worsening())
    take_step = failing.take_step

    def fail_at_5(data: StepData) -> StepReport:
        if data.step == 5:
            raise LookupError
        return take_step(data)

    failing.take_step = fail_at_5  # type: ignore[method-assign]
    with pytest.raises(LookupError):
        failing.fit()
    saved = load_checkpoint(failing.checkpoints / "step-00000004").state
    assert not saved["position"]["duties_pending"]
    assert saved["plateau"]["factor"] == 0.5
    resumed = begun(tmp_path, task=Worsening(start=3))
    resumed.fit()
    assert_as_if_nothing_had_happened(resumed, worsened)
