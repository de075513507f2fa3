"""A case of the contract with exact sums, on processes that are killed and continued by others: a program that forks.

    python exact_cases.py FOLDER RUN CASE STOP:PROCESSES ...

FOLDER/RUN is trained on the given number of processes up to each STOP in turn, where the system kills all of them, and
to its end by the last.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from contract_cases import CASES
from elastic import forked
from vaak.callbacks.step_log import StepLogCallback
from vaak.core.callback import Callback, StepReport
from vaak.testing import Case

TRAINING: dict[str, Any] = {
    "batch_size": 2,
    "gradient_accumulation_steps": 8,
    "max_steps": 8,
    "validation": {"interval": 4, "interval_epochs": None},
    "checkpoint": {"interval": 2, "interval_epochs": None},
    "memory": {"rehearsal": False},
    "gradient_clipping": {"norm": 0.5},
    "ema": {"decay": 0.9},
    "distributed": {"reduction": "exact"},
}


class KillAt(Callback):
    """The system kills the process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == self.step:
            trainer.ranks.wait()
            os.kill(os.getpid(), signal.SIGKILL)


def train(case: Case, run: Path, stop: int) -> None:
    """What one process does."""
    trainer = case.trainer(run, StepLogCallback(1), KillAt(stop), **TRAINING)
    trainer.resume("auto")
    trainer.fit()
    trainer.ranks.close()


def main() -> None:
    torch.set_num_threads(1)
    folder, run, name, *stages = Path(sys.argv[1]), *sys.argv[2:]
    case = CASES[name].prepared(folder)
    for stage in stages:
        stop, processes = map(int, stage.split(":"))
        killed = stop < TRAINING["max_steps"]
        last = stop if killed else 0
        statuses = forked(processes, lambda last=last: train(case, folder / run, last))  # type: ignore[misc]
        assert statuses == [-signal.SIGKILL if killed else 0] * processes, (stage, statuses)


if __name__ == "__main__":
    main()
