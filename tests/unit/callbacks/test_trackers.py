"""Trackers repeat what metrics.jsonl says, each point once, also after a resume from an earlier checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from toy import toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.tensorboard import TensorBoardCallback
from vaak.callbacks.tracked import numbers
from vaak.callbacks.trackers import TrackersCallback
from vaak.core.callback import Callback
from vaak.core.errors import UserError
from vaak.core.report import StepReport
from vaak.engine.records import read_records

OPTIONS: dict[str, Any] = {
    "validation": {"interval": 3},
    "checkpoint": {"interval": 3, "save_total_limit": None},
}


class Stop(Callback):
    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == 7:
            trainer.request_stop("enough")


def events_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a TensorBoard folder: tag to (step, value) in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def expected_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    expected: dict[str, list[tuple[int, float]]] = {}
    for record in read_records(folder / "metrics.jsonl"):
        for tag, value in numbers(record, None).items():
            expected.setdefault(tag, []).append((record["step"], pytest.approx(value, rel=1e-6)))
    return expected


def test_tensorboard_repeats_metrics_jsonl_and_no_point_twice_after_a_resume(tmp_path: Path):
    """Stopped at step 7 and resumed from step 3: steps 4 to 7 are written twice and shown once."""
    toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), Stop(), **OPTIONS).fit()
    assert events_in(tmp_path / "tensorboard") == expected_in(tmp_path)
    resumed = toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), **OPTIONS)
    assert resumed.resume(str(tmp_path / "checkpoints" / "step-00000003"))
    resumed.fit()
    shown = events_in(tmp_path / "tensorboard")
    assert [step for step, _ in shown["train/loss"]] == list(range(1, 9))
    assert [step for step, _ in shown["evaluation/val_loss"]] == [3, 6, 8]
    assert shown == expected_in(tmp_path)


def test_a_run_begun_anew_shows_nothing_of_the_one_before(tmp_path: Path):
    """Killed before its first checkpoint, it begins again at step 1."""
    options = {"checkpoint": {"interval_epochs": None}}
    for _ in range(2):
        trainer = toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), **options)
        trainer.resume("auto")
        if not (tmp_path / "tensorboard").exists():
            trainer.total_steps = 3
            trainer.save_due = lambda: False  # type: ignore[method-assign]
        trainer.fit()
    assert events_in(tmp_path / "tensorboard") == expected_in(tmp_path)


def test_only_the_metrics_asked_for_are_tracked(tmp_path: Path):
    toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(("loss", "learning_rate")), **OPTIONS).fit()
    assert sorted(events_in(tmp_path / "tensorboard")) == ["evaluation/val_loss", "train/learning_rate", "train/loss"]


def test_trackers_of_accelerate_by_name(tmp_path: Path):
    trainer = toy_trainer(
        tmp_path / "run", StepLogCallback(1), TrackersCallback(("tensorboard",), {"name": "run"}), **OPTIONS
    )
    trainer.fit()
    shown = events_in(tmp_path / "run" / "run")
    expected = expected_in(tmp_path / "run")
    assert {tag: shown[tag] for tag in expected} == expected


def test_an_unknown_tracker_and_one_not_installed_are_named(tmp_path: Path):
    for name, message in (
        ("tensorbored", "there is no tensorbored; choose from"),
        ("clearml", "clearml isn't installed"),
    ):
        with pytest.raises(UserError, match=message):
            toy_trainer(tmp_path, TrackersCallback((name,), {})).fit()


def test_weights_and_biases_offline_goes_on_under_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    from vaak.callbacks.wandb import WandbCallback

    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    settings = {"project": "toy", "mode": "offline"}
    identities = []
    for callbacks in ([Stop()], []):
        tracking = WandbCallback(settings, {"name": "run"})
        trainer = toy_trainer(tmp_path / "run", StepLogCallback(1), tracking, *callbacks, **OPTIONS)
        trainer.resume("auto")
        trainer.fit()
        identities.append(tracking.run.id)
        time.sleep(1.0 - time.time() % 1)  # W&B names an offline run's folder by the second in which it begins
    assert identities[0] == identities[1]
    written = list((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))
    assert len(written) == 2
    assert all(file.stat().st_size > 500 for file in written)


def test_names_of_numbers():
    record = {"kind": "evaluation", "step": 3, "epoch": 0, "scheduled": True, "val_loss": 2, "accuracy/number": 0.5}
    assert numbers(record, None) == {"evaluation/val_loss": 2.0, "evaluation/accuracy/number": 0.5}
    assert numbers(record, ("loss",)) == {"evaluation/val_loss": 2.0}
