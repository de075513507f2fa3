"""The run directory: where a run keeps everything, and its one writer.

RUN/config.yml  environment.json  train.log  metrics.jsonl  status.json  checkpoints/  tensorboard/  prepared/
    pictures/  what evaluations have to show, if they have anything        tuned.yml  left by vaak tune
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core import files
from vaak.core.errors import UserError
from vaak.core.lock import is_locked, locked

LOCK = ".lock"
CODE = "code"
"""Where users' own classes are copied to."""
ASKING_SECONDS = 0.5  # who lists runs holds the lock for a moment, too


def make_directory(path: Path, checkpoints: Path | None) -> None:
    """Make a run directory; with ``checkpoints``, its checkpoints lie there and RUN/checkpoints points to them.

    Raises UserError where it can't be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        link = path / "checkpoints"
        if checkpoints is None:
            link.mkdir(exist_ok=True)
        else:
            checkpoints.mkdir(parents=True, exist_ok=True)
            if link.is_dir() and not link.is_symlink() and not any(link.iterdir()):
                link.rmdir()
            if not link.exists():
                link.symlink_to(checkpoints.resolve(), target_is_directory=True)
        if link.resolve() != (checkpoints or link).resolve():
            raise UserError(
                f"{link} is not {checkpoints}, which training.checkpoint.save_dir asks for; move one of them"
            )
        for folder in (path, link.resolve()):
            _demand_writable(folder)
    except OSError as error:
        if checkpoints is not None and Path(str(error.filename)).resolve().is_relative_to(checkpoints.resolve()):
            raise UserError(
                f"checkpoints can't be written to {checkpoints}: {error.strerror}; give another "
                "training.checkpoint.save_dir"
            ) from error
        raise UserError(f"the run directory {path} can't be made: {error.strerror}; give another run_dir=") from error


def _demand_writable(folder: Path) -> None:
    """Raises OSError where nothing can be written to a folder."""
    if not os.access(folder, os.W_OK):
        read_only = hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY
        reason = errno.EROFS if read_only else errno.EACCES
        raise OSError(reason, os.strerror(reason), str(folder))


def holds_a_run(path: Path) -> bool:
    """Whether training has begun here; a directory left by a run that failed before its first step doesn't count."""
    checkpoints = path / "checkpoints"
    has_checkpoint = checkpoints.is_dir() and any(entry.name.startswith("step-") for entry in checkpoints.iterdir())
    return has_checkpoint or (path / "metrics.jsonl").exists()


@contextlib.contextmanager
def the_only_writer(path: Path) -> Iterator[None]:
    """Hold the run directory's lock. Raises UserError where another process has it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path / LOCK, patience=ASKING_SECONDS))
        except BlockingIOError as error:
            raise UserError(
                f"{path} is being written by another process; wait for it, or give another run_dir="
            ) from error
        yield


def is_being_written(path: Path) -> bool:
    """Whether a process holds the run directory's lock, this one included."""
    return is_locked(path / LOCK)


def command_to_go_on(path: Path) -> str:
    """The command with which a run goes on from its newest checkpoint, be it moved since it was begun."""
    moved = "" if _said_to_be_at(path) == path.resolve() else f" {shlex.quote(f'run_dir={path}')}"
    trust = " --trust-code" if (path / CODE).is_dir() else ""
    return f"vaak train {shlex.quote(str(path))}/config.yml{moved} --resume auto{trust}"


def _said_to_be_at(path: Path) -> Path | None:
    """The run directory that the run's configuration names, seen from here."""
    try:
        named = re.search(r"^run_dir: (.+)$", (path / "config.yml").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return Path(named[1].strip("\"'")).resolve() if named else None


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Say how the run stands, for those who list runs."""
    files.write_json(path / "status.json", status)


def read_status(path: Path) -> dict[str, Any]:
    """What ``write_status`` said; empty where the run never came to an end of any kind."""
    try:
        status = files.read_json(path / "status.json")
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
