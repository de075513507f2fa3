"""What each of two ranks does on nodes that may share no storage: the paths are the same, the folders aren't."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from processes import join
from toy import toy_trainer
from vaak.core.errors import UserError
from vaak.engine.distributed import ranks as processes
from vaak.runs.folder import directory


def resume_unseen(rank: int, port: int, folder: Path) -> None:
    """Rank 1 doesn't see the checkpoint that rank 0 finds: both end with a line, soon."""
    os.chdir(folder / f"node{rank}")
    ranks = join(rank, port)
    trainer = toy_trainer(Path("run"), ranks=ranks)
    begun = time.monotonic()
    with pytest.raises(UserError) as caught:
        trainer.resume("auto")
    assert "rank 1 does not see run/checkpoints/step-00000003 (step 3) as rank 0 does" in str(caught.value)
    assert "storage that all nodes share" in str(caught.value)
    assert time.monotonic() - begun < 30
    ranks.close()


def resume_as_the_main_process_says(rank: int, port: int, folder: Path) -> None:
    """Rank 1's own idea of the newest checkpoint is another: rank 0's counts."""
    ranks = join(rank, port)
    trainer = toy_trainer(folder / f"node{rank}" / "run", ranks=ranks)
    assert trainer.resume("auto")
    assert trainer.position.step == 3
    ranks.close()


def begin_unseen(rank: int, port: int, folder: Path) -> None:
    """Rank 1 doesn't see the run directory that rank 0 made."""
    processes.SLOW_RANK_SECONDS = 1.0
    os.chdir(folder / f"node{rank}")
    ranks, run = join(rank, port), Path("run")
    if ranks.is_main:
        (run / "checkpoints").mkdir(parents=True)
        directory.claim(run)
    with pytest.raises(UserError, match=r"rank 1 on .* doesn't see run as rank 0 writes it.*storage"):
        processes.require_shared(ranks, run)
    assert not list(run.glob(".*"))
    ranks.close()
