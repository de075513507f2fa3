"""The scripts of ``examples`` do what they say."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from commands import Commands, wait_until
from vaak.config.load import load
from vaak.runs.start import train

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "configs" / "training_minimal.yml"
SCRIPT = REPOSITORY / "examples" / "train_by_hand.py"


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


@pytest.mark.slow
def test_a_run_by_hand_gives_the_bits_of_vaak_train(run, commands: Commands, tmp_path: Path):
    """Also where it is killed in the middle and started again."""
    by_hand = tmp_path / "by_hand"
    first = commands.start([RECIPE, by_hand], tmp_path, script=SCRIPT)
    assert wait_until(lambda: first.output.exists() and "step 7 " in first.output.read_text(), first)
    first.send(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    again = commands.start([RECIPE, by_hand], tmp_path, script=SCRIPT).wait()
    assert again.status == 0, again.errors
    begun, *_, last = again.output.splitlines()
    done = int(first.output.read_text().splitlines()[-1].split()[1])
    assert begun.startswith((f"step {done + 1} ", f"step {done + 2} "))
    assert last.startswith("step 20 ")
    assert_same_weights(by_hand, run)


def test_it_fits_on_a_page():
    assert len(SCRIPT.read_text().splitlines()) < 100
