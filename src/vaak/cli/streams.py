"""The streams of a command: output can't control the terminal, and an error in printing never ends other work."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from vaak.core.console import SafeStream

log = logging.getLogger("vaak")


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
                # What is still to be flushed goes nowhere.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
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
