"""What the tests with real processes share: the command, a tiny job, and its uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Command, Commands, Ended, write_jobs


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the YAMLs of ``commands.JOBS``, and what they need."""
    folder = tmp_path_factory.mktemp("configuration")
    write_jobs(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(jobs: Path) -> Path:
    """The YAML of a job of 21 steps with dropout, accumulation and random data augmentation."""
    return jobs / "tiny.yml"


@pytest.fixture(scope="session")
def start(commands: Commands, jobs: Path) -> Callable[..., Command]:
    """``start(run, *overrides)`` starts training the tiny job, or another ``job``, into a run directory."""

    def start_training(run: Path, *overrides: str, job: str = "tiny", **options: Any) -> Command:
        return commands.start(["train", jobs / f"{job}.yml", f"run_dir={run}", *overrides], run.parent, **options)

    return start_training


@pytest.fixture(scope="session")
def train(start: Callable[..., Command]) -> Callable[..., Ended]:
    """``train(run, *overrides)`` trains the tiny job into a run directory, to the end, whatever that is."""

    def train_to_its_end(run: Path, *overrides: str, **options: object) -> Ended:
        return start(run, *overrides, **options).wait()

    return train_to_its_end


@pytest.fixture(scope="session")
def reference(train: Callable[..., Ended], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny job's run, never interrupted."""
    run = tmp_path_factory.mktemp("reference") / "run"
    ended = train(run)
    assert ended.status == 0, ended.errors
    return run
