"""With exact sums a run is the same bits on any number of processes, also where the system kills all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Commands, stat_records, state_of
from contract_cases import CASES
from exact_cases import trained

KILLED = ("1:4", "3:1", "5:3", "8:2")
"""After which step, on how many processes; checkpoints are those of every second step."""
QUICK = ("lm decoder, documents",)


@pytest.mark.parametrize("case", [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in CASES])
def test_one_process_and_others_that_are_killed(case: str, tmp_path: Path, commands: Commands):
    stages = ("3:3", "8:2") if case in QUICK else KILLED
    alone, together = trained(commands, tmp_path, case, alone=(("8:1",), {}), together=(stages, {}))
    ours, theirs = (run / "checkpoints" / "step-00000008" for run in (together, alone))
    for file in ("model", "optimizer", "average"):
        assert (ours / f"{file}.safetensors").read_bytes() == (theirs / f"{file}.safetensors").read_bytes(), file
    assert state_of(ours) == state_of(theirs)
    assert stat_records(together) == stat_records(alone)
