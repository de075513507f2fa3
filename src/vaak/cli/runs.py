"""``vaak runs``: the runs of a folder, how they stand and how good they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import AsJson


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs with state, step, best metric and time, the one last written first.

    Example: vaak runs runs
    """
    from vaak.runs.listing import list_runs

    found = list_runs(folder)
    if as_json:
        print(json.dumps([run.as_json() for run in found], ensure_ascii=False))
        return
    if not found:
        print(f"no runs in {folder}")
        return
    rows = [("run", "state", "step", "best", "time")]
    for run in found:
        steps = f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)
        minutes, seconds = divmod(round(run.seconds), 60)
        rows.append((run.name, run.state, steps, run.best, f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
