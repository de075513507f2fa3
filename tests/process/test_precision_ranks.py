"""Where 16 bits fail on one of two processes, both compute the step again in fp32, and a resume does the same."""

from __future__ import annotations

import json
from pathlib import Path

from precision_ranks import train_both
from processes import run_on_two_ranks


def test_both_leave_mixed_precision_at_the_same_step_killed_or_not(tmp_path: Path):
    run_on_two_ranks(train_both, tmp_path)
    said = {f"{name}-{rank}": json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for name, rank in NAMES}
    assert said["whole-0"] == said["whole-1"] == [0, 3, 5, 0]
    assert said["killed-0"] == said["killed-1"] == [1, 3, 5, 0]
    weights = {(tmp_path / f"{name}-{rank}.safetensors").read_bytes() for name, rank in NAMES}
    assert len(weights) == 1


NAMES = [(name, rank) for name in ("whole", "killed") for rank in (0, 1)]
