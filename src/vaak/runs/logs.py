"""What a run says: on the console, and with time and rank in RUN/train.log."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from vaak.callbacks.terminal import console

log = logging.getLogger("vaak")


class ConsoleHandler(logging.Handler):
    """Prints messages above the progress bar; warnings say that they are."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            prefix = "warning: " if record.levelno == logging.WARNING else ""
            if console().is_terminal:
                console().print(prefix + record.getMessage(), markup=False, highlight=False)
            else:
                print(prefix + record.getMessage(), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def logging_to(directory: Path, rank: int) -> Iterator[None]:
    """While this holds, messages go to the console (of other ranks than the first, warnings alone) and to train.log."""
    handlers: list[logging.Handler] = [ConsoleHandler(logging.INFO if rank == 0 else logging.WARNING)]
    handlers.append(logging.FileHandler(directory / "train.log", encoding="utf-8"))
    handlers[1].setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(message)s"))
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
