"""The runs of a folder: how each stands, read from its files alone, and removing those that never trained.

Listing writes nothing, so the disk may be read-only. A start that never trained is one with an error in the data, or
a Ctrl-C before the first step.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vaak.config.trust import CODE, find_owning_run
from vaak.core.artifact import LOCK
from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.core.storage.links import LinkError, require_own_files
from vaak.core.storage.lock import is_locked
from vaak.engine.checkpoint.names import parse_step
from vaak.engine.metrics_file import METRICS_FILE, Totals, read_totals
from vaak.runs.folder.directory import (
    OWNER,
    PREPROCESSED,
    RUN,
    command_to_go_on,
    configurations_below,
    holds_a_run,
    is_being_written,
    read_identity,
    read_status,
    require_own_run,
    the_only_writer,
)

log = logging.getLogger("vaak")
RUN_STATES = ("finished", "stopped", "failed")
EVERY_STATE = ("running", *RUN_STATES, "crashed", "prepared", "not begun")
RESUMABLE = ("stopped", "failed", "crashed")


@dataclass(frozen=True)
class RunSummary:
    """The state of a run and its metrics. ``state`` is one of

    - ``running``: a process holds its lock
    - ``finished``, ``stopped`` (asked to) or ``failed`` (an error): it came to an end, for this ``reason``
    - ``crashed``: it was started, and ended without a status (it was killed, or the machine was)
    - ``prepared``: its data were prepared on purpose, and training hasn't begun
    - ``not begun``: it never reached its first step

    ``task`` and ``parameters`` (None: unknown) are the model's; ``trained`` says whether it took a step or has a
    checkpoint, even a damaged one; ``date`` is when it was last written. ``best_value`` is the number in ``best``,
    and ``best_mode`` min or max.

    ``id`` is what its directory says that it is, ``parent`` the run that it is a fork of (id, directory, step).
    ``checkpoint`` is the step of its newest complete checkpoint; ``go_on`` the command that resumes there, None if
    nothing can be resumed; ``damaged`` says what is wrong with incomplete checkpoints.
    """

    name: str
    task: str
    parameters: int | None
    trained: bool
    state: str
    reason: str
    step: int
    total_steps: int | None
    checkpoint: int | None
    best: str
    best_value: float | None
    best_mode: str
    seconds: float
    go_on: str | None
    damaged: tuple[str, ...]
    id: str | None
    parent: dict[str, Any] | None
    changed: float

    def as_json(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name != "changed"}
        return values | {"date": datetime.fromtimestamp(self.changed).astimezone().isoformat(timespec="seconds")}

    @property
    def date(self) -> str:
        """When it was last written, to the minute."""
        return f"{datetime.fromtimestamp(self.changed):%Y-%m-%d %H:%M}"


def list_runs(folder: Path) -> list[RunSummary]:
    """Return a summary of each run below ``folder``, the one last written first; unreadable runs are omitted.

    Raises UserError if it is a file.
    """
    configs = [config.relative_to(folder) for config in configurations_below(folder)]
    runs = [folder / config.parent for config in configs if "wandb" not in config.parts]
    return sorted((summarize(run, folder) for run in filter(_is_readable, runs)), key=lambda run: -run.changed)


def _is_readable(run: Path) -> bool:
    """Return whether the files that a listing reads are in the run itself; warn where they aren't."""
    try:
        require_own_run(run, deep=False)
        require_own_files(run / "checkpoints")
    except LinkError as error:
        log.warning("%s", error)
        return False
    return True


def summarize(run: Path, folder: Path) -> RunSummary:
    """Return a summary of one run, named by its path below ``folder``; of ``folder`` itself, by its own name."""
    try:
        totals = read_totals(run)
    except (OSError, ValueError) as error:
        # One damaged run mustn't hide the others of its folder.
        files.warn_unread(run / METRICS_FILE, error)
        totals = Totals()
    status = read_status(run)
    state = _state(run, status)
    total_steps, reason = status.get("total_steps"), status.get("reason")
    whole, damaged = _checkpoints(run)
    best, identity = _best(whole), read_identity(run)
    return RunSummary(
        name=str(run.relative_to(folder)) if run != folder else run.resolve().name,
        task=_task(run),
        parameters=totals.parameters,
        trained=_has_trained(run),
        state=state,
        reason=reason.partition("\n")[0] if state in RUN_STATES and isinstance(reason, str) else "",
        # A checkpoint may be of a later step than the last record: only every N-th step is logged.
        step=max([totals.step, *whole]),
        total_steps=total_steps if isinstance(total_steps, int) else None,
        checkpoint=max(whole, default=None),
        best="-" if best["value"] is None else f"{best['metric']} {best['value']:.4f}",
        best_value=best["value"],
        best_mode=best.get("mode", "min"),
        seconds=totals.seconds,
        go_on=command_to_go_on(run) if whole and state in RESUMABLE else None,
        damaged=tuple(damaged),
        id=identity.get("id"),
        parent=identity.get("parent"),
        changed=_last_change(run),
    )


def _state(run: Path, status: dict[str, Any]) -> str:
    if is_being_written(run):
        return "running"
    if status.get("state") in RUN_STATES:
        return str(status["state"])
    if _has_trained(run):
        return "crashed"
    return "prepared" if (run / PREPROCESSED).exists() else "not begun"


def _has_trained(run: Path) -> bool:
    """Return whether training has begun, or may have: its checkpoints may not be looked into."""
    try:
        return holds_a_run(run)
    except OSError:
        return True


def _task(run: Path) -> str:
    """Return the task that the run's configuration names."""
    path = run / "config.yml"
    if not path.is_file():
        # Reading a pipe would wait for ever.
        return "-"
    try:
        found = re.search(r"^task: *(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError) as error:
        files.warn_unread(path, error)
        return "-"
    return found[1] if found else "-"


def _checkpoints(run: Path) -> tuple[dict[int, Path], list[str]]:
    """Return the whole checkpoints by their steps, and what is wrong with the others."""
    whole: dict[int, Path] = {}
    damaged = []
    for path in sorted((run / "checkpoints").glob("step-*")):
        step, problem = parse_step(path), next(_damage(path), None)
        if step is not None and problem is not None:
            damaged.append(f"{path.name} is damaged: {problem}")
        elif step is not None:
            whole[step] = path
    return whole, damaged


def _damage(path: Path) -> Iterator[str]:
    """Yield a checkpoint's damage by the sizes of its files; a resume compares their hashes, too."""
    try:
        listed = {
            # A manifest is data, too: a name that leads out of the checkpoint is damage, not a file to look at.
            files.inside(name): int(file["bytes"])
            for name, file in files.read_json(path / "MANIFEST.json")["files"].items()
        }
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        yield "its MANIFEST.json can't be read"
        return
    for name, size in listed.items():
        try:
            found = (path / name).stat().st_size
        except OSError:
            yield f"{name} is missing"
        else:
            if found != size:
                yield f"{name} has {found} bytes of {size}"


def _best(whole: dict[int, Path]) -> dict[str, Any]:
    """Return the best metric with its value and mode, as the newest whole checkpoint knows it.

    Where there was an evaluation at its step, that is included.
    """
    for name in ("completed.json", "state.json") if whole else ():
        try:
            content = files.read_json(whole[max(whole)] / name)
            best = content.get("state", content)["best"]
            value = None if best["value"] is None else float(best["value"])
            return {"metric": str(best["metric"]), "value": value, "mode": str(best.get("mode", "min"))}
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            missing = f"it lacks {error}" if isinstance(error, KeyError) else error
            files.warn_unread(whole[max(whole)] / name, missing)
    return {"value": None}


def _last_change(run: Path) -> float:
    """When the run was last written, in seconds since 1970."""
    changes = []
    for name in ("metrics.jsonl", "config.yml"):
        with contextlib.suppress(OSError):
            changes.append((run / name).stat().st_mtime)
    return max(changes, default=0.0)


OF_A_START = {
    *(RUN, LOCK, CODE, "config.yml", "environment.json", "sessions.jsonl", "sessions", "status.json", "train.log"),
    *("checkpoints", "prepared", "tensorboard", "report.html"),
}
"""Names of files that a start may leave. A directory with anything else is not removed."""


def never_trained(folder: Path) -> list[Path]:
    """Return the directories of runs below ``folder`` that have no checkpoint, whole or not, no step, and no process.

    Raises UserError if it is a file.
    """
    runs = (config.parent for config in configurations_below(folder) if find_owning_run(config) is not None)
    unlocked = (run for run in runs if not is_being_written(run) and not is_locked(run / "checkpoints" / LOCK))
    return sorted(run for run in unlocked if _has_only_what_starts_leave(run))


def remove_start(run: Path) -> bool:
    """Remove a directory, unless a run has begun in it meanwhile; return whether it is gone.

    Raises UserError if it can't be removed.
    """
    try:
        with contextlib.suppress(UserError), the_only_writer(run):
            if _has_only_what_starts_leave(run):
                shutil.rmtree(run)
    except OSError as error:
        raise UserError(f"{run} can't be removed: {error.strerror or error}; check its permissions") from error
    return not run.exists()


def _has_only_what_starts_leave(run: Path) -> bool:
    """Return whether nothing in a directory was made by training, or by anyone else."""
    try:
        checkpoints = run / "checkpoints"
        kept = {path.name for path in checkpoints.iterdir()} if checkpoints.is_dir() else set()
        return not run.is_symlink() and {path.name for path in run.iterdir()} <= OF_A_START and kept <= {OWNER, LOCK}
    except OSError:
        # What can't be looked into stays.
        return False
