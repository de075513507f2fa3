"""Memory of a device: how much is in use, how to release what is only cached.

Memory counts as used where it is unavailable to others. What torch's caching allocator, glibc or the file cache keep
for later is available, so it isn't used; the peak of a step since the last reading is not, though it was released by
the time of the reading.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass

import torch

from vaak.core.out_of_memory import is_out_of_memory as is_out_of_memory  # for users of the library
from vaak.engine.memory.host import host_memory


def free_memory(device: torch.device) -> None:
    """Collect garbage and give back what is kept for later use: the device's cache; on a CPU, glibc's free pages."""
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

    MPS counts no peak: what its cache keeps counts as used there. Its limit is the size from which the system slows
    down; torch fails only beyond. On a CPU the limit is the machine's or a container's, whichever is nearer to its end.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        stats = torch.cuda.memory_stats(device)
        own = stats.get("allocated_bytes.all.peak", 0)
        others = total - free - stats.get("reserved_bytes.all.current", 0)  # with the drivers' own part
        return MemoryReading(others + own, total, own)
    if device.type == "mps":
        used = torch.mps.driver_allocated_memory()
        return MemoryReading(used, torch.mps.recommended_max_memory(), used)
    return MemoryReading(*host_memory().read())


def read_peak(device: torch.device) -> int:
    """The most bytes that this process has used at once since ``reset_peak``; on MPS, what it holds now."""
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
