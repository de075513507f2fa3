"""Replays of a run that is still training, and of a run on several processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Command, Commands, wait_until


def replayed(commands: Commands, run: Path, step: int) -> Any:
    ended = commands.start(["replay", run, "--step", str(step), "--json"], run.parent).wait()
    assert ended.status == 0, ended.errors
    return json.loads(ended.output)


@pytest.mark.slow
def test_a_run_that_is_training_is_replayed_meanwhile(
    commands: Commands, start: Callable[..., Command], tmp_path: Path
):
    run = tmp_path / "run"
    training = start(run, "training.epochs=10000", "training.validation.interval=null")
    wait_until((run / "checkpoints" / "step-00000003").exists, training)
    found = replayed(commands, run, 2)
    assert training.is_running
    assert found["agreement"]["same"] > 0
    assert found["agreement"]["differences"] == []
    training.send(signal.SIGKILL)
    training.wait()


def test_a_run_on_two_processes_is_replayed_in_one(commands: Commands, tiny: Path, tmp_path: Path):
    run = tmp_path / "run"
    ranks = commands.start_ranks(2, ["train", tiny, f"run_dir={run}", "training.max_steps=6"], tmp_path)
    assert [rank.wait().status for rank in ranks] == [0, 0]
    found = replayed(commands, run, 5)
    assert found["agreement"]["begun_at"] >= 3
    assert [microbatch["number"] for microbatch in found["microbatches"]] == [0, 1, 2]
    assert "world_size: 2 then, 1 now" in found["agreement"]["conditions"]
    assert found["agreement"]["same"] > 0
    for difference in found["agreement"]["differences"]:
        assert abs(difference["then"] - difference["now"]) < 1e-5 * abs(difference["then"])
