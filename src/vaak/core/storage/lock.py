"""Locks between processes that a crash releases.

They are POSIX record locks: the kernel releases them when the process ends however it ends, and, unlike those of flock
and of open file descriptions, a worker process that outlives its parent never inherits one. Their trap: a process that
closes any file that it opened on a lock's file loses its own lock. So we remember which locks we hold and never open
their files again, not even to read the holder, which is written in the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from vaak.core.storage.files import open_to_append
from vaak.core.storage.links import NO_WAIT

try:
    import fcntl
except ImportError:
    # Windows doesn't have it.
    fcntl = None  # type: ignore[assignment]

ASK_AGAIN_SECONDS = 0.05

_held: dict[tuple[int, int], int] = {}
"""Device and inode of a lock's file, and the process that took the lock: a fork inherits this, but no lock."""

_changing = threading.Lock()
"""Held while a lock's file is open for a moment: the kernel doesn't tell the threads of a process apart."""
# A fork while another thread holds it would leave it held in the child for ever.
os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)


@contextlib.contextmanager
def locked(path: Path, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of the file ``path``, which is made if it isn't there; wait for it ``patience`` seconds at most.

    Another thread of this process waits like another process. Raises BlockingIOError, which names the holder, where it
    is still held then, be it by this process.
    """
    begun = time.monotonic()
    while (file := _take_lock(path)) is None:
        if patience is not None and time.monotonic() - begun >= patience:
            raise BlockingIOError(f"{path} is locked by {describe_holder(path)}")
        time.sleep(ASK_AGAIN_SECONDS)
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):
            # On a full disk the lock is held all the same.
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps(holder).encode())
        yield
    finally:
        _give_back(file)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock, this one included; False for a file that may not be opened.

    It writes nothing, so it works on a read-only disk.
    """
    with _changing:
        if _is_mine(path):
            return True
        try:
            with open(os.open(path, os.O_RDONLY | NO_WAIT), "rb") as file:
                if fcntl is not None:
                    # Shared: others asking at the same time don't hold it.
                    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def describe_holder(path: Path) -> str:
    """The holder of a lock, since when it holds it, and how to end it; "another process" where it isn't known."""
    try:
        with _changing:
            if _is_mine(path):
                return f"this process ({os.getpid()})"
            content = path.read_text(encoding="utf-8")
        about = json.loads(content)
        where = "" if about["host"] == socket.gethostname() else f" on {about['host']}"
        ending = f"end it: kill {about['pid']}{where}"
        return f"process {about['pid']} on {about['host']} since {about['since']} ({ending})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def _take_lock(path: Path) -> IO[bytes] | None:
    """Return the file of the lock, locked until ``_give_back``; None if the lock is held."""
    with _changing:
        if _is_mine(path):
            return None
        file = open_to_append(path, "a+b")
        try:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            about = os.fstat(file.fileno())
        except BaseException as error:
            file.close()
            if isinstance(error, BlockingIOError):
                return None
            raise
        _held[about.st_dev, about.st_ino] = os.getpid()
        return file


def _give_back(file: IO[bytes]) -> None:
    """Close the file of a lock, which releases it, before another thread may open it."""
    with _changing:
        about = os.fstat(file.fileno())
        file.close()
        del _held[about.st_dev, about.st_ino]


def _is_mine(path: Path) -> bool:
    """Return whether this process holds the lock, found without opening the file."""
    try:
        about = os.stat(path)
    except OSError:
        return False
    return _held.get((about.st_dev, about.st_ino)) == os.getpid()
