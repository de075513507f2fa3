"""The sessions of a run: each start of it that reached training, with the configuration and the environment it had.

RUN/sessions.jsonl has a line for each: its number, its first step, the number of the session that wrote the checkpoint
it resumed from (``after``), when, its environment, and the conditions that decide the bits of what it computes.
RUN/sessions/0001.yml is its configuration, resolved; RUN/config.yml and RUN/environment.json are the newest one's. No
environment variables are written: they hold secrets.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import vaak
from vaak.core.errors import UserError
from vaak.core.machine import commit, installed_versions
from vaak.core.secrets import hide_arguments
from vaak.core.storage import files
from vaak.core.storage.json_lines import read_json_lines
from vaak.engine.checkpoint.files import about_checkpoint
from vaak.engine.checkpoint.names import step_folder
from vaak.engine.metrics_file import json_line
from vaak.engine.trainer import Trainer
from vaak.runs.folder.directory import finish_fork
from vaak.runs.use import FORMATS, formats_to_record

log = logging.getLogger("vaak")
SESSIONS = "sessions.jsonl"
AFTER_ALL_STEPS = 1 << 62
"""A step that no run comes to."""


def begin_session(trainer: Trainer, configuration: str) -> None:
    """Write down that a session begins where the trainer stands; its checkpoints will name it.

    Raises UserError if it can't be written.
    """
    directory, position = trainer.directory, trainer.position
    try:
        # The checkpoint that was resumed may no longer be here.
        about = about_checkpoint(trainer.checkpoints / step_folder(position.step))
        known = _sessions(directory)
        if about and not known and (directory / "config.yml").exists():
            # Begun by a version that didn't record sessions: config.yml still has its first one.
            _write_configuration(directory, 1, (directory / "config.yml").read_text(encoding="utf-8"))
            known = {1: {"number": 1, "first_step": 1, "after": None}}
        number = max(known, default=0) + 1
        session = {
            "number": number,
            "first_step": position.step + 1,
            # A checkpoint from before there were sessions counts for the oldest one.
            "after": about.get("session", min(known, default=None)) if about else None,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        now = environment(trainer.ranks.device, trainer.ranks.world_size)
        now |= {FORMATS: formats_to_record(trainer.task)}
        _write_configuration(directory, number, configuration)
        write_current(directory, configuration, now)
        sessions = (known | {number: session | now | {"conditions": trainer.conditions()}}).values()
        finish_fork(directory, position.step)
        # Last, so that every session in the list has its configuration, whenever a kill comes.
        files.write_text(directory / SESSIONS, "".join(f"{json_line(one)}\n" for one in sessions))
    except OSError as error:
        raise UserError(f"{directory} can't be written: {error.strerror or error}") from error
    trainer.saving.writer.session = number


def write_current(directory: Path, configuration: str, now: dict[str, Any]) -> None:
    """Write what a run is now: its configuration and its environment."""
    files.write_text(directory / "config.yml", configuration)
    files.write_json(directory / "environment.json", now)


def find_step_configuration(directory: Path, step: int) -> Path:
    """Return the configuration under which a run took a step; config.yml where no session did."""
    for session in _find_step_sessions(directory, step, step):
        return find_session_configuration(directory, session["number"])
    return directory / "config.yml"


def list_run_sessions(directory: Path) -> list[dict[str, Any]]:
    """Return the sessions that lead to a run's newest state, oldest first."""
    return _find_step_sessions(directory, 1, AFTER_ALL_STEPS)[::-1]


def read_step_conditions(directory: Path, first: int, last: int) -> list[dict[str, Any] | None]:
    """The conditions of each session that took steps from ``first`` to ``last``; None if it didn't write them."""
    sessions = _find_step_sessions(directory, first, last)
    return [found if isinstance(found := one.get("conditions"), dict) else None for one in sessions] or [None]


def _find_step_sessions(directory: Path, first: int, last: int) -> list[dict[str, Any]]:
    """Return the sessions that took steps from ``first`` to ``last``, newest first.

    Of sessions that resumed at earlier checkpoints than others came to, only what leads to the newest counts.
    """
    known, found = _sessions(directory), []
    session = known.get(max(known, default=0))
    while session is not None:
        if session["first_step"] <= last:
            found.append(session)
        after = session["after"]
        # In a damaged file a session may come after itself or a later one, and this would never end.
        resumed = session["first_step"] > first and after is not None and after < session["number"]
        session = known.get(after) if resumed else None
    return found


def _sessions(directory: Path) -> dict[int, dict[str, Any]]:
    """Return the sessions by their numbers."""
    path = directory / SESSIONS
    found = read_json_lines(path).objects if path.exists() else []
    valid = [session for _, session in found if _is_session(session)]
    if len(valid) < len(found):
        log.warning("%s: %d lines aren't sessions: they are ignored", path, len(found) - len(valid))
    return {
        session["number"]: session
        for session in valid
        if find_session_configuration(directory, session["number"]).exists()
    }


def _is_session(found: dict[str, Any]) -> bool:
    after = found.get("after")
    return all(type(found.get(name)) is int for name in ("number", "first_step")) and type(after) in (int, type(None))


def _write_configuration(directory: Path, number: int, configuration: str) -> None:
    path = find_session_configuration(directory, number)
    path.parent.mkdir(exist_ok=True)
    files.write_text(path, configuration)


def find_session_configuration(directory: Path, number: int) -> Path:
    """Return the file with the configuration of a session."""
    return directory / "sessions" / f"{number:04d}.yml"


def environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return the environment of this process, as JSON."""
    return {
        "vaak": vaak.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": installed_versions(),
        "platform": platform.platform(),
        "processor": {"machine": platform.machine(), "cores": os.cpu_count(), "torch_threads": torch.get_num_threads()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
        "world_size": world_size,
        "command": hide_arguments(sys.argv),
        "folder": os.getcwd(),
    }
