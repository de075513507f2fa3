"""Commands that are killed exactly at an operation on files, and started again, end as if they hadn't been killed.

``VAAK_KILLS`` is how many kills each set-up gets, at operations drawn by the number of the kill.
"""

from __future__ import annotations

import ast
import csv
import functools
import hashlib
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tiny_pipeline
from commands import Commands, stat_records
from storage_faults import FAULT

KILLS = int(os.environ.get("VAAK_KILLS", "2"))
FAST = ("training.max_steps=6", "training.checkpoint.interval=2", "training.validation.interval=3")
WITH_TOOLS = ("training.ema=0.9", "training.curriculum={difficulty: length, initial_difficulty: 0.4}")

STORED = ("global_config.storage_path=out/features", "global_config.num_jobs=2")


def trained(run: Path) -> Any:
    """Return a run's results that depend neither on the clock nor on its folder."""
    tensors = {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.glob("checkpoints/step-*/*.safetensors"))
    }
    return tensors, stat_records(run)


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def report(folder: Path) -> int:
    return int((folder / "run" / "report.html").read_text().rstrip().endswith("</html>"))


def sweep(folder: Path) -> Any:
    with open(folder / "out" / "trials.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tuned(folder: Path) -> Any:
    """What was found; not the error before, which is that of an earlier tuning where there was one."""
    lines = (folder / "run" / "tuned.yml").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def crossval(folder: Path) -> Any:
    return json.loads((folder / "out" / "results.json").read_text())["figures"]


@dataclass(frozen=True)
class SetUp:
    """A command on the files of ``jobs`` (JOBS), a finished run (run) and ``out``, and what it leaves."""

    arguments: tuple[str, ...]
    left: Callable[[Path], Any]
    job: str | None = None
    """Whose run it is, where there is one."""


def training(job: str, *options: str, of: str | None = None) -> SetUp:
    arguments = ("train", f"JOBS/{job}.yml", "run_dir=out", *FAST, *options)
    return SetUp(arguments, lambda folder: trained(folder / "out"), of)


SET_UPS = {
    "report": SetUp(("report", "run"), report, job="tiny"),
    "export": SetUp(
        ("export", "run", "--format", "hf", "--output", "out"), lambda one: hashes(one / "out"), job="tiny"
    ),
    "fork": SetUp(
        ("fork", "run", "--step", "5", "--run-dir", "out", "training.optimizer.lr=5e-3"),
        lambda folder: trained(folder / "out"),
        job="tiny",
    ),
    "sweep": SetUp(
        ("sweep", "JOBS/tiny.yml", *FAST, "--grid", "training.optimizer.lr=1e-3,1e-2", "--output", "out"), sweep
    ),
    "crossval": SetUp(("crossval", "JOBS/classifier.yml", *FAST, "--folds", "2", "--output", "out"), crossval),
    "preprocess": SetUp(
        ("data", "preprocess", "JOBS/tiny.yml", "run_dir=out"),
        lambda folder: hashes(folder / "out" / "prepared"),
    ),
    "ema and curriculum": training("tiny", *WITH_TOOLS),
    "voice with ema": training("voice", "training.ema=0.9", "data.cache_dir=null"),
    "several from a forkserver": training(
        "several",
        "data.sampling={type: annealed, epochs: 2}",
        "training.performance.num_workers=1",
        "training.performance.multiprocessing_context=forkserver",
    ),
    "classifier with ema": training("classifier", "training.ema=0.9"),
    "preferences": training("preferences"),
    "distillation": training("tiny", "distillation={teacher: run}", of="tiny"),
    "tune": SetUp(("tune", "run"), tuned, "diarizer"),
    "pipeline": SetUp(
        ("pipeline", f"{Path(tiny_pipeline.__file__)}:PIPELINE", "--output-dir", "out", "--resume"),
        lambda folder: [(folder / "out" / name).read_bytes() for name in ("sums/sums.npy", "result/result.json")],
    ),
    "features by two processes": SetUp(
        (
            "data",
            "preprocess",
            "JOBS/voice.yml",
            "run_dir=out",
            "data.cache_dir=null",
            "global_config.storage_path=out/features",
            "global_config.num_jobs=2",
        ),
        lambda folder: hashes(folder / "out" / "features"),
    ),
}


@dataclass
class Reference:
    """The result of a set-up that nobody kills, and the number of file operations that it takes."""

    left: Any
    operations: int


@pytest.fixture(scope="module")
def finished(commands: Commands, jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The finished run of a job."""

    @functools.cache
    def train(job: str) -> Path:
        folder = tmp_path_factory.mktemp("finished")
        ended = commands.start(["train", jobs / f"{job}.yml", "run_dir=run", *FAST], folder).wait()
        assert ended.status == 0, ended.errors
        return folder / "run"

    return train


@pytest.fixture(scope="module")
def references() -> dict[str, Reference]:
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("name", SET_UPS)
def test_a_command_killed_at_an_operation_is_done_by_the_same_command(
    commands: Commands,
    jobs: Path,
    finished: Callable[[str], Path],
    references: dict[str, Reference],
    tmp_path: Path,
    name: str,
    seed: int,
) -> None:
    set_up = SET_UPS[name]

    def call(fault: str | None = None) -> int:
        if set_up.job is not None and not (tmp_path / "run").exists():
            shutil.copytree(finished(set_up.job), tmp_path / "run")
        words = [word.replace("JOBS", str(jobs)) for word in set_up.arguments]
        environment = {"DONE": os.devnull} | ({} if fault is None else {FAULT: fault})
        circumstances = [] if fault is None else ["storage fault"]
        ended = commands.start(words, tmp_path, environment, circumstances=circumstances).wait()
        assert "Traceback" not in ended.errors, ended.errors
        if going_on := re.search(r"resume it: vaak (train .*?);", ended.errors):  # a fork that was finished
            ended = commands.start([*going_on[1].split(), *FAST], tmp_path).wait()
        if ended.status == 2 and "exists and is not an empty folder" in ended.errors:  # an export that was finished
            return 0
        assert ended.status in (0, -signal.SIGKILL), ended.errors
        return ended.status

    def begin_again() -> None:
        for folder in ("run", "out"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)

    if name not in references:
        assert call("any 0 count") == 0
        operations = ast.literal_eval((tmp_path / "counts").read_text())["any"]
        references[name] = Reference(set_up.left(tmp_path), operations)
        begin_again()
    reference = references[name]
    number = random.Random(f"{name} {seed}").randint(1, reference.operations)
    while call(f"any {number} kill") == 0:  # threads make some operations more, or fewer: it had ended before
        begin_again()
        number = number * 3 // 4
        assert number > 0
    assert call() == 0
    assert set_up.left(tmp_path) == reference.left
    left = [path for path in tmp_path.rglob(".*") if path.suffix in (".tmp", ".old")]
    assert not left, f"killed at {number}: {left}"
