"""A progress bar on a terminal, for work on a corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(name: str, total: float, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """Within this context, a bar advances by what the yielded function is called with; no bar without a terminal."""
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
