"""Waiting for a batch ends after a signal: a run isn't deaf to SIGTERM because what reads its data doesn't answer.

Network storage that is gone, or a process that is stopped, can keep a reader for ever. A signal asks the run to stop
after its step, which such a wait would never let it reach.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

from vaak.core.errors import UserError

SLOW_LOADING_SECONDS = 10.0
"""How long a batch may take after a signal: clusters kill 30 seconds after theirs."""
AGAIN_SECONDS = 1.0
"""How long the main thread has to end a wait before it is told again."""
_since: list[float] = []
"""When the main thread began to wait for a batch, if it does."""


class _OverdueError(BaseException):
    """Ends a wait; not an Exception, as code that reads data may take every one of these for a bad example."""


@contextlib.contextmanager
def waited_for() -> Iterator[None]:
    """Within this context, a batch is waited for. Raises UserError if it doesn't come in time after a signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _since.append(time.monotonic())
    try:
        yield
    except _OverdueError as error:
        raise UserError(
            f"no batch came within {SLOW_LOADING_SECONDS:.0f} s after {error}: what reads the data doesn't answer; the "
            "step reached is saved; check the storage, then resume with --resume auto"
        ) from error
    finally:
        _since.pop()


class WaitLimit:
    """Within this context, waits for a batch that last too long after ``limit`` was called for a signal end."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._overdue: str | None = None
        self._watched = False

    def __enter__(self) -> WaitLimit:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def limit(self, number: int) -> None:
        """Begin to watch, after a signal."""
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, args=(number, time.monotonic()), daemon=True).start()

    def require_batch(self) -> None:
        """End the wait, in the handler of a signal that was sent for it."""
        if self._overdue is not None and _since:
            name, self._overdue = self._overdue, None
            raise _OverdueError(name)

    def _watch(self, number: int, heard_at: float) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._ended.wait(0.1):
            # The main thread may end its wait at any moment.
            since = next(iter(_since), None)
            if since is not None and time.monotonic() - max(since, heard_at) > SLOW_LOADING_SECONDS:
                self._overdue = signal.Signals(number).name
                # A second Ctrl-C would leave at once.
                signal.pthread_kill(main, signal.SIGTERM if number == signal.SIGINT else number)
                # Sent again: one that arrives just before a call blocks is heard after the call, which never ends.
                self._ended.wait(AGAIN_SECONDS)
