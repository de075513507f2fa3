"""The progress of work that takes more than two seconds: a bar on a terminal, elsewhere a line every 30 seconds.

A thread shows it, so that it moves while the work is in a library. One of these is shown at a time: ::

    reading train        ━━━━━━━━━━╸             45 %  0:12 elapsed  0:15 left
    training the tokenizer  0:12 elapsed
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from vaak.core.console import console, format_time, hide, is_terminal, show

Item = TypeVar("Item")
QUIET_SECONDS = 2.0
LINE_SECONDS = 30.0
"""How often a line is printed when the output is not a terminal."""
WIDE = 70
"""Columns from which a bar is drawn next to the figures."""
_allowed: ContextVar[bool] = ContextVar("progress", default=True)


@contextlib.contextmanager
def progress_allowed(allowed: bool) -> Iterator[None]:
    """Within this context, progress is shown or not."""
    token = _allowed.set(allowed and _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


@contextlib.contextmanager
def progress(
    name: str, total: float | None = None, shown: bool = True, already: float = 0.0
) -> Iterator[Callable[[float], None]]:
    """Within this context, progress advances by what the yielded function is called with.

    Without a ``total``, only the time and how much is done are known. ``already`` was done before. One process of
    several shows it.
    """
    work = ProgressTask(name, total, already)
    if not (shown and _allowed.get()) or os.environ.get("RANK", "0") != "0":
        yield work.advance
        return
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(work, ended), daemon=True, name="progress")
    thread.start()
    try:
        yield work.advance
    finally:
        ended.set()
        thread.join()


def track(items: Iterable[Item], name: str, total: float | None = None) -> Generator[Item]:
    """Return the same items; progress advances by one when the next is asked for."""
    with progress(name, total) as advance:
        for item in items:
            yield item
            advance(1)


class ProgressTask:
    """How far some work is."""

    def __init__(self, name: str, total: float | None, already: float = 0.0) -> None:
        self.name, self.total, self.already = name, total, already
        self.done, self.begun = already, time.monotonic()

    def advance(self, done: float) -> None:
        self.done += done

    def figures(self) -> list[str]:
        """Return percent, time elapsed and time left, where known."""
        elapsed, now = time.monotonic() - self.begun, self.done - self.already
        said = [f"{format_time(elapsed)} elapsed"]
        if self.total:
            said.insert(0, f"{min(100 * self.done / self.total, 100):.0f} %")
            if now > 0:
                said.append(f"{format_time(max(elapsed * (self.total - self.done) / now, 0))} left")
        elif self.done:
            said.insert(0, f"{self.done:,.0f}")
        return said

    def __rich__(self) -> Any:
        """Rich draws this."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        cells: list[Any] = [Text(self.name), *map(Text, self.figures())]
        if self.total and console().width >= WIDE:
            cells.insert(1, ProgressBar(total=self.total, completed=self.done, width=24))
        table = Table.grid(padding=(0, 2))
        for _ in cells:
            table.add_column(no_wrap=True)
        table.add_row(*cells)
        return table


def _follow(work: ProgressTask, ended: threading.Event) -> None:
    """Show work until it has ended; nothing of what is done sooner than that."""
    if ended.wait(QUIET_SECONDS):
        return
    if is_terminal():
        show(work)
        ended.wait()
        hide(work)
        return
    while not ended.wait(LINE_SECONDS):
        with contextlib.suppress(OSError, ValueError):
            print("  ".join((work.name, *work.figures())), file=sys.stderr, flush=True)
