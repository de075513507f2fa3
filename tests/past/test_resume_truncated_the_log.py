"""A resume from an earlier, a set-aside or another run's checkpoint truncated metrics.jsonl: 52 lines became 10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from run_files import records_without_clock
from toy import StopAt, same_bits, toy_trainer, weights
from vaak.callbacks.step_log import StepLogCallback
from vaak.engine.checkpoint.files import list_checkpoints, pointed
from vaak.engine.metrics_file import read_records
from vaak.engine.trainer import Trainer

EVERYTHING: dict[str, Any] = {
    "epochs": 3,
    "validation": {"interval": 2},
    "checkpoint": {"interval": 1, "save_total_limit": None},
}
"""Twelve steps, each logged and saved."""


def run(folder: Path, resume: str | Path | None = None, stop: int = 99, every: int = 1, **options: Any) -> Trainer:
    trainer = toy_trainer(folder, StepLogCallback(every), StopAt(stop), **(EVERYTHING | options))
    if resume is not None:
        assert trainer.resume(str(resume))
    trainer.fit()
    return trainer


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def steps_in(folder: Path) -> list[str]:
    return [path.name[-2:] for path in list_checkpoints(folder)]


def test_what_an_earlier_checkpoint_leaves_beyond_is_kept(tmp_path: Path):
    run(tmp_path)
    before = lines(tmp_path / "metrics.jsonl")
    resumed = run(tmp_path, tmp_path / "checkpoints" / "step-00000005", stop=7)
    assert resumed.position.step == 7
    assert lines(tmp_path / "set-aside" / "0001" / "metrics.jsonl") == before
    now = lines(tmp_path / "metrics.jsonl")
    assert now[:9] == before[:9]  # five steps, the model, two evaluations, an epoch
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")[9:]] == [6, 6, 7]


def test_after_a_kill_nothing_is_set_aside(tmp_path: Path):
    run(tmp_path, stop=6)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "step": 7}\n{"kind": "step", "st')
    run(tmp_path, "auto")
    assert not (tmp_path / "set-aside").exists()
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl") if record["kind"] == "step"] == list(
        range(1, 13)
    )


def test_a_checkpoint_that_was_set_aside_comes_back_with_its_log(tmp_path: Path):
    """Twelve steps; back to the fifth, and on to the eighth in another way; back to the tenth of before."""
    whole = run(tmp_path)
    before, expected = records_without_clock(tmp_path), weights(whole)
    folder = tmp_path / "checkpoints"
    run(tmp_path, folder / "step-00000005", stop=8, optimizer={"lr": 0.5})
    other_way = lines(tmp_path / "metrics.jsonl")
    assert records_without_clock(tmp_path) != before[: len(other_way)]
    resumed = run(tmp_path, folder / "set-aside" / "step-00000010.1")
    assert same_bits(weights(resumed), expected)
    assert records_without_clock(tmp_path) == before
    assert lines(tmp_path / "set-aside" / "0002" / "metrics.jsonl") == other_way
    assert steps_in(folder) == ["01", "02", "03", "04", "05", "10", "11", "12"]
    assert pointed(folder, "last") == folder / "step-00000012"


def test_branches_of_branches_keep_their_own_past(tmp_path: Path):
    """The checkpoints before step 5 are another way's by the time that step 10 comes back: they go, too.

    That they are isn't seen in the log, which has a line every four steps.
    """
    seldom: dict[str, Any] = {"every": 4, "validation": {"interval": None}}
    run(tmp_path, **seldom)
    before, folder = records_without_clock(tmp_path), tmp_path / "checkpoints"
    run(tmp_path, folder / "step-00000005", stop=6, **seldom)
    run(tmp_path, folder / "step-00000001", stop=3, optimizer={"lr": 0.5}, **seldom)
    run(tmp_path, folder / "set-aside" / "step-00000010.1", **seldom)
    assert records_without_clock(tmp_path) == before
    assert steps_in(folder) == ["01", "10", "11", "12"]


def test_killed_before_it_saved_it_goes_on_from_what_came_back(tmp_path: Path):
    run(tmp_path)
    before, folder = records_without_clock(tmp_path), tmp_path / "checkpoints"
    run(tmp_path, folder / "step-00000005", stop=8)
    assert toy_trainer(tmp_path, StepLogCallback(1), **EVERYTHING).resume(str(folder / "set-aside/step-00000010.1"))
    assert run(tmp_path, "auto").position.step == 12
    assert records_without_clock(tmp_path) == before


def test_another_runs_checkpoint_leaves_this_runs_log(tmp_path: Path):
    run(tmp_path / "other", stop=3)
    run(tmp_path / "mine")
    before = lines(tmp_path / "mine" / "metrics.jsonl")
    run(tmp_path / "mine", tmp_path / "other" / "checkpoints" / "step-00000003", stop=4)
    aside = tmp_path / "mine" / "set-aside" / "0001" / "metrics.jsonl"
    assert lines(aside) == before
    assert {record["step"] for record in read_records(tmp_path / "mine" / "metrics.jsonl")} == {4}
    run(tmp_path / "mine", tmp_path / "mine" / "checkpoints" / "set-aside" / "step-00000011.1")  # and back again
    assert lines(tmp_path / "mine" / "metrics.jsonl")[: len(before) - 3] == before[:-3]


def test_a_log_without_any_checkpoint_is_kept_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The disk of the checkpoints isn't there: the run begins from scratch, but its log isn't lost."""
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n')
    caplog.set_level("INFO", "vaak")
    assert not toy_trainer(tmp_path).resume("auto")
    assert f"nothing to resume: no checkpoint in {tmp_path / 'checkpoints'}" in caplog.text
    assert f"metrics.jsonl of an earlier start is set aside in {tmp_path / 'set-aside' / '0001'}" in caplog.text
    assert lines(tmp_path / "set-aside" / "0001" / "metrics.jsonl") == ['{"kind": "step", "step": 1}']
