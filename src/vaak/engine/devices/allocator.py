"""Memory of a CPU run: kept when freed, because the next step asks for the same sizes again.

glibc gives large blocks back to the kernel at once and gets them back zeroed, page by page, which costs a visible part
of a step whose vocabulary is large. Kept blocks change no number.
"""

from __future__ import annotations

import ctypes
import sys

import torch

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # names of options in glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory(device: torch.device) -> None:
    """Tell glibc to keep freed memory, where the device is the CPU and the C library is glibc."""
    if device.type != "cpu" or sys.platform != "linux":
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(MMAP_MAX, 0)
        set_option(TRIM_THRESHOLD, NEVER)
        set_option(TOP_PAD, 64 << 20)  # ask the kernel for more at a time
