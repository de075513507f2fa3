"""Each session of a run keeps its configuration, and each step is known to be a session's, whatever was resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from vaak.config.load import load
from vaak.core.storage.files import read_json
from vaak.runs.folder.sessions import find_step_configuration

RESUME = "training.checkpoint.resume"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    tiny_runs.write_corpus(folder)
    return folder


def train(text: Path, run: Path, steps: int, rate: float, resume: str | Path = "auto") -> None:
    """Steps up to this one at this rate, each saved."""
    tiny_runs.train(
        text,
        run,
        f"training.max_steps={steps}",
        f"training.optimizer.lr={rate}",
        f"{RESUME}={resume}",
        "training.validation.interval=null",
        "training.checkpoint.interval=1",
        "training.checkpoint.save_total_limit=null",
    )


def rates(run: Path, steps: range) -> list[float]:
    """The learning rate of the configuration of each step."""
    return [load([find_step_configuration(run, step)]).experiment.training.optimizer.lr for step in steps]


def sessions(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "sessions.jsonl").read_text().splitlines()]


def test_each_step_has_the_configuration_of_its_session(text: Path, tmp_path: Path):
    run = tmp_path / "run"
    train(text, run, 3, 0.1)
    train(text, run, 5, 0.2)
    assert rates(run, range(1, 6)) == [0.1, 0.1, 0.1, 0.2, 0.2]
    first, second = sessions(run)
    assert (first["number"], first["first_step"], first["after"]) == (1, 1, None)
    assert (second["number"], second["first_step"], second["after"]) == (2, 4, 1)
    assert {"time", "command", "world_size", "vaak", "packages"} <= first.keys()
    assert (run / "config.yml").read_text() == (run / "sessions" / "0002.yml").read_text()
    assert read_json(run / "environment.json")["command"] == second["command"]
    assert read_json(run / "checkpoints" / "step-00000004" / "MANIFEST.json")["session"] == 2


def test_steps_that_are_taken_again_are_the_later_sessions(text: Path, tmp_path: Path):
    """Back to step 2, then back to what was set aside: the session between has no step of this past."""
    run = tmp_path / "run"
    train(text, run, 3, 0.1)
    train(text, run, 5, 0.2)
    train(text, run, 4, 0.3, run / "checkpoints" / "step-00000002")
    assert rates(run, range(1, 5)) == [0.1, 0.1, 0.3, 0.3]
    train(text, run, 6, 0.4, run / "checkpoints" / "set-aside" / "step-00000005.1")
    assert rates(run, range(1, 7)) == [0.1, 0.1, 0.1, 0.2, 0.2, 0.4]


def test_a_run_that_was_begun_before_there_were_sessions(text: Path, tmp_path: Path):
    run = tmp_path / "run"
    train(text, run, 2, 0.1)
    (run / "sessions.jsonl").unlink()
    shutil.rmtree(run / "sessions")
    assert find_step_configuration(run, 1) == run / "config.yml"
    for path in (run / "checkpoints").glob("step-*/MANIFEST.json"):
        manifest = read_json(path)
        del manifest["session"], manifest["periodic"]
        path.write_text(json.dumps(manifest))
    train(text, run, 3, 0.2)
    assert rates(run, range(1, 4)) == [0.1, 0.1, 0.2]


def test_from_another_runs_checkpoint_no_session_here_took_the_steps_before(text: Path, tmp_path: Path):
    train(text, tmp_path / "one", 2, 0.1)
    train(text, tmp_path / "two", 3, 0.2, tmp_path / "one" / "checkpoints" / "step-00000002")
    assert sessions(tmp_path / "two")[0]["after"] is None
    assert find_step_configuration(tmp_path / "two", 3).name == "0001.yml"
    assert find_step_configuration(tmp_path / "two", 2).name == "config.yml"


def test_a_half_line_and_a_lost_file_cost_no_session_its_number(text: Path, tmp_path: Path):
    run = tmp_path / "run"
    train(text, run, 1, 0.1)
    with open(run / "sessions.jsonl", "a") as file:
        file.write('{"number": 2, "fi')
    train(text, run, 2, 0.2)
    assert [session["number"] for session in sessions(run)] == [1, 2]


def test_a_sessions_configuration_means_the_run_it_lies_in(text: Path, tmp_path: Path):
    train(text, tmp_path / "run", 1, 0.1)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    loaded = load([moved / "sessions" / "0001.yml"])
    assert (loaded.experiment.run_dir, loaded.folder) == (moved, moved)
