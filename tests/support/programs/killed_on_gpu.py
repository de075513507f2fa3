"""A language model on the mock device, killed by the system and resumed: a program, since it forks before it computes.

    python killed_on_gpu.py FOLDER [LIBRARY]

Without the LIBRARY of the mock device it uses the GPU that is there. It leaves FOLDER/whole, never disturbed, and
FOLDER/killed, killed after some steps and resumed each time. On standard output, in JSON: the signals by which it
ended, and where it resumed last.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import all_rooms  # noqa: F401 # before those that it finds
import mock_cuda
from contract_cases import CASES
from vaak.callbacks.step_log import StepLogCallback
from vaak.engine.callback import Callback, StepReport
from vaak.engine.trainer import Trainer
from vaak.testing import Case

OPTIONS: dict[str, Any] = {
    "device": "cuda",
    "deterministic": True,
    "mixed_precision": "auto",
    "ema": {"decay": 0.9},
    "max_steps": 7,
    "checkpoint": {"interval": 2},
}
KILLED_AFTER = (1, 3, 6)
"""Before there is a checkpoint, between two, and where one is due."""


class KillAt(Callback):
    """The system kills the process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def resumed(case: Case, folder: Path, *callbacks: Callback) -> Trainer:
    trainer = case.trainer(folder, StepLogCallback(1), *callbacks)
    trainer.resume("auto")
    assert trainer.precision.name == "bf16"
    return trainer


def in_a_process(train: Callable[[], object]) -> int:
    """Train in a separate process; return its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            train()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    case = CASES["lm decoder, documents"]
    model = {**case.options["model"], "num_layers": 1, "dropout": 0.2}
    prepared = replace(case, options={**case.options, "model": model}).prepared(folder)
    prepared = replace(prepared, training={**prepared.training, **OPTIONS})
    with mock_cuda.plugged_in(Path(sys.argv[2])) if sys.argv[2:] else contextlib.nullcontext():
        assert in_a_process(lambda: resumed(prepared, folder / "whole").fit()) == 0
        ended = [
            in_a_process(lambda step=step: resumed(prepared, folder / "killed", KillAt(step)).fit())  # type: ignore[misc]
            for step in KILLED_AFTER
        ]
        last = resumed(prepared, folder / "killed")
        print(json.dumps({"ended": ended, "resumed_at": last.position.step}))
        last.fit()


if __name__ == "__main__":
    main()
