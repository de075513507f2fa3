"""Removes the directories of starts that never trained: an error in the data, a Ctrl-C before the first step."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from vaak.config.resolve.named_code import CODE
from vaak.config.resolve.run_files import run_of_configuration
from vaak.core.errors import UserError
from vaak.core.storage.lock import is_locked
from vaak.runs.folder.directory import LOCK, configurations_below, is_being_written, the_only_writer
from vaak.runs.folder.owner import OWNER, RUN

OF_A_START = {
    *(RUN, LOCK, CODE, "config.yml", "environment.json", "sessions.jsonl", "sessions", "status.json", "train.log"),
    *("checkpoints", "prepared", "tensorboard"),
}
"""What a start may leave. A directory with anything else is not removed."""


def never_trained(folder: Path) -> list[Path]:
    """The directories of runs below ``folder`` that have no checkpoint, whole or not, no step, and no process.

    Raises UserError where it is a file.
    """
    configs = (config for config in configurations_below(folder) if run_of_configuration(config) is not None)
    return sorted(run for run in (config.parent for config in configs) if _is_left_by_a_start(run))


def remove_start(run: Path) -> bool:
    """Remove a directory, unless it has come to life; return whether it is gone.

    Raises UserError where it can't be removed.
    """
    try:
        with contextlib.suppress(UserError), the_only_writer(run):
            if _has_only_what_starts_leave(run):
                shutil.rmtree(run)
    except OSError as error:
        raise UserError(f"{run} can't be removed: {error.strerror or error}; check its permissions") from error
    return not run.exists()


def _is_left_by_a_start(run: Path) -> bool:
    if is_being_written(run) or is_locked(run / "checkpoints" / LOCK):
        return False
    return _has_only_what_starts_leave(run)


def _has_only_what_starts_leave(run: Path) -> bool:
    """Whether nothing in a directory was made by training, or by anyone else."""
    try:
        checkpoints = run / "checkpoints"
        kept = {path.name for path in checkpoints.iterdir()} if checkpoints.is_dir() else set()
        return not run.is_symlink() and {path.name for path in run.iterdir()} <= OF_A_START and kept <= {OWNER, LOCK}
    except OSError:  # what can't be looked into stays
        return False
