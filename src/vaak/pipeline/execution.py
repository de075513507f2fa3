"""One stage, from its folder to its manifest, in this process or a separate one; and when it is done.

STAGE/begun.json       what its results depend on: options, digests of the outputs that it reads, sources, code
STAGE/manifest.json    the same, with size and SHA-256 of every output, figures and times; written last: "done"

Done is a stage whose manifest is there, whose fingerprint is what it would be now, and whose outputs verify. Neither
file holds a path, so a copy of the folder is as good. A stage that is to run again with other options has its folder
moved to ``set-aside``, since it may have cost days.
"""

from __future__ import annotations

import errno
import gc
import inspect
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from vaak.config.base import from_options
from vaak.core.artifact import Artifact, damage_in, differences, list_sizes
from vaak.core.errors import UserError
from vaak.core.interrupts import end_with_parent
from vaak.core.machine import host_memory
from vaak.core.progress import progress, progress_allowed
from vaak.core.storage.files import hash_file, remove_temporary
from vaak.engine.interrupts import acknowledged, in_order
from vaak.pipeline.jobs import Jobs
from vaak.pipeline.stage import Options, Pipeline, Stage, StageWork
from vaak.runs.folder.logs import logging_to

MANIFEST, BEGUN = "manifest.json", "begun.json"
Parts = dict[str, Any]
"""Parts of what a stage's results depend on, by name."""


@dataclass(frozen=True)
class StageStatus:
    """The state of a stage.

    It is ``done``; or it ``continues`` in its folder, ``starts`` in an empty one, or ``repairs`` the damaged outputs;
    ``why`` gives the reason.
    """

    verdict: Literal["done", "continues", "starts", "repairs"]
    why: str
    manifest: Mapping[str, Any] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()


def collect_dependencies(stage: Stage, options: Options, digests: Mapping[str, str]) -> Parts:
    """Return the present inputs of a stage's results; ``digests`` are those of the stages that ran before."""
    source = inspect.getsourcefile(stage.make)
    values = options.model_dump(mode="json")
    parts = {
        "options": {
            **{name: values[name] for name in stage.options},
            **({} if stage.settings is None else stage.settings(options)),
        },
        "reads": {name: digests[name] for name in stage.after if name in digests},
        "sources": None if stage.sources is None else stage.sources(options),
        "code": {"source": None if source is None else hash_file(Path(source)), "version": stage.version},
    }
    # As it will be read from its file (tuples are lists there), so that comparing is exact.
    normal: Parts = json.loads(json.dumps(parts))
    return normal


def get_stage_status(stage: Stage, folder: Path, parts: Parts, forced: bool = False) -> StageStatus:
    """Return the state of a stage in its folder, given what its results depend on now; ``forced``, it starts again.

    Raises UserError if the folder is someone else's.
    """
    begun, manifest = (_marker(folder, name).find() for name in (BEGUN, MANIFEST))
    before = manifest or begun
    if before is None:
        if folder.exists() and any(path.name[0] != "." for path in folder.iterdir()):
            raise UserError(
                f"{folder} has no readable {BEGUN}, so it is not stage {stage.name}'s or is damaged: move it away, or "
                "give another --output-dir"
            )
        return StageStatus("starts", "has not run yet")
    if forced:
        return StageStatus("starts", "--from asks for it")
    if changed := "; ".join(_changes(before.get("parts", {}), parts)):
        return StageStatus("starts", changed)
    if manifest is None:
        return StageStatus("continues", "was cut")
    damage = dict(_damage(folder, manifest["outputs"]))
    if not damage:
        return StageStatus("done", "up to date", manifest)
    verdict: Literal["repairs", "starts"] = "repairs" if stage.repairs else "starts"
    return StageStatus(verdict, next(iter(damage.values())), damaged=tuple(damage))


def _marker(folder: Path, name: str) -> Artifact:
    """Return a stage's folder as an artifact: begun, or done."""
    return Artifact(folder, name, "outputs", keys={"parts": dict})


def _changes(before: Parts, now: Parts) -> Iterator[str]:
    """Yield what has changed, in words."""
    options = before.get("options", {})
    yield from differences({name: options[name] for name in now["options"] if name in options}, now["options"])
    read = before.get("reads", {})
    for name in sorted({*read, *now["reads"]}):
        if read.get(name) != now["reads"].get(name):
            yield f"the outputs of {name}, which it reads, have changed"
    was, sources = before.get("sources"), now["sources"]
    if isinstance(was, dict) and isinstance(sources, dict):
        yield from (f"{name} changed" for name in {**sources, **was} if was.get(name) != sources.get(name))
    elif was != sources:
        yield "the data it reads have changed"
    if before.get("code") != now["code"]:
        yield "its code has changed"


def outputs_in(stage: Stage, folder: Path) -> dict[str, list[Any]]:
    """Size and SHA-256 of every output. Raises UserError if the body didn't make one."""
    sizes = list_sizes(folder, leave_out={MANIFEST, BEGUN})
    found = {}
    for declared in stage.outputs:
        names = [name for name in sizes if name == declared or name.startswith(f"{declared}/")]
        if not names:
            raise UserError(f"stage {stage.name} has ended without its output {folder / declared}")
        found.update({name: sizes[name] for name in names})
    entries: dict[str, list[Any]] = {}
    with progress(f"checksums of {stage.name}", sum(found.values())) as advance:
        for name, size in found.items():
            entries[name] = [size, hash_file(folder / name)]
            advance(size)
    return entries


def _damage(folder: Path, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every output that differs from what was written, with the reason."""
    with progress(f"checking {folder.name}", sum(size for size, _ in outputs.values())) as advance:
        for name, (size, digest) in outputs.items():
            if problem := damage_in(folder, {name: size}):
                yield name, problem
            elif hash_file(folder / name) != digest:
                yield name, f"{folder / name}: the content of this file has changed (SHA-256)"
            advance(size)


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
    trust_code: bool = False
    trusts_runs: bool = False

    @property
    def folder(self) -> Path:
        return self.directory / self.stage


def make_ready(standing: StageStatus, job: Job) -> Path | None:
    """Make a stage's folder ready for its body; returns where its earlier content was moved to, if it was.

    One earlier content of each stage is kept, and never a finished one replaced by one that was cut.
    """
    backup, folder = job.directory / "set-aside" / job.stage, job.folder
    moved = None
    if standing.verdict == "starts" and folder.exists():
        if (folder / MANIFEST).exists() or not (backup / MANIFEST).exists():
            shutil.rmtree(backup, ignore_errors=True)
            backup.parent.mkdir(exist_ok=True)
            folder.rename(backup)
            moved = backup
        else:
            shutil.rmtree(folder)
    # The manifest goes last: should this be cut, it still tells what is damaged.
    for name in standing.damaged if standing.verdict == "repairs" else ():
        (folder / name).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporary(folder)
    if standing.verdict == "starts":
        _marker(folder, BEGUN).claim({"parts": job.parts})
    return moved


def run_body(pipeline: Pipeline, job: Job) -> None:
    """Run a stage's body in its folder, and write its manifest. Raises UserError if the disk is full."""
    stage, options = pipeline.stage(job.stage), from_options(pipeline.options, job.values, pipeline.name)
    memory, begun = host_memory(), time.monotonic()
    memory.reset_peak()
    try:
        with progress_allowed(job.shows_progress):
            metrics = stage.make(StageWork(job.folder, options, job.inputs, job.jobs, job.trust_code, job.trusts_runs))
            outputs = outputs_in(stage, job.folder)
        found = (path.stat() for path in job.folder.rglob("*") if path.is_file())
        # A file with several names (hard links) takes its space once.
        sizes = {(file.st_dev, file.st_ino): file.st_size for file in found}
        about = {
            "stage": stage.name,
            "parts": job.parts,
            "outputs": outputs,
            "figures": dict(metrics or {}),
            "seconds": round(time.monotonic() - begun, 3),
            "disk_bytes": sum(sizes.values()),
            "memory_bytes": memory.peak(),
            "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        _marker(job.folder, MANIFEST).finish(about, with_sizes=False)
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = error.filename or job.folder
        raise UserError(f"{where} can't be written: {error.strerror}; free some space, then add --resume") from error


def release_memory() -> None:
    """Give back what a stage has left in memory, on every device."""
    gc.collect()
    if "torch" in sys.modules:
        import torch

        from vaak.engine.memory import free_memory

        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            free_memory(torch.device(device))


def run_in_own_process(find: Callable[[], Pipeline], stage: Stage, job: Job) -> None:
    """Run a stage's body in a new process, which ends with this one; ``find`` gives the pipeline there.

    Raises UserError as the body does and if the process was killed, SystemExit where it failed by a bug.
    """
    # A forked child would inherit threads and a CUDA context that don't work in it.
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(find, job, its), name=stage.name)
    process.start()
    # Only the child has that end open now, so recv meets an end of file if it is killed before it sends.
    its.close()
    with in_order():
        # A stage that trains saves before it ends.
        try:
            process.join()
        except KeyboardInterrupt:
            # It is in its own process group, so that a terminal's Ctrl-C doesn't reach it a second time.
            if process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
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


def _child(find: Callable[[], Pipeline], job: Job, connection: Connection) -> None:
    """Run a stage's body in its own process, which ends with it."""
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
