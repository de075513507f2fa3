"""Logging of a run: on the console, and with time and rank in RUN/train.log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from vaak.core.terminal import ConsoleHandler

log = logging.getLogger("vaak")


class JsonHandler(logging.Handler):
    """Prints messages as lines of JSON on standard output, where the records are, too."""

    def __init__(self, level: int, rank: int) -> None:
        from vaak.callbacks.console import log as console_log
        from vaak.callbacks.console import print_line  # its package imports torch

        super().__init__(level)
        self.print_line = print_line
        self.rank = {"rank": rank} if rank else {}
        self.addFilter(lambda record: record.name != console_log.name)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # a reader that went away: train.log has everything
            message = {"level": record.levelname.lower(), "text": record.getMessage()}
            self.print_line({"kind": "message", **message, **self.rank})


@contextlib.contextmanager
def logging_to(
    directory: Path, rank: int, json_lines: bool = False, name: str = "train.log", mode: str = "a"
) -> Iterator[None]:
    """Send messages to the console (on ranks other than the first, only warnings) and to a file.

    The file is ``name`` in ``directory``, opened with ``mode``; ``rank`` is on its lines. With ``json_lines`` the
    console gets JSON. Within a context that sends them to the console already, this sends them to the file alone.
    """
    least = logging.INFO if rank == 0 else logging.WARNING
    handlers: list[logging.Handler] = [logging.FileHandler(directory / name, mode, encoding="utf-8")]
    handlers[0].setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(message)s"))
    if not any(isinstance(handler, ConsoleHandler) for handler in log.handlers):
        handlers.append(JsonHandler(least, rank) if json_lines else ConsoleHandler(least))
    level, propagate = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(level)
        log.propagate = propagate
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
