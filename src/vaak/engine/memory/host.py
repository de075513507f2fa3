"""Memory of the machine a process runs on, and of the container it runs in.

A container's limit is a control group's: files below /sys/fs/cgroup, of version 2 or 1 of that interface. A group above
ours may be the one that is full, so all are read. Source: Linux kernel, Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from pathlib import Path

V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
V2 = ("memory.max", "memory.current", "")
KIBIBYTE = 1024  # the unit of /proc


class OpenFile:
    """A file of the kernel's that is kept open: reading it again costs microseconds."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)

    def read(self) -> bytes:
        return b"\n" + os.pread(self.descriptor, 16384, 0)


def number_after(name: str, text: bytes) -> int:
    """The number of the line that begins with a name; 0 where there is none.

    >>> number_after("MemFree:", b"\\nMemTotal: 9 kB\\nMemFree:  5 kB\\n")
    5
    """
    _, _, rest = text.partition(b"\n" + name.encode())
    return int(rest[:40].split()[0]) if rest else 0


class ControlGroup:
    """One control group with a limit. Raises OSError where the folder isn't one, ValueError where it has no limit."""

    def __init__(self, folder: Path, names: tuple[str, str, str]) -> None:
        limit, usage, prefix = names
        self.limit = int((folder / limit).read_text())  # "max" is not a number: no limit
        self.usage, self.stat = OpenFile(folder / usage), OpenFile(folder / "memory.stat")
        self.file_pages = [f"{prefix}{kind}_file " for kind in ("inactive", "active")]

    def read(self) -> tuple[int, int]:
        """Bytes used, without the file cache, which the kernel takes back when it needs to; and the limit."""
        stat = self.stat.read()
        used = int(self.usage.read()) - sum(number_after(name, stat) for name in self.file_pages)
        return max(used, 0), self.limit


def control_groups(root: Path, own: str, machine: int) -> list[ControlGroup]:
    """The limited groups that a process is in, from its own up to ``root``; ``own`` is its /proc/self/cgroup."""
    found = []
    for line in own.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount, names = root, V2
        elif "memory" in controllers.split(","):
            mount, names = root / "memory", V1
        else:
            continue
        folder = mount / path.lstrip("/")
        for level in (folder, *folder.parents):
            if not level.is_relative_to(mount):
                break
            try:
                group = ControlGroup(level, names)
            except (OSError, ValueError):  # a container sees no folder of the path that it has outside
                continue
            if group.limit < machine:
                found.append(group)
    return found


class LinuxMemory:
    """Reads /proc and the control groups. What this process used is counted at its worst since ``reset_peak``."""

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self.machine, self.status = OpenFile(proc / "meminfo"), OpenFile(proc / "self/status")
        self.clear = proc / "self/clear_refs"
        self.total = KIBIBYTE * number_after("MemTotal:", self.machine.read())
        self.groups = control_groups(groups, (proc / "self/cgroup").read_text(), self.total)

    def read(self) -> tuple[int, int, int]:
        """Used, limit and this process's part, in bytes, of the machine or the group that is nearest to its end."""
        used = self.total - KIBIBYTE * number_after("MemAvailable:", self.machine.read())
        places = [(used, self.total), *(group.read() for group in self.groups)]
        used, limit = max(places, key=lambda place: place[0] / place[1])
        own = self.status.read()
        given_back = KIBIBYTE * max(number_after("VmHWM:", own) - number_after("VmRSS:", own), 0)
        return used + given_back, limit, KIBIBYTE * number_after("RssAnon:", own) + given_back

    def peak(self) -> int:
        """The most bytes that were resident since ``reset_peak``."""
        return KIBIBYTE * number_after("VmHWM:", self.status.read())

    def reset_peak(self) -> None:
        """Count the peak from now on; where a sandbox forbids that, it counts from the process's start."""
        with contextlib.suppress(OSError):
            self.clear.write_text("5")


class OtherMemory:
    """On systems without /proc: the present values of psutil, which comes with accelerate."""

    def read(self) -> tuple[int, int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total, self.peak()

    def peak(self) -> int:
        """The bytes that are resident now."""
        import psutil

        return int(psutil.Process().memory_info().rss)

    def reset_peak(self) -> None:
        """Nothing: no peak is counted."""


def host_memory() -> LinuxMemory | OtherMemory:
    """The memory of this machine, as this process sees it; its files stay open."""
    return _memory_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _memory_of(process: int) -> LinuxMemory | OtherMemory:
    """A process that was forked opens its own files: those of /proc/self stay the parent's."""
    return LinuxMemory() if sys.platform == "linux" else OtherMemory()
