"""A vocoder that is killed after its discriminators' update and before its generator's: the same bits in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import killed_vocoder
from commands import stat_records, state_of

PROGRAM = killed_vocoder.__file__


@pytest.mark.slow
def test_killed_between_its_objectives_it_ends_with_the_same_bits(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, PROGRAM, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    newest = json.loads(
        done.stdout.splitlines()[-1]
    )  # when it was killed; that of step 4 may not have been written yet
    assert len(newest) == 2
    assert {*newest} <= {"step-00000002", "step-00000004"}
    ours, theirs = (tmp_path / name / "checkpoints" / "step-00000008" for name in ("killed", "whole"))
    for file in ("model", "optimizer"):
        assert (ours / f"{file}.safetensors").read_bytes() == (theirs / f"{file}.safetensors").read_bytes(), file
    assert state_of(ours) == state_of(theirs)
    assert stat_records(tmp_path / "killed") == stat_records(tmp_path / "whole")
