"""Sweeps: what they try, trials that were killed, folders that several processes share, and mistakes in one line."""

from __future__ import annotations

import csv
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from vaak.config.load import Loaded, load
from vaak.core.errors import UserError
from vaak.core.storage.lock import locked
from vaak.engine.callback import Callback, Run, StepReport
from vaak.runs.start import Outcome, train
from vaak.study import sweep as sweeping
from vaak.study.sweep import Choices, Sweep, SweepPlan, points, read_grid, read_random, rows, write_report

FAST = ("training.max_steps=4", "training.validation.interval=2", "training.checkpoint.interval=2")
RATES = read_grid("training.optimizer.lr=1e-3,1e-2")


def plan(text: Path, *dimensions: Any, sampler: str = "grid", num_trials: int = 2, **more: Any) -> SweepPlan:
    return SweepPlan((str(text / "tiny.yml"),), FAST, dimensions or (RATES,), sampler, num_trials, **more)


def finished(made: SweepPlan, folder: Path) -> list[dict[str, Any]]:
    sweep = Sweep(made, folder)
    for _ in sweep.work():
        pass
    return rows(sweep)


def test_the_grid_of_the_research_kit_has_36_points():
    kit = {"lr": "1e-5,2e-5,3e-5,5e-5", "batch": "16,32,64", "dropout": "0.1,0.2,0.3"}
    grid = points([read_grid(f"{name}={values}") for name, values in kit.items()])
    assert len(grid) == len({tuple(point.items()) for point in grid}) == 36
    assert grid[0] == {"lr": "1e-5", "batch": "16", "dropout": "0.1"}
    assert points([read_grid("a=1,2"), read_random("b=uniform:0:1")]) == []
    assert read_random("a=x,y") == Choices("a", ("x", "y"))


@pytest.mark.parametrize(
    "text",
    ["a", "a=", "=1", "a=log:0:1", "a=log:1", "a=int:1:2.5", "a=uniform:2:1", "a=uniform:x:1", "a=uniform:0:inf"],
)
def test_a_range_that_is_none_is_named(text: str):
    with pytest.raises(UserError, match=r"--(random|grid) "):
        read_random(text)


def test_a_grid_is_trained_point_by_point_and_its_best_can_be_trained(tiny_text: Path, tmp_path: Path):
    table = finished(plan(tiny_text), tmp_path)
    assert [(row["trial"], row["state"], row["training.optimizer.lr"]) for row in table] == [
        (2, "complete", "1e-2"),
        (1, "complete", "1e-3"),
    ]
    assert table[0]["val_loss"] < table[1]["val_loss"]
    sweep = Sweep(plan(tiny_text), tmp_path)
    written = {path.name for path in write_report(sweep)}
    assert {"trials.csv", "best.yml", "parallel.png"} <= written
    assert [row["trial"] for row in csv.DictReader((tmp_path / "trials.csv").read_text().splitlines())] == ["2", "1"]
    best = load([tmp_path / "best.yml"]).experiment
    assert (best.training.optimizer.lr, best.name, best.training.checkpoint.resume) == (1e-2, "tiny-best", None)
    assert finished(plan(tiny_text), tmp_path) == table, "nothing is left to do"


class KilledError(BaseException):
    """The process is gone: nothing of ours may handle it."""


class Killed(Callback):
    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if trainer.position.step == 3:
            raise KilledError


def test_a_killed_trial_is_resumed_in_its_middle_and_all_is_as_if_it_had_not_been(
    tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = plan(tiny_text, read_random("training.optimizer.lr=log:1e-4:1e-2"), sampler="tpe", num_trials=2)
    whole = finished(made, tmp_path / "whole")

    def killed(loaded: Loaded, callbacks: tuple[Callback, ...] = ()) -> Outcome:
        again = () if loaded.experiment.run_dir.name == "0001" else (Killed(),)
        return train(loaded, (*callbacks, *again))

    monkeypatch.setattr(sweeping, "train", killed)
    with pytest.raises(KilledError):
        finished(made, tmp_path / "cut")
    monkeypatch.setattr(sweeping, "train", train)
    moved = (tmp_path / "cut").rename(tmp_path / "moved")
    assert finished(made, moved) == whole
    steps = [json.loads(line) for line in (moved / "trials/0002/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps if record["kind"] == "step"] == [1, 2, 3, 4], "from step 2 on"


def test_a_trial_that_a_process_holds_is_left_to_it(tiny_text: Path, tmp_path: Path):
    first = Sweep(plan(tiny_text), tmp_path)
    running = first.study.ask()
    with locked(tmp_path / "trials" / ".0001.lock"):
        table = finished(plan(tiny_text), tmp_path)
    assert [(row["trial"], row["state"]) for row in table] == [(2, "complete"), (1, "running")]
    assert running.number == 0
    assert [row["state"] for row in finished(plan(tiny_text), tmp_path)] == ["complete", "complete"]


@pytest.mark.slow
def test_what_is_worse_than_the_others_is_stopped(tiny_text: Path, tmp_path: Path):
    rates = ",".join(f"{n}e-3" for n in range(5, 10)) + ",1e-9"
    table = finished(plan(tiny_text, read_grid(f"training.optimizer.lr={rates}"), num_trials=6, prune=True), tmp_path)
    assert [row["state"] for row in table] == ["complete"] * 5 + ["pruned"]
    assert table[-1]["training.optimizer.lr"] == "1e-9"


@pytest.mark.slow
def test_a_trial_that_fails_doesnt_end_the_sweep_but_all_of_them_do(tiny_text: Path, tmp_path: Path):
    heads = read_grid("model.num_heads=3,2")
    table = finished(plan(tiny_text, heads), tmp_path / "some")
    assert [row["state"] for row in table] == ["complete", "fail"]
    assert "num_heads" in table[1]["problem"]
    with pytest.raises(UserError, match=r"all of the first 2 trials failed; the last: .*num_heads"):
        finished(plan(tiny_text, read_grid("model.num_heads=3,5")), tmp_path / "all")


def test_another_sweep_in_the_folder_is_refused(tiny_text: Path, tmp_path: Path):
    Sweep(plan(tiny_text), tmp_path)
    with pytest.raises(UserError, match=r"a sweep made with other options \(dimensions"):
        Sweep(plan(tiny_text, read_grid("model.d_model=16,32")), tmp_path)
    moved = tmp_path / "moved.yml"
    moved.write_text((tiny_text / "tiny.yml").read_text())
    elsewhere = SweepPlan((str(moved),), FAST, (RATES,), "grid", 2)
    Sweep(elsewhere, tmp_path)
    moved.write_text(moved.read_text().replace("dropout: 0.1}", "dropout: 0.2}"))
    with pytest.raises(UserError, match=r"options \(configuration.*dropout was 0.1, is 0.2 now\): restore what"):
        Sweep(elsewhere, tmp_path)
    Sweep(plan(tiny_text, num_trials=1), tmp_path)


@pytest.mark.slow
def test_the_command_prints_a_table_and_answers_mistakes_in_a_line(vaak, tiny_text: Path, tmp_path: Path):
    file = tiny_text / "tiny.yml"
    code, out, _ = vaak(
        "sweep", file, *FAST, "--grid", "training.optimizer.lr=1e-3,1e-2", "--output", tmp_path, "--json"
    )
    assert code == 0
    assert [row["trial"] for row in json.loads(out.splitlines()[-1])["trials"]] == [2, 1]
    for options, message in (
        ((), "give --grid"),
        (("--grid", "a=1", "--random", "a=log:1:2"), "each option once"),
        (("--random", "model.d_model=int:8:16", "--sampler", "grid"), "expected random or tpe"),
        (("--grid", "model.d_modell=8"), "d_model"),
    ):
        code, _, err = vaak("sweep", file, *options, "--output", tmp_path / "other")
        assert code == 2
        assert message in err


@pytest.mark.slow
def test_processes_share_a_sweep(vaak, tiny_text: Path, tmp_path: Path):
    alone = finished(plan(tiny_text), tmp_path / "alone")
    rate = "training.optimizer.lr=1e-3,1e-2"
    arguments = ("--grid", rate, "--num-jobs", 2, "--output", tmp_path / "shared", "--json")
    code, out, _ = vaak("sweep", tiny_text / "tiny.yml", *FAST, *arguments)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["trials"] == alone


OUTSIDE: dict[str, Exception] = {
    "full disk": OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"),
    "memory": MemoryError(),
    "driver": RuntimeError("CUDA error: unspecified launch failure"),
    "killed worker": RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
}


@pytest.mark.slow
@pytest.mark.parametrize("cause", OUTSIDE)
def test_a_trial_that_met_a_failure_of_the_machine_is_tried_again_by_the_same_command(
    tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
):
    """It says nothing of the options; it was a trial that had failed, for ever, and the command ended with 0."""

    def fail(loaded: Loaded, callbacks: tuple[Callback, ...] = ()) -> Outcome:
        raise UserError(f"can't go on: {cause}") from OUTSIDE[cause]

    with monkeypatch.context() as patched:
        patched.setattr(sweeping, "train", fail)
        with pytest.raises(UserError, match="trial 1 met a failure that says nothing of its options: can't go on"):
            finished(plan(tiny_text), tmp_path)
    assert [one["state"] for one in rows(Sweep(plan(tiny_text), tmp_path))] == ["running"]
    if cause == "full disk":  # the others would go on in the same way
        assert [row["state"] for row in finished(plan(tiny_text), tmp_path)] == ["complete", "complete"]
