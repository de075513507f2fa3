"""A run directory on a disk that can only be read: one clear line, and nothing on it is changed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import Commands, Ended, checkpoints_of


@pytest.fixture
def disk(reference: Path, tmp_path: Path) -> Iterator[Path]:
    """A separate file system that holds a half-finished run and can't be written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here: this takes root")
    try:
        run = shutil.copytree(reference, disk / "run")
        for name in checkpoints_of(run)[2:]:
            shutil.rmtree(run / "checkpoints" / name)
        (run / "checkpoints" / ".step-00000009.4711.tmp").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_one_line(ended: Ended, disk: Path, option: str) -> None:
    assert ended.status == 2, ended.errors
    assert len(ended.errors.splitlines()) == 1, ended.errors
    assert "Read-only file system" in ended.errors
    assert str(disk) in ended.errors
    assert f"give another {option}" in ended.errors


@pytest.mark.parametrize("name", ["run", "new"])
def test_training_there_is_an_error_of_one_line(train: Callable[..., Ended], disk: Path, name: str) -> None:
    before = content(disk)
    assert_one_line(train(disk / name), disk, "run_dir=")
    assert content(disk) == before
    assert (disk / "run" / "checkpoints" / ".step-00000009.4711.tmp").is_dir()
    assert not (disk / "new").exists()


def test_checkpoints_there_are_an_error_before_anything_is_trained(
    train: Callable[..., Ended], disk: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert_one_line(train(run, f"training.checkpoint.save_dir={disk}"), disk, "training.checkpoint.save_dir")
    assert not (run / "metrics.jsonl").exists()


def test_a_run_there_can_be_evaluated(commands: Commands, disk: Path, tmp_path: Path) -> None:
    ended = commands.start(["eval", disk / "run", "--split", "valid"], tmp_path).wait()
    assert ended.status == 0, ended.errors
    assert "loss" in ended.output
