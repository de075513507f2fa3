"""Memory of a device: how much is in use, how full that is, and how to release or keep what is only cached.

Memory counts as used where it is unavailable to others. Memory that torch's caching allocator, glibc or the file cache
keep for later is available, so it doesn't count as used. The peak of a step since the last reading counts as used,
though it was released by the time of the reading.

How full it is has four bands, each device its own. CUDA's are the TTS trainer's. MPS's are lower: the rest of the
system uses the same memory, and slows down by swapping long before an allocation fails. A CPU's are higher, since a
machine in use is never nearly empty; but there the kernel kills without an error, so the last band begins early enough.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import torch

from vaak.core.errors import UserError
from vaak.core.machine import THRESHOLDS, Thresholds, host_memory
from vaak.core.out_of_memory import is_out_of_memory as is_out_of_memory


def free_memory(device: torch.device) -> None:
    """Collect garbage and release memory held for later use: the device's cache; on a CPU, glibc's free pages."""
    gc.collect()
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True)
class MemoryReading:
    """Bytes in use and unavailable, of ``limit``; ``own`` of them are this process's."""

    used: int
    limit: int
    own: int

    @property
    def pressure(self) -> float:
        """The fraction of the memory that is used."""
        return self.used / self.limit

    @property
    def own_share(self) -> float:
        """The fraction of the used memory that is this process's."""
        return self.own / self.used if self.used else 0.0


def read_memory(device: torch.device) -> MemoryReading:
    """How the memory of a device stands, with what this process used at its worst since ``reset_peak``.

    MPS has no peak counter: its cache counts as used there. Its limit is the size from which the system slows
    down; torch fails only beyond. On a CPU the limit is the machine's or a container's, whichever is nearer to its end.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        stats = torch.cuda.memory_stats(device)
        own = stats.get("allocated_bytes.all.peak", 0)
        # What others hold includes the drivers' own part.
        others = total - free - stats.get("reserved_bytes.all.current", 0)
        return MemoryReading(others + own, total, own)
    if device.type == "mps":
        used = torch.mps.driver_allocated_memory()
        return MemoryReading(used, torch.mps.recommended_max_memory(), used)
    return MemoryReading(*host_memory().read())


def read_peak(device: torch.device) -> int:
    """Return the most bytes that this process has used at once since ``reset_peak``; on MPS, what it holds now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return host_memory().peak()


def reset_peak(device: torch.device) -> None:
    """Count the peak from now on, where the device counts one."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        host_memory().reset_peak()


PRESSURE_MARGIN = 0.03  # so far below its threshold must pressure fall before its band is left


class Band(IntEnum):
    """Low to critical; a higher band is a greater number."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


def choose_thresholds(device: torch.device, given: Sequence[float] | None = None) -> Thresholds:
    """Return the thresholds given, or else the device's own.

    Raises UserError if those given are not three increasing fractions.
    """
    if given is None:
        return THRESHOLDS.get(device.type, THRESHOLDS["cuda"])
    edges = (0.0, *given, 1.0)
    are_numbers = all(isinstance(part, int | float) for part in edges)
    if len(given) != 3 or not are_numbers or any(lower >= upper for lower, upper in pairwise(edges)):
        raise UserError(
            f"training.memory.thresholds are {list(given)}: give three increasing fractions, as in [0.6, 0.75, 0.85]"
        )
    moderate, high, critical = given
    return moderate, high, critical


def classify_pressure(pressure: float, thresholds: Thresholds, before: Band = Band.LOW) -> Band:
    """The band of a pressure; one that was reached ``before`` is left only by ``PRESSURE_MARGIN`` below its threshold.

    >>> of_cuda = THRESHOLDS["cuda"]
    >>> [classify_pressure(share, of_cuda) for share in (0.8, 0.85, 0.86)]
    [<Band.HIGH: 2>, <Band.HIGH: 2>, <Band.CRITICAL: 3>]
    >>> [classify_pressure(share, of_cuda, before=Band.HIGH) for share in (0.74, 0.71)]
    [<Band.HIGH: 2>, <Band.MODERATE: 1>]
    """
    moderate, high, critical = thresholds
    band = Band((pressure >= moderate) + (pressure >= high) + (pressure > critical))
    while band < before and pressure < thresholds[before - 1] - PRESSURE_MARGIN:
        before = Band(before - 1)
    return max(band, before)


# Names of options in glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
NO_LIMIT = 2**31 - 1


def keep_freed_memory(device: torch.device) -> None:
    """Tell glibc to keep freed memory, where the device is the CPU and the C library is glibc."""
    if device.type != "cpu" or sys.platform != "linux":
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(MMAP_MAX, 0)
        set_option(TRIM_THRESHOLD, NO_LIMIT)
        # Ask the kernel for more at a time.
        set_option(TOP_PAD, 64 << 20)
