"""A progress bar on a terminal: steps, rate, time gone and left, the last logged loss, the learning rate."""

from __future__ import annotations

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
from rich.text import Text

from vaak.callbacks.console.terminal import console


class Rate(ProgressColumn):
    """Steps a second, averaged over the last ones; none if the clock was set back meanwhile."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed and task.speed > 0 else "- steps/s")


def start_progress(step: int, total_steps: int) -> Progress:
    """A running bar whose task 0 is the run; for a console that is a terminal."""
    progress = Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]}  lr {task.fields[learning_rate]}"),
        console=console(),
        transient=True,
    )
    progress.add_task("train", total=total_steps, completed=step, loss="-", learning_rate="-")
    progress.start()
    return progress
