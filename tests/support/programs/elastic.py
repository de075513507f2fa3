"""A toy run on processes that come and go: a program that forks them, for tests/process/test_elastic.py.

    python elastic.py FOLDER float|exact STOP:PROCESSES ...

FOLDER/run is trained up to each STOP in turn, on the given number of processes. FOLDER/draws-RANK.jsonl has a line per
microbatch that a rank computed: its examples, their tensors after augmentation, the generator that dropout draws from,
the loss.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import all_rooms  # noqa: F401 # before those that it finds
from toy import ToyTask, toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.engine.callback import Callback
from vaak.engine.distributed.ranks import start_ranks

MICROBATCHES = 8
TRAINING: dict[str, Any] = {
    "batch_size": 2,
    "gradient_accumulation_steps": MICROBATCHES,
    "epochs": 2,
    "gradient_clipping": {"norm": 0.5},
    "ema": {"decay": 0.9},
    "memory": {"rehearsal": False},
    "validation": {"interval": 5},
}


class Recording(ToyTask):
    """Writes down what each microbatch was computed from."""

    step = 0
    path = Path()

    def losses(self, model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        generator = digest(torch.default_generator.get_state())
        terms = super().losses(model, batch)
        seen = {"step": self.step, "indices": batch.indices, "inputs": digest(batch["inputs"]), "generator": generator}
        with open(self.path, "a") as file:
            file.write(json.dumps({**seen, "loss": float(terms["main"].total)}) + "\n")
        return terms


class StopAt(Callback):
    """Stops the run at a step, and tells the task which is the next."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_fit_start(self, trainer: Any) -> None:
        trainer.task.step = trainer.position.step + 1

    def on_step_end(self, trainer: Any, report: Any) -> None:
        trainer.task.step = report.step + 1
        if report.step == self.step:
            trainer.request_stop("others continue")


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def train(run: Path, stop: int, reduction: str) -> None:
    """Train one rank to step ``stop``, resuming from the last checkpoint."""
    ranks = start_ranks(TrainingConfig(device="cpu", gradient_accumulation_steps=MICROBATCHES))
    dtype = torch.float64 if reduction == "float" else torch.float32
    task = Recording(num_examples=200, noise=0.3, dropout=0.2, dtype=dtype)
    task.path = run.with_name(f"draws-{ranks.rank}.jsonl")
    how = {**TRAINING, "distributed": {"reduction": reduction}}
    trainer = toy_trainer(run, StepLogCallback(1), StopAt(stop), task=task, ranks=ranks, **how)
    trainer.resume("auto")
    trainer.fit()
    ranks.close()


def forked(world_size: int, work: Callable[[], None]) -> list[int]:
    """Do ``work`` on a number of processes, forked from this one, which needn't import anything; return their ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
                os.environ |= {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
                work()
                status = 0
            except BaseException as error:
                print(f"rank {rank} of {world_size}: {error!r}", file=sys.stderr, flush=True)
            os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, reduction, *stages = Path(sys.argv[1]), *sys.argv[2:]
    for stage in stages:
        step, processes = map(int, stage.split(":"))
        statuses = forked(processes, partial(train, folder / "run", step, reduction))
        assert statuses == [0] * processes, statuses
