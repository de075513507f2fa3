"""``cp -r runs/a runs/b; vaak train runs/b/config.yml --resume auto`` trained runs/a, which run_dir: still named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs
from vaak.config.load import load
from vaak.runs.folder.directory import command_to_go_on

Vaak = Callable[..., tuple[int, str, str]]
MORE = ("training.max_steps=9", "--resume", "auto")


@pytest.fixture
def original(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny_runs.train(tiny_text, Path("runs/a"))
    return Path("runs/a")


def test_a_copy_trains_itself(vaak: Vaak, original: Path):
    shutil.copytree(original, "runs/b")
    before = tiny_runs.hashes(original)
    code, out, err = vaak("train", "runs/b/config.yml", *MORE)
    assert code == 0, err
    assert tiny_runs.hashes(original) == before
    assert Path("runs/b/checkpoints/step-00000009").is_dir()
    assert "the run is in runs/b" in out


def test_a_moved_run_trains_where_it_is_also_from_inside(
    vaak: Vaak, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moved = original.rename(tmp_path / "moved")
    assert command_to_go_on(moved) == f"vaak train {moved}/config.yml --resume auto"
    monkeypatch.chdir(moved)
    code, _, err = vaak("train", "config.yml", *MORE)
    assert code == 0, err
    assert (moved / "checkpoints" / "step-00000009").is_dir()
    assert not (tmp_path / "runs" / "a").exists()


def test_run_dir_on_the_command_line_or_in_a_later_file_decides(original: Path, tmp_path: Path):
    config = original / "config.yml"
    assert load([config]).experiment.run_dir == original
    assert load([config], ["run_dir=elsewhere"]).experiment.run_dir == Path("elsewhere")
    (tmp_path / "later.yml").write_text("run_dir: later\n")
    assert load([config, tmp_path / "later.yml"]).experiment.run_dir == Path("later")
    mine = shutil.copy(config, tmp_path / "config.yml")  # no run is here
    assert load([mine]).experiment.run_dir == original
