"""Several processes of one run: started by ``vaak train --processes``, by SLURM's srun, or by workers of Ray."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Command, Commands, assert_same_run, free_port, steps_of
from processes import children_of
from vaak.core.storage.files import read_json


def test_tasks_of_srun_train_one_run(commands: Commands, tiny: Path, tmp_path: Path) -> None:
    """Each trained alone, on one folder."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    step |= {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "MASTER_PORT": str(free_port())}
    run = tmp_path / "run"
    ranks = [
        commands.start(
            ["train", tiny, f"run_dir={run}", "training.max_steps=3"],
            tmp_path,
            {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]
    assert [rank.wait().status for rank in ranks] == [0, 0], ranks[0].said
    assert read_json(run / "environment.json")["world_size"] == 2
    assert steps_of(run) == [1, 2, 3]
    assert ranks[1].output.read_text() == ""


@pytest.fixture(scope="module")
def reference_of_two(commands: Commands, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reference-of-two") / "run"
    ranks: list[Command] = commands.start_ranks(2, ["train", tiny, f"run_dir={run}"], run.parent)
    assert [rank.wait().status for rank in ranks] == [0, 0]
    return run


def started(tiny: Path, run: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vaak", "train", str(tiny), f"run_dir={run}", "--processes", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def at_step(launcher: subprocess.Popen[str], run: Path, step: int) -> list[int]:
    """The processes of a run, once its log has come to a step."""
    log = run / "metrics.jsonl"
    while not (log.exists() and f'"step": {step},' in log.read_text()):
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.01)
    return children_of(launcher.pid)


def of_rank(run: Path, rank: int) -> int:
    """The process that is a rank of a run, whoever has started it."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            of_run = f"run_dir={run}".encode() in (process / "cmdline").read_bytes().split(b"\0")
            if of_run and f"RANK={rank}".encode() in (process / "environ").read_bytes().split(b"\0"):
                return int(process.name)
    raise AssertionError(f"no process is rank {rank}")


@pytest.mark.slow
def test_workers_of_ray_that_are_killed_go_on_to_the_same_bits(
    tiny: Path, reference_of_two: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    run, arguments = tmp_path / "run", ["training.device=cpu", "--processes", "2"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "vaak", "launch", "ray", str(tiny), f"run_dir={run}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    at_step(launcher, run, 4)
    os.kill(of_rank(run, 1), signal.SIGKILL)
    _, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, errors
    assert len((run / "sessions.jsonl").read_text().splitlines()) == 2
    shutil.rmtree(run / "ray")
    assert_same_run(run, reference_of_two, saved_on_the_way_out=True)


@pytest.mark.slow
def test_processes_that_are_killed_or_stopped_end_with_the_same_bits(
    tiny: Path, reference_of_two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    launcher = started(tiny, run)
    ranks = at_step(launcher, run, 4)
    os.kill(ranks[1], signal.SIGKILL)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGKILL
    said = [line for line in errors.splitlines() if "rank" in line]
    assert said == [
        f"rank 1 (process {ranks[1]}) was killed by SIGKILL, and so the other one was ended; resume with --resume auto"
    ]
    launcher = started(tiny, run)
    at_step(launcher, run, 9)
    launcher.send_signal(signal.SIGINT)
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, errors
    assert "stopped at step" in output
    assert errors.count("interrupted: stopping") == 1
    launcher = started(tiny, run)
    ranks = at_step(launcher, run, 14)
    launcher.kill()
    launcher.communicate(timeout=60)
    for rank in ranks:  # they end with it
        while Path(f"/proc/{rank}/stat").exists() and ") Z " not in Path(f"/proc/{rank}/stat").read_text():
            time.sleep(0.01)
    launcher = started(tiny, run)
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert re.search(r"2 process\(es\)", errors)
    assert_same_run(run, reference_of_two, saved_on_the_way_out=True)


def test_what_cannot_be_is_said_before_processes_start(train_refused: Callable[..., str], tiny: Path) -> None:
    assert "model.nothing" in train_refused(tiny, "model.nothing=1", "--processes", "2")
    assert "a try runs in one process" in train_refused(tiny, "--try", "--processes", "2")
    assert "each process can read" in train_refused("/dev/stdin", "--processes", "2")


@pytest.fixture
def train_refused(commands: Commands, tmp_path: Path) -> Callable[..., str]:
    """``train_refused(*arguments)`` is the line by which training is refused."""

    def refused(*arguments: str | Path) -> str:
        ended = commands.start(["train", *arguments], tmp_path).wait(20)
        assert ended.status == 2
        assert len(ended.errors.splitlines()) == 1
        return ended.errors

    return refused
