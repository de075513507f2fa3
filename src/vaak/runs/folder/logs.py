"""Logging of a run: on the console, and with time and rank in RUN/train.log."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from vaak.core.console import escape, is_terminal, print_above
from vaak.core.secrets import hide_secrets
from vaak.core.storage.files import not_flushed, open_new, open_to_append

log = logging.getLogger("vaak")


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
        except (OSError, ValueError):
            # A terminal that was closed, a full disk: nothing ends by what can't be shown.
            return
        except Exception:
            self.handleError(record)


class FileOfRun(logging.FileHandler):
    """Writes messages to a run's file; where it can't (a full disk), it warns once, and the run continues."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        error = sys.exception()
        if not self.failed:
            self.failed = True
            reason = getattr(error, "strerror", None) or error
            log.warning("%s can't be written (%s): lines of the log are missing there", self.baseFilename, reason)


class JsonHandler(logging.Handler):
    """Prints messages as lines of JSON on standard output, where the records are, too."""

    def __init__(self, level: int, rank: int) -> None:
        from vaak.callbacks.console import log as console_log

        # Its package imports torch.
        from vaak.callbacks.console import print_line

        super().__init__(level)
        self.print_line = print_line
        self.rank = {"rank": rank} if rank else {}
        self.addFilter(lambda record: record.name != console_log.name)

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "on_console", True):
            return
        with contextlib.suppress(OSError, ValueError):
            # A reader that went away: train.log has everything.
            message = {"level": record.levelname.lower(), "text": hide_secrets(record.getMessage())}
            self.print_line({"kind": "message", **message, **self.rank})


class SafeFormatter(logging.Formatter):
    """Lines of a file that one looks at on a terminal: control characters of others' texts are shown."""

    def format(self, record: logging.LogRecord) -> str:
        return escape(hide_secrets(super().format(record)))


class OwnFileOfRun(FileOfRun):
    """A file of messages, which is one of the run's own: never a link, a pipe or a device."""

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        stream = open_new(path) if self.mode == "w" else open_to_append(path)
        return TextIOWrapper(stream, self.encoding, self.errors)


@contextlib.contextmanager
def logging_to(
    directory: Path, rank: int, json_lines: bool = False, name: str = "train.log", mode: str = "a"
) -> Iterator[None]:
    """Send messages to the console (on ranks other than the first, only warnings) and to a file.

    The file is ``name`` in ``directory``, opened with ``mode``; ``rank`` is on its lines. With ``json_lines`` the
    console gets JSON. Within a context that sends them to the console already, this sends them to the file alone.
    """
    least = logging.INFO if rank == 0 else logging.WARNING
    # A user may log to a pipe.
    kind = FileOfRun if Path(name).is_absolute() else OwnFileOfRun
    handlers: list[logging.Handler] = [kind(directory / name, mode, encoding="utf-8", errors="backslashreplace")]
    handlers[0].setFormatter(SafeFormatter(f"%(asctime)s rank {rank} %(levelname)s %(message)s"))
    if not any(isinstance(handler, ConsoleHandler) for handler in log.handlers):
        handlers.append(JsonHandler(least, rank) if json_lines else ConsoleHandler(least))
    level, propagate = log.level, log.propagate
    log.setLevel(logging.INFO)
    # The root logger's handlers would show every line a second time.
    log.propagate = False
    for handler in handlers:
        log.addHandler(handler)
    for line in not_flushed.values():
        # Said on the console before this run had a file.
        log.warning("%s", line, extra={"on_console": False})
    try:
        yield
    finally:
        log.setLevel(level)
        log.propagate = propagate
        for handler in handlers:
            log.removeHandler(handler)
            with contextlib.suppress(OSError):
                # What a full disk didn't take.
                handler.close()
