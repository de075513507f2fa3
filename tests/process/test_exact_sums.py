"""With exact sums a run is the same bits on any number of processes, also where the system kills all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import exact_cases
from commands import records_of, state_of
from contract_cases import CASES

KILLED = ("1:4", "3:1", "5:3", "8:2")
"""After which step, on how many processes; checkpoints are those of every second step."""
QUICK = ("lm decoder, documents",)


def trained(folder: Path, run: str, case: str, *stages: str) -> Path:
    done = subprocess.run(
        [sys.executable, exact_cases.__file__, str(folder), run, case, *stages],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / run


@pytest.mark.parametrize("case", [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in CASES])
def test_one_process_and_others_that_are_killed(case: str, tmp_path: Path):
    alone = trained(tmp_path, "alone", case, "8:1")
    together = trained(tmp_path, "together", case, *(("3:3", "8:2") if case in QUICK else KILLED))
    ours, theirs = (run / "checkpoints" / "step-00000008" for run in (together, alone))
    for file in ("model", "optimizer", "average"):
        assert (ours / f"{file}.safetensors").read_bytes() == (theirs / f"{file}.safetensors").read_bytes(), file
    assert state_of(ours) == state_of(theirs)
    assert records_of(together) == records_of(alone)
