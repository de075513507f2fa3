"""The console that log lines and progress share, so that neither writes over the other; the progress of work.

Work that takes more than two seconds shows a bar on a terminal, elsewhere a line every 30 seconds. A thread shows it,
so that it moves while the work is in a library. One of these is shown at a time: ::

    reading train        ━━━━━━━━━━╸             45 %  0:12 elapsed  0:15 left
    training the tokenizer  0:12 elapsed

Text from elsewhere (texts, labels, file names, options) may hold characters that a terminal obeys: they rename its
window, fill its clipboard, erase lines. Such characters are shown, as ``\\u001b``, and never sent: ``shown_safely``
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
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from itertools import zip_longest
from typing import Any, TypeVar

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
    """The text with its control characters written as JSON writes them. Joiners of scripts and emoji stay.

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


@contextlib.contextmanager
def shown_safely() -> Iterator[None]:
    """Within this context, nothing that is printed controls the terminal.

    Standard output to a file or another program stays unchanged.
    """
    streams = sys.stdout, sys.stderr
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = SafeStream(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = SafeStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


class TellingStream:
    """A stream for progress output: once it can't be written any more, its text is dropped and the work continues.

    This is reported once, on standard error and in the run's log.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self._going_on():
            self.stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._going_on():
            self.stream.flush()

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())  # for what is still to be flushed
            if isinstance(error, OSError):
                log.warning("standard output can't be written (%s): the work continues without it", error.strerror)


@contextlib.contextmanager
def telling(*names: str) -> Iterator[None]:
    """Within this context, streams (stdout, stderr) only report on work with results elsewhere: printing never ends it.

    Text that ``shown_safely`` made safe stays so.
    """
    streams = {name: getattr(sys, name) for name in names}
    inner = [(one, one.stream) for one in streams.values() if isinstance(one, SafeStream)]
    # wrapped within, not around, so that text still passes through the safe stream first
    for safe, stream in inner:
        safe.stream = TellingStream(stream)
    for name, stream in streams.items():
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, TellingStream(stream))
    try:
        yield
    finally:
        for name, stream in streams.items():
            if stream is not None:
                getattr(sys, name).flush()
            setattr(sys, name, stream)
        for safe, stream in inner:
            safe.stream = stream


@functools.cache
def console() -> Any:
    """The console on standard error, which shows text verbatim: no markup, no control characters."""
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


class ConsoleHandler(logging.Handler):
    """Prints messages above the progress bar; warnings are marked as such.

    A message that says ``on_console`` False is shown there in another way.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not getattr(record, "on_console", True):
                return
            prefix = "warning: " if record.levelno == logging.WARNING else ""
            message = escape(hide_secrets(prefix + record.getMessage()))
            if is_terminal():
                print_above(message)
            else:
                print(message, file=sys.stderr, flush=True)
        except (OSError, ValueError):  # a terminal that was closed, a full disk: nothing ends by what can't be shown
            return
        except Exception:
            self.handleError(record)


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
            streams = sys.stdout, sys.stderr
            with contextlib.suppress(OSError, ValueError):
                _displays[0].start(refresh=True)
            _print_safely_above(streams)


def _print_safely_above(before: tuple[Any, Any]) -> None:
    """What is printed while something is drawn is escaped before rich, which obeys colours and links, has it."""
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


Item = TypeVar("Item")
PATIENCE_SECONDS = 2.0
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


def followed(items: Iterable[Item], name: str, total: float | None = None) -> Generator[Item]:
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
    if ended.wait(PATIENCE_SECONDS):
        return
    if is_terminal():
        show(work)
        ended.wait()
        hide(work)
        return
    while not ended.wait(LINE_SECONDS):
        with contextlib.suppress(OSError, ValueError):
            print("  ".join((work.name, *work.figures())), file=sys.stderr, flush=True)


def format_time(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> format_time(75), format_time(7384.6)
    ('1:15', '2:03:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
