"""A progress bar on a terminal: epoch, steps, live loss, rates, time elapsed and left, last and best evaluation.

A separate module, since rich is imported only where there is a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
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

from vaak.core.console import console, show

WIDE, WIDEST = 78, 140
"""Columns from which the bar's first line has more to show."""


class Bar(Progress):
    """The bar, and a second line for values that don't fit the first."""

    def __init__(self, first: list[ProgressColumn], second: list[str]) -> None:
        """``first`` are the columns of the first line; ``second`` names figures, the most wanted first."""
        self.second = second
        super().__init__(*first, console=console(), transient=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.tasks and self.second:
            metrics = {**self.tasks[0].fields, "speed": _speed(self.tasks[0])}
            yield Text(_fitting([metrics[name] for name in self.second], console().width), no_wrap=True)


class Speed(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text(_speed(task))


def start_progress(step: int, total_steps: int, evaluated: str = "") -> Progress:
    """A running bar whose task 0 is the run, for a console that is a terminal: on a narrow one it has two lines."""
    # A word is left out at the edge, never broken.
    width, whole = console().width, Column(no_wrap=True)
    shown: list[ProgressColumn] = [MofNCompleteColumn(table_column=whole)]
    shown += [TextColumn("loss {task.fields[loss]}", markup=False, table_column=whole)]
    shown += [TimeRemainingColumn(table_column=whole), TextColumn("left", markup=False, table_column=whole)]
    if width >= WIDE:
        shown = [TextColumn("{task.fields[epoch]}", markup=False, table_column=whole), *shown]
        shown += [TimeElapsedColumn(table_column=whole), TextColumn("elapsed", markup=False, table_column=whole)]
        shown += [TextColumn("{task.fields[rate]}", markup=False, table_column=whole)]
    if width >= WIDEST:
        shown = [BarColumn(bar_width=16), *shown, Speed(table_column=whole)]
        shown += [
            TextColumn(f"{{task.fields[{name}]}}", markup=False, table_column=whole) for name in ("evaluated", "memory")
        ]
    second = ["evaluated", "memory", "speed"] if width >= WIDE else ["evaluated", "epoch", "rate", "memory", "speed"]
    progress = Bar(shown, second if width < WIDEST else [])
    fields: dict[str, Any] = {"loss": "-", "rate": "", "epoch": "epoch 1", "memory": "", "evaluated": evaluated}
    progress.add_task("train", total=total_steps, completed=step, **fields)
    show(progress)
    return progress


def _speed(task: Task) -> str:
    """Steps a second, averaged over the last ones; none if the clock was set back meanwhile."""
    return f"{task.speed:.1f} steps/s" if task.speed and task.speed > 0 else "- steps/s"


def _fitting(metrics: list[str], width: int) -> str:
    """Join as many metrics as fit in a line.

    >>> _fitting(["val_loss 5.31", "", "0.5 GiB", "3.1 steps/s"], 24)
    'val_loss 5.31  0.5 GiB'
    """
    line = ""
    for metric in filter(None, metrics):
        longer = f"{line}  {metric}" if line else metric
        line = longer if len(longer) <= width else line
    return line
