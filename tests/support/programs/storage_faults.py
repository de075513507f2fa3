"""Has a command meet a fault at its N-th operation on files: it is killed there, or the operation fails.

Python reports its file operations by audit events; ``os.fsync``, which has none, is replaced. Only operations below
the working folder count, so that the same number is the same operation whatever Python or a library reads elsewhere.
Writes of native code (safetensors) are seen by the files that Vaak opens for them.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

FAULT = "STORAGE_FAULT"
"""The variable that says which: KIND NUMBER ACTION, as "rename 3 ESTALE", "any 17 kill", "any 0 count"."""
EVENTS = {
    "os.rename": "rename",
    "os.mkdir": "mkdir",
    "os.remove": "remove",
    "os.rmdir": "remove",
    "os.truncate": "truncate",
    "os.link": "link",
    "os.symlink": "link",
    "open": "create",
}
KINDS = ("any", "fsync", *dict.fromkeys(EVENTS.values()))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Faults:
    """Counts operations, and acts at one of them; later ones of the same kind meet it, too, if it is an error."""

    def __init__(self, kind: str, number: int, action: str, folder: str) -> None:
        self.kind, self.number, self.action, self.folder = kind, number, action, folder
        self.counts = dict.fromkeys(KINDS, 0)
        self.pid = os.getpid()

    def meet(self, kind: str, path: object) -> None:
        """Note an operation; kills this process, or raises OSError, where it is the one."""
        if os.getpid() != self.pid:
            return
        for counted in (kind, "any"):
            self.counts[counted] += 1
        if self.kind not in (kind, "any") or self.counts[self.kind] < self.number or self.action == "count":
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.counts[self.kind] == self.number or self.action == "ENOSPC":
            code = getattr(errno, self.action)
            raise OSError(code, os.strerror(code), None if kind == "fsync" else path)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear Python's audit events."""
        kind = EVENTS.get(event)
        if kind is None or (event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING)):
            return
        paths = [one for one in arguments[:2] if isinstance(one, str | bytes | os.PathLike)]
        if event == "open":
            paths = paths[:1]
        for path in paths:
            if os.path.abspath(os.fsdecode(path)).startswith(self.folder + os.sep):
                self.meet(kind, os.fsdecode(path))
                return


def install() -> None:
    """Have this process meet the fault that the environment names; ``count`` writes the numbers to FOLDER/counts."""
    kind, number, action = os.environ[FAULT].split()
    faults = Faults(kind, int(number), action, os.getcwd())
    sys.addaudithook(faults.hook)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        faults.meet("fsync", descriptor)
        real(descriptor)

    setattr(os, "fsync", fsync)  # noqa: B010 (mypy refuses the assignment)
    if action == "count":
        import atexit

        atexit.register(lambda: Path("counts").write_text(repr(faults.counts)))
