"""``vaak train config.yml run_dir=.`` replaced the user's own config.yml by the resolved one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs

Vaak = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("resume", [(), ("--resume", "auto")])
def test_a_users_configuration_is_never_replaced(
    vaak: Vaak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: tuple[str, ...]
):
    tiny_runs.write_corpus(tmp_path)
    (tmp_path / "tiny.yml").rename(tmp_path / "config.yml")
    before = tiny_runs.hashes(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = vaak("train", "config.yml", "run_dir=.", *resume)
    assert (code, err.count("\n")) == (2, 1)
    assert "config.yml is not a run's configuration" in err
    assert "run_dir=" in err
    assert tiny_runs.hashes(tmp_path) == before


def test_a_run_whose_files_are_of_before_may_go_on(vaak: Vaak, tiny_run: Path, tmp_path: Path):
    run = shutil.copytree(tiny_run, tmp_path / "old")
    for name in ("run.json", "sessions.jsonl", "environment.json"):
        (run / name).unlink(missing_ok=True)
    code, _, err = vaak("train", run / "config.yml", f"run_dir={run}", "--resume", "auto")
    assert code == 0, err
