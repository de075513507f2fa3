"""The process of tests/process/test_endurance.py: takes very many steps and notes the resources held in between."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from pathlib import Path
from typing import Any

from toy import ToyDataset, ToyTask, toy_trainer
from vaak.callbacks.console import ConsoleCallback
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiler import InterbatchProfiler
from vaak.callbacks.step_log import StepLogCallback, SystemMetricsCallback
from vaak.callbacks.trackers import TensorBoardCallback
from vaak.engine.callback import Callback
from vaak.runs.folder.logs import logging_to

EVERY = 50


class ForgetfulTask(ToyTask):
    """A task whose data remember only the last read, so that they don't grow."""

    def dataset(self, split: str) -> ToyDataset:
        dataset = super().dataset(split)
        dataset.reads = deque(maxlen=1)  # type: ignore[assignment]
        return dataset


class Holdings(Callback):
    """Notes what the process holds, ten times on the way: MB of memory, and the files that it has open."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, float, list[str]]] = []

    def on_step_end(self, trainer: Any, report: Any) -> None:
        if report.step % (trainer.total_steps // 10) == 0:
            trainer.saving.writer.wait()  # the files of a checkpoint in flight aren't a leak
            self.noted.append((report.step, megabytes(), open_files()))


def megabytes() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def open_files() -> list[str]:
    """Return the targets of this process's file descriptors, sorted."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the listing's own
            continue
    return sorted(found)


def take_very_many_steps(folder: Path, steps: int) -> None:
    """Train the toy task into ``folder``/run with all that watches by default and more; write ``folder``/held.json."""
    logging.lastResort = None
    holdings = Holdings()
    watching = [StepLogCallback(EVERY), ConsoleCallback(False), TensorBoardCallback(), SystemMetricsCallback(EVERY)]
    trainer = toy_trainer(
        folder / "run",
        *(*watching, AdaptiveMemoryManager(), InterbatchProfiler(EVERY), holdings),
        task=ForgetfulTask(num_examples=400),
        max_steps=steps,
        gradient_accumulation_steps=1,
        ema={"decay": 0.99},
        validation={"interval": steps // 20, "interval_epochs": None},
        checkpoint={"interval": steps // 40, "interval_epochs": None, "save_total_limit": 2},
    )
    with logging_to(folder / "run", rank=1):
        trainer.fit()
    (folder / "held.json").write_text(json.dumps(holdings.noted))
