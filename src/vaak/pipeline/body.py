"""One stage, from its folder to its manifest: in this process or a separate one."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vaak.config.base import from_options
from vaak.core.child_processes import end_with_parent
from vaak.core.errors import UserError
from vaak.core.interrupts import acknowledged, in_order
from vaak.core.progress import progress_allowed
from vaak.core.storage.files import write_json
from vaak.engine.memory.host import host_memory
from vaak.pipeline.jobs import Jobs
from vaak.pipeline.manifest import BEGUN, MANIFEST, Parts, Standing, outputs_in
from vaak.pipeline.stage import Pipeline, Stage, Work
from vaak.runs.folder.logs import logging_to

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Job:
    """A stage to be run: its name, its pipeline's directory, the values of all options, and its inputs' folders."""

    stage: str
    directory: Path
    values: dict[str, Any]
    inputs: Mapping[str, Path]
    jobs: Jobs
    parts: Parts
    log_file: Path
    shows_progress: bool

    @property
    def folder(self) -> Path:
        return self.directory / self.stage


def make_ready(standing: Standing, job: Job) -> Path | None:
    """Make a stage's folder ready for its body; returns where its earlier content was moved to, if it was.

    One earlier content of each stage is kept, and never a finished one replaced by one that was cut.
    """
    aside, folder = job.directory / "set-aside" / job.stage, job.folder
    moved = None
    if standing.verdict == "starts" and folder.exists():
        if (folder / MANIFEST).exists() or not (aside / MANIFEST).exists():
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            moved = aside
        else:
            shutil.rmtree(folder)
    for name in (
        standing.damaged if standing.verdict == "repairs" else ()
    ):  # the manifest last: it tells what is damaged
        (folder / name).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.rglob(".*.tmp"):  # half-written by a process that was killed
        if path.is_file():
            path.unlink()
    if standing.verdict == "starts":
        write_json(folder / BEGUN, {"parts": job.parts})
    return moved


def run_body(pipeline: Pipeline, job: Job) -> None:
    """Run a stage's body in its folder, and write its manifest. Raises UserError where the disk is full."""
    stage, options = pipeline.stage(job.stage), from_options(pipeline.options, job.values, pipeline.name)
    memory, begun = host_memory(), time.monotonic()
    memory.reset_peak()
    try:
        with progress_allowed(job.shows_progress):
            figures = stage.make(Work(job.folder, options, job.inputs, job.jobs))
            outputs = outputs_in(stage, job.folder)
        about = {
            "stage": stage.name,
            "parts": job.parts,
            "outputs": outputs,
            "figures": dict(figures or {}),
            "seconds": round(time.monotonic() - begun, 3),
            "disk_bytes": _disk_bytes(job.folder),
            "memory_bytes": memory.peak(),
            "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        write_json(job.folder / MANIFEST, about)
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = error.filename or job.folder
        raise UserError(f"{where} can't be written: {error.strerror}; free some space, then add --resume") from error


def _disk_bytes(folder: Path) -> int:
    """The bytes of the files below a folder; a file with several names counts once."""
    files = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum({(about.st_dev, about.st_ino): about.st_size for about in files}.values())


def release_memory() -> None:
    """Give back what a stage has left in memory, on every device."""
    gc.collect()
    if "torch" in sys.modules:
        import torch

        from vaak.engine.memory.device import free_memory

        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            free_memory(torch.device(device))


def run_in_own_process(find: Callable[[], Pipeline], stage: Stage, job: Job) -> None:
    """Run a stage's body in a new process, which ends with this one; ``find`` gives the pipeline there.

    Raises UserError as the body does and where the process was killed, SystemExit where it failed by a bug.
    """
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(find, job, its), name=stage.name)
    process.start()
    its.close()
    with in_order():  # a stage that trains saves before it ends
        try:
            process.join()
        except KeyboardInterrupt:
            _pass_on(process.pid)
            process.join()
            raise
    if process.exitcode == 0:
        return
    try:
        raise UserError(mine.recv())
    except EOFError:
        pass
    if process.exitcode and process.exitcode < 0:
        number = signal.Signals(-process.exitcode).name
        raise UserError(
            f"the process of stage {stage.name} was killed ({number}), often because memory ran out; add --resume"
        )
    raise SystemExit(1)


def _pass_on(pid: int | None) -> None:
    """Interrupt the child, which has its own process group, so that a terminal doesn't do so as well."""
    if pid is not None:
        os.kill(pid, signal.SIGINT)


def _child(find: Callable[[], Pipeline], job: Job, connection: Connection) -> None:
    """What the process of a stage does."""
    os.setpgrp()
    if sys.platform == "linux":
        end_with_parent()
    try:
        with acknowledged(says=False), logging_to(job.directory, 0, name=str(job.log_file)):
            run_body(find(), job)
    except UserError as error:
        connection.send(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
