"""Signals that ask for an end, as processes below a run hear them: workers leave them to it, and end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

STOPPING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    # Windows has two of them.
    if hasattr(signal, name)
)
"""Signals that ask a run to end: a person's, a closed terminal's, those by which clusters say that time is over."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Within this context, Ctrl-C waits for its end: for a short call from whose callbacks no exception can pass."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if noted and callable(handler):
        handler(signal.SIGINT, None)


class TooLongError(Exception):
    """Work has exceeded its time limit."""


@contextlib.contextmanager
def limit_time(seconds: float) -> Iterator[Callable[[], None]]:
    """Raise TooLongError after ``seconds`` within this context; calling the yielded function restarts them."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets signals.
        yield lambda: None
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)

    def restart() -> None:
        # Again, should someone have caught it.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)

    try:
        restart()
        yield restart
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def begin_as_worker() -> None:
    """Leave ``STOPPING`` to the process that started this one, and end with it, even when it is killed."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    # Slow to import, and a worker has.
    from multiprocessing import parent_process

    starter = parent_process()
    if starter is not None and starter.pid != os.getppid():
        # A forkserver's: the system knows that one as our parent.
        threading.Thread(target=_end_with, args=(starter,), daemon=True, name="end with the run").start()
    if sys.platform == "linux":
        parent = os.getppid()
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)


def _end_with(starter: Any) -> None:
    starter.join()
    os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent() -> None:
    """Have the system kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
