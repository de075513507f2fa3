"""A case of the contract on processes that are killed and continued by others: a program that forks.

    python exact_cases.py FOLDER CASE '["RUN", ["STOP:PROCESSES[:STRATEGY]", ...], {"OPTION": ...}]' ...

FOLDER/RUN is trained on the given number of processes up to each STOP in turn, where the system kills all of them, and
to its end by the last; with exact sums, unless options of ``training`` say otherwise. With MOCK_CUDA, the library of
the mock device, each process has such a GPU, and FOLDER/RUN/waits-RANK.json says how often each step waited for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp  # once, rather than by each process that divides a model

import all_rooms  # noqa: F401 # before those that it finds
import mock_cuda
from commands import Commands
from contract_cases import CASES
from elastic import forked
from vaak.callbacks.step_log import StepLogCallback
from vaak.engine.callback import Callback, StepReport
from vaak.engine.training_data import StepData
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


WITHOUT_DROPOUT = ", without dropout"
"""At the end of a case's name: torch's compiler draws other numbers for it."""


class KillAt(Callback):
    """The system kills the process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == self.step:
            trainer.ranks.wait()
            os.kill(os.getpid(), signal.SIGKILL)


def train(case: Case, run: Path, stop: int, options: dict[str, Any], gpu: mock_cuda.MockDevice | None) -> None:
    """Train one rank until it is killed after step ``stop``, resuming from the last checkpoint."""
    if gpu is not None:
        os.environ["LOCAL_RANK"] = "0"  # each has a machine for itself
    trainer = case.trainer(run, StepLogCallback(1), KillAt(stop), **TRAINING | options)
    trainer.resume("auto")
    take_step, waits = trainer.take_step, list[list[str]]()

    def counted(data: StepData) -> StepReport:
        before = len(gpu.waits()) if gpu else 0
        report = take_step(data)
        waits.append([str(one) for one in gpu.waits()[before:]] if gpu else [])
        return report

    setattr(trainer, "take_step", counted)  # noqa: B010 (mypy refuses the assignment)
    trainer.fit()
    (run / f"waits-{trainer.ranks.rank}.json").write_text(json.dumps(waits))
    trainer.ranks.close()


def trained(
    commands: Commands,
    folder: Path,
    case: str,
    library: Path | None = None,
    **runs: tuple[tuple[str, ...], dict[str, Any]],
) -> list[Path]:
    """Run this program; return the runs' folders. Each run has its stages and options; ``library`` is a mock GPU's."""
    wanted = (json.dumps([name, *how]) for name, how in runs.items())
    environment = {"MOCK_CUDA": str(library or "")}
    done = commands.start([folder, case, *wanted], folder, environment, script=Path(__file__)).wait(600)
    assert done.status == 0, done.errors[-3000:]
    return [folder / name for name in runs]


def main() -> None:
    torch.set_num_threads(1)
    folder, name, *runs = Path(sys.argv[1]), *sys.argv[2:]
    chosen = CASES[name.removesuffix(WITHOUT_DROPOUT)]
    if name.endswith(WITHOUT_DROPOUT):
        chosen = replace(chosen, options=chosen.options | {"model": chosen.options["model"] | {"dropout": 0.0}})
    case, mock = chosen.prepared(folder), os.environ.get("MOCK_CUDA")
    with mock_cuda.plugged_in(Path(mock)) if mock else contextlib.nullcontext() as gpu:
        for run, stages, options in map(json.loads, runs):
            for stage in stages:
                stop, processes, *strategy = stage.split(":")
                stop, processes = int(stop), int(processes)
                how = options | ({"distributed": {"strategy": strategy[0]}} if strategy else {})
                killed = stop < TRAINING["max_steps"]
                work = partial(train, case, folder / run, stop if killed else 0, how, gpu)
                statuses = forked(processes, work)
                assert statuses == [-signal.SIGKILL if killed else 0] * processes, (run, stage, statuses)


if __name__ == "__main__":
    main()
