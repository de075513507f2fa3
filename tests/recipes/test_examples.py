"""The scripts of ``examples`` do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from vaak.config.load import load
from vaak.runs.start import train

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "configs" / "training_minimal.yml"


def begin_by_hand(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(REPOSITORY / "examples" / "train_by_hand.py"), str(RECIPE), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def assert_same_weights(by_hand: Path, run: Path) -> None:
    state = load_file(by_hand / "state.safetensors")
    weights = load_file(run / "checkpoints" / "step-00000020" / "model.safetensors")
    assert {name for name in state if name.startswith("model.")} == {f"model.{name}" for name in weights}
    assert all((state[f"model.{name}"] == weight).all() for name, weight in weights.items())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe") / "run"
    loaded = load([RECIPE], [f"run_dir={folder}", "training.device=cpu", "training.performance.num_threads=1"])
    train(loaded)
    return folder


def test_a_run_by_hand_gives_the_bits_of_vaak_train(run, tmp_path):
    """Also where it is killed in the middle and started again."""
    with begin_by_hand(tmp_path / "by_hand") as first:
        assert first.stdout is not None
        assert any(line.startswith("step 7 ") for line in first.stdout)
        first.kill()
    with begin_by_hand(tmp_path / "by_hand") as again:
        said, _ = again.communicate()
    assert again.returncode == 0
    assert said.startswith(("step 8 ", "step 9 "))
    assert said.splitlines()[-1].startswith("step 20 ")
    assert_same_weights(tmp_path / "by_hand", run)


def test_it_fits_on_a_page():
    assert len((REPOSITORY / "examples" / "train_by_hand.py").read_text().splitlines()) < 100
