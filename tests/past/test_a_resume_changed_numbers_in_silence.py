"""A resume under other options said "same draws, same bits", or failed by tensors' shapes: it says what changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run stopped in its second epoch."""
    tiny_runs.write_corpus(tmp_path / "text")
    tiny_runs.train(tmp_path / "text", tmp_path / "run")
    return tmp_path / "run"


def resumed(vaak: Vaak, run: Path, *changes: str) -> tuple[int, str]:
    code, _, err = vaak("train", run / "config.yml", "--resume", "auto", "training.max_steps=8", *changes)
    return code, err


def test_what_is_free_is_taken_without_a_word(vaak: Vaak, run: Path):
    code, said = resumed(vaak, run, "training.logging.interval=3", "training.checkpoint.save_total_limit=7")
    assert code == 0, said
    assert "same draws, same bits (vaak " in said
    assert "interval" not in said.split("same draws")[1].split("\n")[0]


def test_other_numbers_are_said_with_both_values(vaak: Vaak, run: Path):
    code, said = resumed(vaak, run, "training.optimizer.weight_decay=0.25", "training.checkpoint.mode=max")
    assert code == 0, said
    assert "training.optimizer.weight_decay was 0.01, is 0.25" in said
    assert "training.checkpoint.mode was min, is max" in said
    assert "same bits" not in said


def test_what_can_not_be_changed_is_refused_with_both_values_and_all_at_once(vaak: Vaak, run: Path):
    code, said = resumed(vaak, run, "model.d_model=64", "training.optimizer.type=lion", "training.random_seed=7")
    assert code == 2
    assert "model.d_model was 32, is 64; " in said
    assert "training.optimizer.type was adamw, is lion" in said
    assert "training.random_seed was 42, is 7" in said
    assert "shape" not in said
    assert "Traceback" not in said


def test_other_conditions_are_said(vaak: Vaak, run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vaak.engine.resuming.conditions.np.__version__", "0.0.1")
    code, said = resumed(vaak, run)
    assert code == 0, said
    assert "same draws, bits equal to rounding only (numpy " in said
