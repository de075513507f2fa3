"""The runs of a folder, read from their files alone."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.core import files
from vaak.engine.records import read_records
from vaak.runs.directory import is_being_written, read_status

STATES = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class RunSummary:
    """One line of the list."""

    name: str
    state: str
    step: int
    total_steps: int | None
    best: str
    seconds: float
    changed: float

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "changed"}


def list_runs(folder: Path) -> list[RunSummary]:
    """A summary of each run below ``folder``, the one last written first; what can't be read of a run is left out."""
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
    total_steps = status.get("total_steps")
    return RunSummary(
        name=str(run.relative_to(folder)) if run != folder else run.resolve().name,
        state=_state(run, status),
        step=max(steps),
        total_steps=total_steps if isinstance(total_steps, int) else None,
        best=_best(run),
        seconds=math.fsum(seconds),
        changed=_last_change(run),
    )


def _records(run: Path) -> list[dict[str, Any]]:
    try:
        return read_records(run / "metrics.jsonl")
    except (OSError, ValueError):
        return []


def _state(run: Path, status: dict[str, Any]) -> str:
    """running, finished, stopped (asked to), failed (an error), crashed (killed), or not begun."""
    if is_being_written(run):
        return "running"
    if status.get("state") in STATES:
        return str(status["state"])
    return "crashed" if (run / "metrics.jsonl").exists() else "not begun"


def _best(run: Path) -> str:
    """The best metric that the newest checkpoint knows."""
    checkpoints = sorted((run / "checkpoints").glob("step-*/state.json"))
    try:
        best = files.read_json(checkpoints[-1])["best"]
        return "-" if best["value"] is None else f"{best['metric']} {best['value']:.4f}"
    except (IndexError, OSError, ValueError, KeyError, TypeError):
        return "-"


def _last_change(run: Path) -> float:
    """When the run was last written, in seconds since 1970."""
    changes = []
    for name in ("metrics.jsonl", "config.yml"):
        with contextlib.suppress(OSError):
            changes.append((run / name).stat().st_mtime)
    return max(changes, default=0.0)
