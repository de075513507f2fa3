"""Locks between processes that a crash releases.

They are POSIX record locks: the kernel releases them when the process ends however it ends, and, unlike those of flock,
a worker process that outlives its parent never inherits one. A process that opens and closes a lock's file anywhere
loses its own lock on it, so only who doesn't hold it may ask for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

ASK_AGAIN_SECONDS = 0.05


@contextlib.contextmanager
def locked(path: Path, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of the file ``path``, which is made if it isn't there; wait for it ``patience`` seconds at most.

    Raises BlockingIOError where another process still holds it then.
    """
    with open(path, "a+b") as file:
        begun = time.monotonic()
        while fcntl is not None:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if patience is not None and time.monotonic() - begun >= patience:
                    raise BlockingIOError(f"{path} is locked by another process") from error
                time.sleep(ASK_AGAIN_SECONDS)
        yield


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock; of a file that may not be opened, no one knows."""
    try:
        with open(path, "rb+") as file:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
