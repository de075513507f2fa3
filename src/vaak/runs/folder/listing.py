"""The runs of a folder, read from their files alone; nothing is written, so the disk may be read-only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.core.storage import files
from vaak.engine.checkpoint.names import step_of
from vaak.engine.records.metrics_file import read_records
from vaak.runs.folder.directory import command_to_go_on, holds_a_run, is_being_written, read_status

STATES = ("finished", "stopped", "failed")
RESUMABLE = ("stopped", "failed", "crashed")


@dataclass(frozen=True)
class RunSummary:
    """How a run stands. ``state`` is one of

    - ``running``: a process holds its lock
    - ``finished``, ``stopped`` (asked to) or ``failed`` (an error): it came to an end, for this ``reason``
    - ``crashed``: it was started, and ended without a status (it was killed, or the machine was)
    - ``not begun``: it never reached its first step

    ``checkpoint`` is the step of its newest complete checkpoint; ``go_on`` the command that resumes there, None where
    nothing can be resumed; ``damaged`` says what is wrong with incomplete checkpoints.
    """

    name: str
    state: str
    reason: str
    step: int
    total_steps: int | None
    checkpoint: int | None
    best: str
    seconds: float
    go_on: str | None
    damaged: tuple[str, ...]
    changed: float

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "changed"}


def list_runs(folder: Path) -> list[RunSummary]:
    """A summary of each run below ``folder``, the one last written first; what can't be read is omitted."""
    configs = [config.relative_to(folder) for config in folder.glob("**/config.yml") if config.is_file()]
    runs = [folder / config.parent for config in configs if "wandb" not in config.parts]
    return sorted((_summary(run, folder) for run in runs), key=lambda run: -run.changed)


def _summary(run: Path, folder: Path) -> RunSummary:
    steps, seconds = [0], [0.0]
    for record in _records(run):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            steps.append(int(record["step"]))
            if record["kind"] == "step":
                seconds.append(float(record["clock"]["seconds"]))
    status = read_status(run)
    state = _state(run, status)
    total_steps, reason = status.get("total_steps"), status.get("reason")
    whole, damaged = _checkpoints(run)
    return RunSummary(
        name=str(run.relative_to(folder)) if run != folder else run.resolve().name,
        state=state,
        reason=reason.partition("\n")[0] if state in STATES and isinstance(reason, str) else "",
        step=max([*steps, *whole]),
        total_steps=total_steps if isinstance(total_steps, int) else None,
        checkpoint=max(whole, default=None),
        best=_best(whole),
        seconds=math.fsum(seconds),
        go_on=command_to_go_on(run) if whole and state in RESUMABLE else None,
        damaged=tuple(damaged),
        changed=_last_change(run),
    )


def _records(run: Path) -> list[dict[str, Any]]:
    try:
        return read_records(run / "metrics.jsonl")
    except (OSError, ValueError):
        return []


def _state(run: Path, status: dict[str, Any]) -> str:
    if is_being_written(run):
        return "running"
    if status.get("state") in STATES:
        return str(status["state"])
    try:
        return "crashed" if holds_a_run(run) else "not begun"
    except OSError:  # its checkpoints may not be looked into
        return "crashed"


def _checkpoints(run: Path) -> tuple[dict[int, Path], list[str]]:
    """The whole checkpoints by their steps, and what is wrong with the others."""
    whole: dict[int, Path] = {}
    damaged = []
    for path in sorted((run / "checkpoints").glob("step-*")):
        step, problem = step_of(path), next(_damage(path), None)
        if step is not None and problem is not None:
            damaged.append(f"{path.name} is damaged: {problem}")
        elif step is not None:
            whole[step] = path
    return whole, damaged


def _damage(path: Path) -> Iterator[str]:
    """What is wrong with a checkpoint as far as the sizes of its files tell; a resume compares their hashes, too."""
    try:
        listed = {Path(name).name: int(file["bytes"]) for name, file in _manifest(path)["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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


def _manifest(path: Path) -> Any:
    return files.read_json(path / "MANIFEST.json")


def _best(whole: dict[int, Path]) -> str:
    """The best metric that the newest whole checkpoint knows, after the evaluation at its step where there was one."""
    for name in ("completed.json", "state.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = files.read_json(whole[max(whole)] / name)
            best = content.get("state", content)["best"]
            return "-" if best["value"] is None else f"{best['metric']} {best['value']:.4f}"
    return "-"


def _last_change(run: Path) -> float:
    """When the run was last written, in seconds since 1970."""
    changes = []
    for name in ("metrics.jsonl", "config.yml"):
        with contextlib.suppress(OSError):
            changes.append((run / name).stat().st_mtime)
    return max(changes, default=0.0)
