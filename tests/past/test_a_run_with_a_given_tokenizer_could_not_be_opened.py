"""A run whose tokenizer is given by ``path`` was trained, and ended every later command in a traceback."""

from __future__ import annotations

from pathlib import Path

import tiny_runs
from vaak.runs.open_run import open_run


def test_it_is_evaluated_and_opened(vaak, tiny_text: Path, tiny_run: Path, tmp_path: Path):
    tokenizer, run = tiny_run / "prepared" / "tokenizer", tmp_path / "run"
    tiny_runs.train(tiny_text, run, f"data.tokenizer.path={tokenizer}", "training.max_steps=2")
    assert open_run(run, device="cpu").task.tokenizer.fingerprint == open_run(tiny_run).task.tokenizer.fingerprint
    code, out, err = vaak("eval", run)
    assert code == 0, err
    assert "loss" in out
