"""Torchrun was killed, and its ranks trained on, unseen, holding the run's lock; those that were starting waited on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vaak
from processes import children_of, free_port, have_ended_within
from tiny_runs import write_corpus
from vaak.core.storage.lock import is_locked
from vaak.engine.distributed.launcher import is_alive

REPOSITORY = Path(__file__).resolve().parents[2]
TORCHRUN = Path(sys.executable).parent / "torchrun"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")


def torchrun(folder: Path) -> subprocess.Popen[bytes]:
    """Two ranks of a long run, started by torchrun."""
    write_corpus(folder)
    options = ["training.max_steps=100000", "training.gradient_accumulation_steps=2"]
    arguments = ["--config", str(folder / "tiny.yml"), f"run_dir={folder / 'run'}", *options]
    return subprocess.Popen(
        [TORCHRUN, "--nproc_per_node=2", f"--master_port={free_port()}", REPOSITORY / "train.py", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(vaak.__file__).parents[1])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def is_true_within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "seconds"), [("starting", 30), ("training", 5)])
def test_ranks_end_within_seconds_of_their_launcher(tmp_path: Path, moment: str, seconds: float):
    """Before a rank asks to end with its launcher, it takes the second that Python needs; then it asks its launcher."""
    launcher = torchrun(tmp_path)
    try:
        assert is_true_within(240, lambda: len(children_of(launcher.pid)) == 2)  # it imports torch
        ranks = children_of(launcher.pid)
        if moment == "training":
            assert is_true_within(240, (tmp_path / "run" / "metrics.jsonl").exists)
        else:
            time.sleep(0.5)  # they import torch
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    try:
        assert have_ended_within(seconds, ranks)
    finally:
        for rank in filter(is_alive, ranks):
            os.kill(rank, signal.SIGKILL)
    # A process counts as ended a moment before the kernel has closed the files of its last thread.
    assert is_true_within(2, lambda: not is_locked(tmp_path / "run" / ".lock"))
