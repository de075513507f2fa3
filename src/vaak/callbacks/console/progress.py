"""A progress bar on a terminal: epoch, steps, live loss, rates, time elapsed and left, last and best evaluation."""

from __future__ import annotations

from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from vaak.core.terminal import console, show

WIDE, WIDEST = 78, 140
"""Columns from which the bar has more to show."""


class Rate(ProgressColumn):
    """Steps a second, averaged over the last ones; none if the clock was set back meanwhile."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed and task.speed > 0 else "- steps/s")


def start_progress(step: int, total_steps: int, evaluated: str = "") -> Progress:
    """A running bar whose task 0 is the run; for a console that is a terminal, where a narrow one shows less."""
    whole = Column(no_wrap=True)  # a word is left out at the edge, never broken
    shown: list[ProgressColumn] = [MofNCompleteColumn(table_column=whole)]
    shown += [TextColumn("loss {task.fields[loss]}", table_column=whole)]
    shown += [TimeRemainingColumn(table_column=whole), TextColumn("left", table_column=whole)]
    if console().width >= WIDE:
        shown = [TextColumn("{task.fields[epoch]}", table_column=whole), *shown]
        shown += [TimeElapsedColumn(table_column=whole), TextColumn("elapsed", table_column=whole)]
        shown += [TextColumn("lr {task.fields[rate]}", table_column=whole)]
    if console().width >= WIDEST:
        shown = [BarColumn(bar_width=16), *shown, Rate(table_column=whole)]
        shown += [TextColumn(f"{{task.fields[{name}]}}", table_column=whole) for name in ("evaluated", "memory")]
    progress = Progress(*shown, console=console(), transient=True)
    fields: dict[str, Any] = {"loss": "-", "rate": "-", "epoch": "epoch 1", "memory": "", "evaluated": evaluated}
    progress.add_task("train", total=total_steps, completed=step, **fields)
    show(progress)
    return progress
