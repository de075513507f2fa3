"""Started on 4 processes, a run is resumed on 3, 2, 1 and 8: the same microbatches, draws and, to rounding, weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import elastic
from commands import Command, Commands, checkpoints_of, stat_records, state_of, steps_of, wait_until

pytestmark = pytest.mark.slow

STEPS = 26
"""Two epochs of 13 steps: 12 of 8 microbatches and one of 4, which leaves some of 8 processes without any."""

STAGES = ((3, 4), (6, 3), (9, 2), (12, 1), (STEPS, 8))
"""Up to which step on how many processes; they need not divide a step's microbatches."""


def trained(folder: Path, stages: tuple[tuple[int, int], ...], reduction: str = "float") -> Path:
    """A folder with the run of these stages and its draws."""
    folder.mkdir()
    words = [f"{stop}:{processes}" for stop, processes in stages]
    done = subprocess.run(
        [sys.executable, elastic.__file__, str(folder), reduction, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, never interrupted."""
    return trained(tmp_path_factory.mktemp("alone") / "1", ((STEPS, 1),))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Processes that come and go."""
    return trained(tmp_path_factory.mktemp("together") / "4-3-2-1-8", STAGES)


def draws_of(folder: Path, rank: int, step: int) -> list[dict[str, Any]]:
    """Return the draws from which a rank computed its microbatches of a step, in order."""
    path = folder / f"draws-{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [draw for line in lines if (draw := json.loads(line))["step"] == step]


def test_each_process_computes_its_microbatches_of_the_same_steps_with_the_same_draws(
    alone: Path, together: Path
) -> None:
    seen = set()
    for (before, _), (stop, processes) in pairwise(((0, 0), *STAGES)):
        for step in range(before + 1, stop + 1):
            expected = draws_of(alone, 0, step)
            assert len(expected) == (elastic.MICROBATCHES if step % 13 else 4)
            for rank in range(8):
                own = draws_of(together, rank, step)
                assert len(own) == (len(expected[rank::processes]) if rank < processes else 0)
                for draw, of_one in zip(own, expected[rank::processes], strict=False):
                    assert draw.pop("loss") == pytest.approx(of_one["loss"], rel=1e-10)
                    assert draw == {name: value for name, value in of_one.items() if name != "loss"}
                    seen.add(draw["generator"])
    assert len(seen) == 24 * elastic.MICROBATCHES + 2 * 4, "no two microbatches drew the same"


def test_weights_averages_and_figures_are_those_of_one_process(alone: Path, together: Path) -> None:
    theirs, ours = (folder / "run" / "checkpoints" / f"step-{STEPS:08d}" for folder in (alone, together))
    for file in ("model.safetensors", "optimizer.safetensors"):
        torch.testing.assert_close(load_file(ours / file), load_file(theirs / file), rtol=1e-10, atol=1e-12)
    assert state_of(ours)["position"] == state_of(theirs)["position"]
    for record, expected in zip(stat_records(together / "run"), stat_records(alone / "run"), strict=True):
        assert record.pop("kind") == expected.pop("kind")
        assert record == pytest.approx(expected, rel=1e-9)
    stops = {f"step-{stop:08d}" for stop, _ in STAGES}
    assert stops <= set(checkpoints_of(together / "run")), "each stage saved where it stopped"


def test_with_exact_sums_they_are_the_same_bits(tmp_path: Path) -> None:
    """In float32: weights, averages, moments, and all that is logged but times."""
    stages = {"alone": ((STEPS, 1),), "together": STAGES}
    alone, together = (trained(tmp_path / name, stage, "exact") / "run" for name, stage in stages.items())
    last = f"step-{STEPS:08d}"
    for file in ("model", "optimizer", "average"):
        ours, theirs = (run / "checkpoints" / last / f"{file}.safetensors" for run in (together, alone))
        assert ours.read_bytes() == theirs.read_bytes(), file
    assert stat_records(together) == stat_records(alone)


def test_the_command_goes_on_with_any_number_of_processes(commands: Commands, tiny: Path, tmp_path: Path) -> None:
    """In float64, where the order of a sum over ranks, the only difference, is lost in the last digits."""

    def start(run: Path, processes: int) -> list[Command]:
        options = ("training.gradient_accumulation_steps=8", "training.epochs=12")
        return commands.start_ranks(processes, ["train", tiny, f"run_dir={run}", *options], tmp_path, ["float64"])

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert start(theirs, 1)[0].wait().status == 0
    said = ""
    for step, processes in ((5, 4), (15, 3), (25, 2), (35, 1), (999, 8)):
        ranks = start(ours, processes)
        wait_until(partial(has_step, ours, step), ranks[0])
        for rank in ranks:
            if rank.is_running:
                rank.send(signal.SIGTERM)
        assert [rank.wait().status for rank in ranks] == [0] * processes, ranks[0].errors.read_text()
        said += ranks[0].errors.read_text()
    for before, after in ((4, 3), (3, 2), (2, 1), (1, 8)):
        assert f"same draws, bits equal to rounding only (world_size {before} -> {after})" in said
    last = checkpoints_of(theirs)[-1]
    assert checkpoints_of(ours)[-1] == last
    weights = [load_file(run / "checkpoints" / last / "model.safetensors") for run in (ours, theirs)]
    assert {tensor.dtype for tensor in weights[0].values()} == {torch.float64}
    torch.testing.assert_close(*weights, rtol=1e-10, atol=1e-12)
    assert steps_of(ours) == steps_of(theirs)
    for record, expected in zip(steps_in(ours), steps_in(theirs), strict=True):
        assert record == pytest.approx(expected, rel=1e-9)


def has_step(run: Path, step: int) -> bool:
    path = run / "metrics.jsonl"
    return path.exists() and f'"kind": "step", "step": {step},' in path.read_text()


def steps_in(run: Path) -> list[dict[str, Any]]:
    """The step records without their kind."""
    records = [record for record in stat_records(run) if record["kind"] == "step"]
    return [{name: value for name, value in record.items() if name != "kind"} for record in records]
