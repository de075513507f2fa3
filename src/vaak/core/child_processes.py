"""How worker processes start, and end with their parent even when it is killed."""

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
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)


def end_with_launcher() -> None:
    """End with torchrun or accelerate launch where it started this process, even when it is killed.

    Otherwise the ranks of a killed launcher would keep training unseen and keep the run's lock. Ranks started by hand
    from a shell have no launcher that waits for them.
    """
    if sys.platform == "linux" and ("TORCHELASTIC_RUN_ID" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ):
        end_with_parent()


def end_with_parent() -> None:
    """Have the system kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
