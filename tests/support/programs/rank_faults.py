"""Processes that train together, one of which runs something else, is slow, or is killed at a certain moment."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import vaak
from processes import LEAVING_SECONDS
from tiny_runs import loaded
from vaak.core.errors import RemoteError, UserError
from vaak.engine import precision
from vaak.engine.callback import Callback
from vaak.engine.distributed import ranks
from vaak.engine.distributed.sharding import Gathering
from vaak.runs import start
from vaak.tasks.lm.task import LanguageModelTask

TRAINING = ("training.gradient_accumulation_steps=3", "training.max_steps=4", "training.validation.interval=2")


@dataclass(frozen=True)
class Fault:
    """What is wrong with one rank: other options, version, processor, folder or data; slow; killed."""

    rank: int
    overrides: tuple[str, ...] = ()
    version: str = ""
    has_no_bf16: bool = False
    """Alone of both."""
    folder: str = ""
    data: str = ""
    slow_seconds: float = 0.0
    signalled_in: str = ""
    full_after: int = 0
    """The step of a checkpoint after which no file may grow any more."""
    killed_in: str = ""
    """``prepare``, ``model``, ``losses``, ``meters``, ``write`` (of the second divided checkpoint, a step later), or an
    event of callbacks."""


def train_together(rank: int, port: int, folder: Path, fault: Fault, *overrides: str) -> None:
    """Train the tiny job of ``folder`` on two ranks; output goes to RANK.json, and it exits as a command does."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {name: str(place) for name, place in places.items()}
    torch.set_num_threads(1)
    mine = fault.rank == rank
    given = [*TRAINING, *overrides, *(fault.overrides if mine else ())]
    if mine and fault.version:
        vaak.__version__ = fault.version
    if fault.has_no_bf16:
        vars(precision)["has_fast_bf16"] = lambda: not mine
    if mine and fault.killed_in == "write":
        end_in_the_middle_of_writing()
    os.chdir(folder)
    if fault.folder:
        ranks.SLOW_RANK_SECONDS = 1.0  # for a file system that is slow, where this one has no such file
    if mine and fault.folder:
        (folder / fault.folder).mkdir()
        os.chdir(folder / fault.folder)
    begun, said, code = time.monotonic(), "", 0
    with contextlib.redirect_stderr(sys.stdout):
        try:
            job = loaded(folder, Path("run"), *given)
            task = FaultyTask(job.experiment, job.experiment.run_dir, job.folder)
            task.fault = fault if mine else Fault(rank)
            task.slow_seconds = fault.slow_seconds
            start.train(job, (Ending(fault.killed_in if mine else "", fault.full_after if mine else 0),), task=task)
        except UserError as error:
            said, code = "" if isinstance(error, RemoteError) else str(error), 2
    (folder / f"{rank}.json").write_text(json.dumps({"said": said, "seconds": time.monotonic() - begun}))
    sys.stdout.flush()
    os._exit(code)


def end_at(moment: str, wanted: str) -> None:
    if moment == wanted:
        time.sleep(LEAVING_SECONDS)  # the others are waiting by then
        os.kill(os.getpid(), signal.SIGKILL)


def end_in_the_middle_of_writing() -> None:
    chunks, calls = Gathering.chunks, itertools.count(1)

    def some(self: Gathering, tensors: Sequence[Any]) -> Iterator[torch.Tensor]:
        if next(calls) != 2:
            yield from chunks(self, tensors)
            return
        yield from chunks(self, tensors[:5])
        while Ending.steps < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Gathering, "chunks", some)  # noqa: B010 (mypy refuses the assignment)


class Ending(Callback):
    """Is killed in an event; counts the steps, for what must not happen before them."""

    steps = 0

    def __init__(self, event: str, full_after: int = 0) -> None:
        self.event, self.full_after = event, full_after

    def on_fit_start(self, *_: Any) -> None:
        end_at("on_fit_start", self.event)

    def on_step_end(self, *_: Any) -> None:
        Ending.steps += 1
        end_at("on_step_end", self.event)

    def on_evaluate_end(self, *_: Any) -> None:
        end_at("on_evaluate_end", self.event)

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        if int(path.name.removeprefix("step-")) == self.full_after:
            weights = (path / "model.safetensors").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (weights, resource.RLIM_INFINITY))  # moments take twice as much
        end_at("on_checkpoint", self.event)


class FaultyTask(LanguageModelTask):
    """The tiny language model with a fault."""

    fault = Fault(0)
    slow_seconds = 0.0

    def prepare(self) -> None:
        time.sleep(self.slow_seconds)
        end_at("prepare", self.fault.killed_in)
        super().prepare()

    def model(self) -> Any:
        end_at("model", self.fault.killed_in)
        model = super().model()
        if self.fault.data == "other weights":
            with torch.no_grad():
                next(model.parameters()).add_(1e-6)
        return model

    def losses(self, *arguments: Any) -> Any:
        end_at("losses", self.fault.killed_in)
        return super().losses(*arguments)

    def meters(self, split: str) -> Any:
        if self.fault.signalled_in == "meters" and Ending.steps:
            os.kill(os.getpid(), signal.SIGTERM)
        end_at("meters", self.fault.killed_in)
        return super().meters(split)

    def dataset(self, split: str) -> Any:
        dataset = super().dataset(split)
        if self.fault.data == "other":
            dataset.fingerprint = "of other files"
        return dataset
