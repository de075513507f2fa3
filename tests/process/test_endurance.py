"""Forty thousand steps, with everything that watches: memory and open files stay as they were."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import pytest

from commands import checkpoints_of, stat_records
from endurance import EVERY, take_very_many_steps

STEPS_AN_EPOCH = 100
MAY_GROW_MB = 4.0
"""36,000 steps that each kept a float in a list and what it is part of, 120 bytes, would be 4.3 MB."""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_very_many_steps_hold_no_more_than_few(tmp_path: Path) -> None:
    steps = 40_000
    process = multiprocessing.get_context("spawn").Process(target=take_very_many_steps, args=(tmp_path, steps))
    process.start()
    process.join()
    assert process.exitcode == 0

    held = json.loads((tmp_path / "held.json").read_text())
    assert [step for step, _, _ in held] == list(range(steps // 10, steps + 1, steps // 10))
    _, first_memory, first_files = held[0]
    _, last_memory, last_files = held[-1]
    assert last_files == first_files
    print(f"{steps} steps: {[round(memory, 1) for _, memory, _ in held]} MB, {len(last_files)} files open")
    assert last_memory - first_memory < MAY_GROW_MB

    run = tmp_path / "run"
    records = stat_records(run)
    logged = [record["step"] for record in records if record["kind"] == "step"]
    assert logged == [1, *range(EVERY, steps + 1, EVERY)]
    epochs = [record["step"] for record in records if record["kind"] == "epoch"]
    assert epochs == list(range(STEPS_AN_EPOCH, steps + 1, STEPS_AN_EPOCH))
    assert len([record for record in records if record["kind"] == "evaluation"]) == 20
    assert len(checkpoints_of(run)) in (2, 3)
