"""A bar on a terminal that says how far work on a corpus is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(name: str, total: float, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """While this holds, a bar advances by what the function that it gives is called with; none without a terminal."""
    from rich import progress as parts
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda done: None
        return
    columns = (
        parts.TextColumn(name),
        parts.BarColumn(bar_width=24),
        parts.TaskProgressColumn(),
        parts.TimeElapsedColumn(),
        parts.TextColumn("left"),
        parts.TimeRemainingColumn(),
    )
    with parts.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)
