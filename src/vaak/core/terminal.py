"""The one console that log lines and progress bars share, so that neither writes over the other."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import textwrap
import threading
from typing import Any

FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that make rich treat any output as a terminal."""

_shown: list[Any] = []
_displays: list[Any] = []
"""What draws all that is shown: one, while anything is."""
_changing = threading.Lock()


@functools.cache
def console() -> Any:
    """The console on standard error."""
    from rich.console import Console

    return Console(stderr=True)


def is_terminal() -> bool:
    """Whether the console is a terminal; rich is asked, and imported, only where it may be one."""
    may_be = (sys.stderr is not None and sys.stderr.isatty()) or any(name in os.environ for name in FORCING)
    return may_be and bool(console().is_terminal)


def print_above(text: str) -> None:
    """Print a text above what is drawn, all of it: lines that are too long are broken between words."""
    console().print(broken(text, console().width), markup=False, highlight=False, soft_wrap=True)


def broken(text: str, width: int) -> str:
    """The text in lines of at most ``width`` columns; a word that is longer, such as a path, stays whole.

    >>> broken("step 20/60  loss 5.6866\\n  see /a/long/path", 14).splitlines()
    ['step 20/60', 'loss 5.6866', '  see', '/a/long/path']
    """
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    lines = (wrapper.wrap(line) if len(line) > width else [line] for line in text.split("\n"))
    return "\n".join(part for parts in lines for part in parts)


def show(renderable: Any) -> None:
    """Keep something drawn below the lines that are printed, until it is hidden; the newest is the lowest."""
    from rich.console import Group
    from rich.live import Live

    with _changing:
        _shown.append(renderable)
        if not _displays:
            together, own = (lambda: Group(*_shown)), sys.stdout.isatty()  # standard output in a file stays there
            _displays.append(Live(console=console(), get_renderable=together, redirect_stdout=own, transient=True))
            _displays[0].start(refresh=True)


def hide(renderable: Any) -> None:
    """Draw it no longer."""
    with _changing:
        if renderable in _shown:
            _shown.remove(renderable)
        if _displays and not _shown:
            _displays.pop().stop()


def clear() -> None:
    """Draw nothing any more."""
    for renderable in tuple(_shown):
        hide(renderable)


def restore_cursor() -> None:
    """Show the cursor again where a process ends at once while something is drawn, which hides it."""
    if _displays:
        with contextlib.suppress(OSError):
            os.write(2, b"\x1b[?25h")
