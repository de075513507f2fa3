"""The number of torch's threads is the process's: what a run sets is put back, or the next one has other bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import tiny_runs
import vaak as library
from vaak.engine.checkpoint.files import read_state

Command = Callable[..., tuple[int, str, str]]


def test_a_runs_threads_are_its_own(tiny_text: Path, tmp_path: Path, vaak: Command) -> None:
    """In training, and in whatever is done with the run afterwards."""
    before, run = torch.get_num_threads(), tmp_path / "run"
    own = f"training.performance.num_threads={before + 1}"
    outcome = tiny_runs.train(tiny_text, run, own)
    assert torch.get_num_threads() == before
    assert read_state(run / "checkpoints" / f"step-{outcome.step:08}")["conditions"]["threads"] == before + 1
    for arguments in (("eval", run, "--split", "valid"), ("replay", run, "--step", 6)):
        code, out, err = vaak(*arguments)
        assert code == 0, out + err
        assert torch.get_num_threads() == before, arguments[0]
    library.open(run, device="cpu").evaluate("valid")
    assert torch.get_num_threads() == before
