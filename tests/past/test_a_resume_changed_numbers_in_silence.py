"""A resume under other options said "same draws, same bits", or failed by tensors' shapes: it says what changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from vaak.engine.checkpoint.files import complete_checkpoint, read_state
from vaak.engine.checkpoint.names import list_checkpoints

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its texts."""
    folder = tmp_path_factory.mktemp("kept")
    tiny_runs.train_and_keep(folder)
    return folder


@pytest.fixture
def run(kept: Path) -> Path:
    """A run stopped in its second epoch."""
    return tiny_runs.as_trained(kept)


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
    monkeypatch.setattr("vaak.engine.checkpoint.conditions.np.__version__", "0.0.1")
    code, said = resumed(vaak, run)
    assert code == 0, said
    assert "same draws, bits equal to rounding only (numpy " in said


@pytest.mark.slow
def test_other_instructions_of_the_processor_are_said(vaak: Vaak, run: Path):
    """torch chooses kernels by this variable when it is imported, and so gives other bits."""
    code = "import sys, vaak.cli.main as m; sys.argv = ['vaak', *sys.argv[1:]]; m.main()"
    command = [sys.executable, "-c", code, "train", f"{run}/config.yml", "--resume", "auto"]
    found = subprocess.run(
        command, env={**os.environ, "ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "same bits" not in found.stderr
    assert "bits equal to rounding only (cpu capability " in found.stderr
    assert "-> DEFAULT" in found.stderr


@pytest.mark.parametrize("package", ["lhotse", "peft", "scipy", "soxr", "tokenizers", "transformers"])
def test_another_version_of_a_package_is_said(vaak: Vaak, run: Path, package: str):
    pytest.importorskip(package)
    change_conditions(run, lambda before: before["packages"].update({package: "0.0.1"}))
    code, said = resumed(vaak, run)
    assert code == 0, said
    assert f"same draws, bits equal to rounding only ({package} 0.0.1 -> " in said


def test_other_code_of_vaak_is_said(vaak: Vaak, run: Path):
    change_conditions(run, lambda before: before.update(code="0123456789ab"))
    code, said = resumed(vaak, run)
    assert code == 0, said
    assert "same draws, bits equal to rounding only (code 0123456789ab -> " in said


def test_a_checkpoint_of_an_earlier_version_resumes_and_what_is_unknown_is_said(vaak: Vaak, run: Path):
    change_conditions(run, lambda before: [before.pop(name) for name in ("code", "packages", "cpu capability")])
    code, said = resumed(vaak, run)
    assert code == 0, said
    assert "same draws; the bits are the same if these are: code, packages, cpu capability (the earlier version" in said


def change_conditions(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Have the newest checkpoint say that it was made under other conditions."""
    newest = list_checkpoints(run / "checkpoints")[-1]
    state = read_state(newest)
    change(state["conditions"])
    complete_checkpoint(newest, state)
