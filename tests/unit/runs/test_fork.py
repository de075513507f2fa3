"""A fork is its parent until a step, to the bit, and another run from there; the parent stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
from vaak.core.errors import CheckpointError, UserError
from vaak.core.storage.files import read_json
from vaak.engine.checkpoint.files import load_checkpoint, step_folder
from vaak.engine.metrics_file import read_records
from vaak.runs.fork import fork_run, shared_past
from vaak.runs.verify import verify_run

Vaak = Callable[..., tuple[int, str, str]]
OPTIONS = ("training.checkpoint.interval=3", "training.checkpoint.save_total_limit=2", "training.validation.interval=4")
"""Checkpoints of steps 6 and 8 are left, and the best one."""


@pytest.fixture(scope="module")
def trained(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("forked") / "run"
    tiny_runs.train(tiny_text, run, *OPTIONS)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def history(run: Path) -> list[dict[str, Any]]:
    """What a run logged, without the clock and the world."""
    records = read_records(run / "metrics.jsonl")
    kept = [one for one in records if one["kind"] in ("step", "evaluation", "epoch")]
    return [{name: value for name, value in one.items() if name != "clock"} for one in kept]


def trained_on(directory: Path, vaak: Vaak, *overrides: str) -> None:
    code, _, err = vaak("train", directory / "config.yml", "--resume", "auto", *overrides)
    assert code == 0, err


@pytest.mark.parametrize("step", [2, *(pytest.param(step, marks=pytest.mark.slow) for step in (6, 7))])
def test_a_fork_without_a_change_is_the_same_run(run: Path, tmp_path: Path, vaak: Vaak, step: int):
    before = tiny_runs.hashes(run)
    fork = fork_run(run, step, tmp_path / "fork")
    assert load_checkpoint(fork / "checkpoints" / step_folder(step)).step == step
    assert all(record["step"] <= step for record in history(fork))
    trained_on(fork, vaak)
    assert tiny_runs.hashes(run) == before
    assert history(fork) == history(run)
    one, other = (load_checkpoint(each / "checkpoints" / step_folder(8)) for each in (run, fork))
    assert all(torch.equal(one.model[name], other.model[name]) for name in one.model)
    assert all(torch.equal(one.optimizer[name], other.optimizer[name]) for name in one.optimizer)
    parent = read_json(fork / "run.json")["parent"]
    assert parent == {"id": read_json(run / "run.json")["id"], "directory": str(run), "step": step}
    found = verify_run(fork, None)
    assert found["verified"], found["findings"]


def test_other_options_act_from_the_step_on(run: Path, vaak: Vaak):
    code, _, err = vaak("fork", run, "--step", 7, "training.optimizer.lr=0.5", "training.max_steps=9")
    assert code == 0, err
    fork = run.with_name("run-from-7")
    assert "training.optimizer.lr was 0.01, is 0.5" in err
    until, after = ([one for one in history(fork) if (one["step"] <= 7) == early] for early in (True, False))
    assert until == [one for one in history(run) if one["step"] <= 7]
    assert max(one["step"] for one in after) == 9
    code, out, err = vaak("compare", run, fork)
    assert (code, out.splitlines()[-1]) == (0, f"{fork} is a fork of {run}: they share the steps until 7"), err
    assert next(one for one in after if one["kind"] == "step") != next(
        one for one in history(run) if (one["kind"], one["step"]) == ("step", 8)
    )


def test_what_cannot_be_forked_writes_nothing(run: Path, tmp_path: Path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.yml").write_text("task: lm\n")
    for step, directory, overrides, said in (
        (9, "new", (), "has not reached step 9"),
        (4, "there", (), "already holds a run"),
        (4, "new", ("model.d_model=64",), "model.d_model was 32, is 64"),
        (4, "new", ("model.d_modle=64",), "d_modle"),
    ):
        before = tiny_runs.hashes(tmp_path)
        with pytest.raises((UserError, CheckpointError), match=said):
            fork_run(run, step, tmp_path / directory, overrides)
        assert tiny_runs.hashes(tmp_path) == before


def test_forks_of_forks_stand_below_their_parents(run: Path, tmp_path: Path, vaak: Vaak):
    code, out, err = vaak("fork", run, "--step", 6, "--no-train", "training.optimizer.lr=0.5")
    assert (code, err) == (0, "")
    assert out == f"vaak train {run}-from-6/config.yml --resume auto training.optimizer.lr=0.5\n"
    fork_run(run.with_name("run-from-6"), 3, tmp_path / "young")
    assert read_json(tmp_path / "young" / "run.json")["parent"]["directory"] == str(run.with_name("run-from-6"))
    _, out, _ = vaak("runs", tmp_path, "--tree", "--sort", "name")
    names = [line.partition("  20")[0].rstrip() for line in out.splitlines()[1:4]]
    assert names == ["run", "└ run-from-6 (from step 6)", "  └ young (from step 3)"]
    assert shared_past(run, run) is None
    assert (
        shared_past(run.with_name("run-from-6"), run)
        == f"{run}-from-6 is a fork of {run}: they share the steps until 6"
    )
    sister = fork_run(run, 2, tmp_path / "sister")
    said = f"{run}-from-6 and {sister} are forks of {run}: they share the steps until 2"
    assert shared_past(run.with_name("run-from-6"), sister) == said
    shutil.rmtree(run)
    _, out, _ = vaak("runs", tmp_path, "--tree", "--sort", "name")
    assert out.splitlines()[1].startswith("run-from-6 (from step 6)")


class KilledError(BaseException):
    """The process is gone: nothing of ours may handle it."""


def test_a_fork_that_was_killed_says_how_to_finish_it_and_is_finished_by_the_same_command(
    run: Path, tmp_path: Path, vaak: Vaak, monkeypatch: pytest.MonkeyPatch
):
    """With its parent's options it would have gone on in silence, or been refused as a run that is there already."""

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("vaak.runs.fork.train", killed)  # once its past is shared, before its steps are taken
        with pytest.raises(KilledError):
            fork_run(run, 7, tmp_path / "fork", ("training.optimizer.lr=5e-3",))
    code, _, err = vaak("train", tmp_path / "fork" / "config.yml", "--resume", "auto")
    assert code == 2
    command = f"vaak fork {run.resolve()} --step 7 --run-dir {tmp_path / 'fork'} training.optimizer.lr=5e-3"
    assert f"an unfinished fork; finish it: {command}\n" in err
    with pytest.raises(UserError, match="is an unfinished fork; finish it: vaak fork"):
        fork_run(run, 7, tmp_path / "fork", ("training.optimizer.lr=6e-3",))
    code, _, err = vaak(*command.split()[1:])
    assert code == 0, err
    whole = fork_run(run, 7, tmp_path / "whole", ("training.optimizer.lr=5e-3",))
    trained_on(whole, vaak, "training.optimizer.lr=5e-3")
    assert history(tmp_path / "fork") == history(whole)
    assert "finish" not in read_json(tmp_path / "fork" / "run.json")["parent"]
    with pytest.raises(UserError, match="already holds a run; resume it: vaak train"):
        fork_run(run, 7, tmp_path / "fork", ("training.optimizer.lr=5e-3",))


def test_a_fork_that_is_killed_while_it_is_copied_leaves_nothing_half_made(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("vaak.runs.fork.yaml_text", killed)
        with pytest.raises(KilledError):
            fork_run(run, 6, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
    assert fork_run(run, 6, tmp_path / "fork").is_dir()


def test_a_damaged_checkpoint_that_is_passed_over_is_named(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    newest = max((run / "checkpoints").glob("step-*"))
    (newest / "model.safetensors").write_bytes(b"damaged")
    fork_run(run, 8, tmp_path / "fork")
    assert f"{newest} is damaged" in caplog.text
    assert "using an earlier checkpoint" in caplog.text
