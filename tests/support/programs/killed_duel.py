"""A toy run with two objectives, killed again and again: a program that forks a trainer, which kills itself somewhere.

    python killed_duel.py FOLDER KILLS

Without a word it leaves FOLDER/whole, never disturbed, and FOLDER/killed, killed KILLS times and resumed each time. On
standard output: the places where it was killed, a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import all_rooms  # noqa: F401 # before those that it finds
from toy_duel import DuelTask
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.training import TrainingConfig
from vaak.engine.trainer import Trainer

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "epochs": 60,
    "optimizer": {"lr": 0.02},
    "scheduler": {"type": "plateau", "patience": 1, "factor": 0.8},
    "ema": {"decay": 0.9},
    "validation": {"interval": 15},
    "checkpoint": {"interval": 5, "save_total_limit": 2},
    "memory": {"rehearsal": False},
}


def train(folder: Path, after: float | None = None) -> None:
    """Train to the end; killed by the system ``after`` some seconds of training."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(DuelTask(), TrainingConfig(**OPTIONS), folder, [StepLogCallback(3)])
    trainer.resume("auto")
    if after is not None:
        threading.Thread(target=_kill, args=(after,), daemon=True).start()
    trainer.fit()


def _kill(after: float) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(folder: Path, after: float | None = None) -> bool:
    """Train in a separate process; return whether it came to the end."""
    child = os.fork()
    if child == 0:
        try:
            train(folder, after)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def main() -> None:
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    begun = time.monotonic()
    assert in_a_process(folder / "whole")
    whole = time.monotonic() - begun
    rng, killed = random.Random(7), 0
    steps = []
    while killed < kills:
        if in_a_process(folder / "killed", rng.uniform(0.0, 2.5 * whole / kills)):
            break
        killed += 1
        found = sorted(path.name for path in (folder / "killed" / "checkpoints").glob("step-*"))
        steps.append(found[-1] if found else "none")
    in_a_process(folder / "killed")
    print(json.dumps({"kills": killed, "newest": steps}))


if __name__ == "__main__":
    main()
