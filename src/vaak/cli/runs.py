"""``vaak runs``: the runs of a folder: their state, their best metric, and how to resume those that ended early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.config import AsJson

if TYPE_CHECKING:
    from vaak.runs.folder.listing import RunSummary

HEADER = ("run", "state", "step", "checkpoint", "best", "time")


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder to list.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs with state, step, best metric and time, newest first, and the command that resumes each.

    Example: vaak runs runs
    """
    from vaak.runs.folder.listing import list_runs

    found = list_runs(folder)
    if as_json:
        print(json.dumps([run.as_json() for run in found], ensure_ascii=False))
        return
    if not found:
        print(f"no runs in {folder}")
        return
    rows = [HEADER, *(_row(run) for run in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for run in found:
        for damage in run.damaged:
            print(f"{run.name}: {damage}")
        if run.go_on is not None:
            why = f" ({run.reason})" if run.reason else ""
            print(f"{run.name}: {run.state}{why}; resume from step {run.checkpoint} with: {run.go_on}")


def _row(run: RunSummary) -> tuple[str, ...]:
    steps = f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)
    checkpoint = "-" if run.checkpoint is None else str(run.checkpoint)
    minutes, seconds = divmod(round(run.seconds), 60)
    return run.name, run.state, steps, checkpoint, run.best, f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
