"""The console that log lines and progress share, so that neither writes over the other; text that controls nothing.

Text from elsewhere (texts, labels, file names, options) may hold characters that a terminal obeys: they rename its
window, fill its clipboard, erase lines. Such characters are shown, as ``\\u001b``, and never sent: ``SafeStream``
handles the output of a command, and ``escape`` each line of a log.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from vaak.core.secrets import hide_secrets

FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that make rich treat any output as a terminal."""
_shown: list[Any] = []
_displays: list[Any] = []
"""The display of all that is shown: one, while anything is."""
_changing = threading.Lock()


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys: C0 (but tab and newline), DEL, C1; that reorder a line; and lone surrogates."""
log = logging.getLogger("vaak")
DRAWING = re.compile("\x1b\\[[0-9;]*[mAK]|\r")
"""Colours, and what moves within the lines of a bar: other packages draw with them."""
OURS = {"vaak", "logging", "traceback", "typer", "warnings"}
"""The packages whose printing holds others' texts, and never draws."""


def escape(text: str) -> str:
    """Return the text with its control characters written as JSON writes them. Joiners of scripts and emoji stay.

    >>> escape("a\\x1b]0;title\\x07\\tb\\u202e")
    'a\\\\u001b]0;title\\\\u0007\\tb\\\\u202e'
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class SafeStream:
    """A stream of text that shows control characters; rich draws on the stream itself.

    Of what other packages print, colours and movements within a line pass.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        text = hide_secrets(text) if isinstance(text, str) else text
        if isinstance(text, str) and CONTROL.search(text):
            package = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            drawn = [] if package in OURS else DRAWING.findall(text)
            parts = [text] if package in OURS else DRAWING.split(text)
            self.stream.write("".join(escape(part) + sign for part, sign in zip_longest(parts, drawn, fillvalue="")))
            return len(text)
        return int(self.stream.write(text) or 0)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.stream.write(escape(hide_secrets(line)))


@functools.cache
def console() -> Any:
    """Yield the console on standard error, which shows text verbatim: no markup, no control characters."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        @property
        def file(self) -> Any:
            found: Any = super().file
            # while a bar is shown, rich replaces sys.stderr by a proxy that prints to this console: without this, a
            # line would go around in circles
            while (inner := getattr(found, "rich_proxied_file", None)) is not None:
                found = inner
            return found

        @file.setter
        def file(self, stream: Any) -> None:
            self._file = stream

        def render(self, *what: Any, **how: Any) -> Iterator[Segment]:
            for one in super().render(*what, **how):
                yield one if one.control or not CONTROL.search(one.text) else Segment(escape(one.text), one.style)

    return SafeConsole(stderr=True, markup=False, highlight=False)


def is_terminal() -> bool:
    """Return whether the console is a terminal; rich is asked, and imported, only where it may be one."""
    may_be = (sys.stderr is not None and sys.stderr.isatty()) or any(name in os.environ for name in FORCING)
    return may_be and bool(console().is_terminal)


def print_above(text: str) -> None:
    """Print a text above what is drawn, all of it: lines that are too long are broken between words."""
    console().print(broken(escape(text), console().width), markup=False, highlight=False, soft_wrap=True)


def broken(text: str, width: int) -> str:
    """Return the text in lines of at most ``width`` columns; a word that is longer, such as a path, stays whole.

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
            # Standard output in a file stays there.
            together, own = (lambda: Group(*_shown)), sys.stdout.isatty()
            _displays.append(Live(console=console(), get_renderable=together, redirect_stdout=own, transient=True))
            streams = sys.stdout, sys.stderr
            with contextlib.suppress(OSError, ValueError):
                _displays[0].start(refresh=True)
            _print_safely_above(streams)


def _print_safely_above(before: tuple[Any, Any]) -> None:
    """Escape output printed above a drawing before it reaches rich, which obeys colours and links."""
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        if isinstance(stream, SafeStream) and getattr(sys, name) is not stream:
            setattr(sys, name, SafeStream(getattr(sys, name)))


def hide(renderable: Any) -> None:
    """Draw it no longer."""
    with _changing:
        if renderable in _shown:
            _shown.remove(renderable)
        if _displays and not _shown:
            with contextlib.suppress(OSError, ValueError):
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


def format_time(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> format_time(75), format_time(7384.6)
    ('1:15', '2:03:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
