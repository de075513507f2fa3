"""How a process that works for another one begins."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def begin_as_worker() -> None:
    """Leave Ctrl-C and SIGTERM to the process that started this one, and end with it, even when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
