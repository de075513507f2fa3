"""A run with two objectives, killed twenty times at any moment: the same bits, the same log, as if it never was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import killed_duel
from commands import stat_records, state_of

PROGRAM = killed_duel.__file__


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, 20])
def test_killed_again_and_again_it_ends_with_the_same_bits(kills: int, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, PROGRAM, str(tmp_path), str(kills)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)
    assert about["kills"] >= kills // 2, about
    assert len(set(about["newest"])) > 1, about  # it was killed at different places
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    names = sorted(path.name for path in (whole / "checkpoints").glob("step-*"))
    assert names[-1] in sorted(path.name for path in (killed / "checkpoints").glob("step-*"))
    ours, theirs = (run / "checkpoints" / names[-1] for run in (killed, whole))
    for file in ("model", "optimizer", "average"):
        assert (ours / f"{file}.safetensors").read_bytes() == (theirs / f"{file}.safetensors").read_bytes(), file
    assert state_of(ours) == state_of(theirs)
    assert stat_records(killed) == stat_records(whole)
    assert (killed / "checkpoints" / "best").read_text() == (whole / "checkpoints" / "best").read_text()
