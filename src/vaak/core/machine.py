"""The machine that a process runs on: processors it may use, memory, and the versions of what computes.

A container's limits are a control group's: files below /sys/fs/cgroup, of version 2 or 1 of it. A group above ours
may be the one that is full, so all are read. Source: Linux kernel, Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst. Versions (Vaak's commit, and installed packages) are asked once in a process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.metadata
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import vaak

log = logging.getLogger("vaak")

GIB = 1 << 30
FAST_BF16 = {"amx_bf16", "avx512_bf16", "bf16"}  # of x86 and of Arm

Thresholds = tuple[float, float, float]
THRESHOLDS: dict[str, Thresholds] = {
    "cuda": (0.60, 0.75, 0.85),
    "mps": (0.55, 0.70, 0.80),
    "cpu": (0.70, 0.80, 0.90),
}
"""The fractions, by device, of the memory from which pressure is moderate, high and critical."""


def allowed_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_own_cores() -> int:
    """Return the cores that each process of the run has for itself, of those that it may use and a container grants."""
    quota = cpu_quota()
    cores = allowed_cores() if quota is None else min(allowed_cores(), int(quota))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the processors granted to a container, the least of all control groups above; None without a limit.

    Source: Linux kernel, Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        mount = groups if number == "0" else groups / "cpu"
        folder = mount / path.lstrip("/")
        quotas += [_quota(level) for level in (folder, *folder.parents) if level.is_relative_to(mount)]
    return min((quota for quota in quotas if quota is not None), default=None)


@cache
def has_fast_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Return whether the processor multiplies bf16 in hardware; None if the system doesn't say."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if flags is None else not FAST_BF16.isdisjoint(flags[1].split())


def _quota(folder: Path) -> float | None:
    """Return the quota of one control group, version 2 or 1."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):
        # No such group here, or "max".
        return None


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
V2 = ("memory.max", "memory.current", "")
# The unit of /proc.
KIBIBYTE = 1024


class OpenFile:
    """A file of the kernel's that is kept open: reading it again costs microseconds."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)

    def read(self) -> bytes:
        return b"\n" + os.pread(self.descriptor, 16384, 0)


def number_after(name: str, text: bytes) -> int:
    """Return the number of the line that begins with a name; 0 where there is none.

    >>> number_after("MemFree:", b"\\nMemTotal: 9 kB\\nMemFree:  5 kB\\n")
    5
    """
    _, _, rest = text.partition(b"\n" + name.encode())
    return int(rest[:40].split()[0]) if rest else 0


class ControlGroup:
    """One control group with a limit. Raises OSError if the folder isn't one, ValueError if it has no limit."""

    def __init__(self, folder: Path, names: tuple[str, str, str]) -> None:
        limit, usage, prefix = names
        # "max" is not a number: no limit.
        self.limit = int((folder / limit).read_text())
        self.usage, self.stat = OpenFile(folder / usage), OpenFile(folder / "memory.stat")
        self.file_pages = [f"{prefix}{kind}_file " for kind in ("inactive", "active")]

    def read(self) -> tuple[int, int]:
        """Bytes used, without the file cache, which the kernel takes back when it needs to; and the limit."""
        stat = self.stat.read()
        used = int(self.usage.read()) - sum(number_after(name, stat) for name in self.file_pages)
        return max(used, 0), self.limit


def control_groups(root: Path, own: str, machine: int) -> list[ControlGroup]:
    """Return the limited groups that a process is in, from its own up to ``root``; ``own`` is its /proc/self/cgroup."""
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
            except (OSError, ValueError):
                # A container sees no folder of the path that it has outside.
                continue
            if group.limit < machine:
                found.append(group)
    return found


class LinuxMemory:
    """Reads /proc and the control groups. This process's use is its peak since ``reset_peak``."""

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
        """Return the most bytes that were resident since ``reset_peak``."""
        return KIBIBYTE * number_after("VmHWM:", self.status.read())

    def reset_peak(self) -> None:
        """Count the peak from now on; where a sandbox forbids that, it counts from the process's start."""
        with contextlib.suppress(OSError):
            self.clear.write_text("5")


UNKNOWN_LIMIT = 1 << 60
"""Bytes; stands for a limit that isn't known, and that nothing comes near."""


class UnknownMemory:
    """On a Linux whose /proc can't be read: this process's peak use as the system reports it, and no limit."""

    def read(self) -> tuple[int, int, int]:
        return self.peak(), UNKNOWN_LIMIT, self.peak()

    def peak(self) -> int:
        """Return the most bytes that were resident since the process began."""
        import resource

        return KIBIBYTE * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def reset_peak(self) -> None:
        """Do nothing, as the system counts the peak from the process's start."""


class OtherMemory:
    """On systems without /proc: the present values of psutil, which is installed there."""

    def read(self) -> tuple[int, int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total, self.peak()

    def peak(self) -> int:
        """Return the bytes that are resident now."""
        import psutil

        return int(psutil.Process().memory_info().rss)

    def reset_peak(self) -> None:
        """Do nothing, as no peak is counted."""


HostMemory = LinuxMemory | UnknownMemory | OtherMemory


def host_memory() -> HostMemory:
    """Return the memory of this machine, as this process sees it; its files stay open. An unknown limit is reported."""
    return _read_memory(os.getpid())


@functools.lru_cache(maxsize=1)
def _read_memory(process: int, proc: Path = Path("/proc")) -> HostMemory:
    """A process that was forked opens its own files: those of /proc/self stay the parent's."""
    if sys.platform != "linux":
        return OtherMemory()
    try:
        return LinuxMemory(proc)
    except (OSError, ValueError) as error:
        if multiprocessing.parent_process() is None:
            log.warning("the limit of memory is unknown (%s): nothing is done before memory runs out", error)
        return UnknownMemory()


def nvidia_driver() -> str | None:
    """Return the version of the driver of NVIDIA's GPUs; None if the system doesn't say."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


COMPUTING = (
    *("accelerate", "datasets", "espeakng-loader", "jiwer", "lhotse", "lilcom", "num2words", "numpy"),
    *(
        "onnxruntime",
        "peft",
        "pocketsphinx",
        "sacrebleu",
        "scikit-learn",
        "scipy",
        "sentencepiece",
        "soundfile",
        "soxr",
    ),
    *("soxr", "tokenizers", "torch", "transformers", "umap-learn"),
)
"""The packages whose code may have a part in a run's numbers: in its data, its model, or its evaluation."""


@cache
def installed_versions() -> dict[str, str]:
    """Return the versions of those of ``COMPUTING`` that are installed, whether or not this run has used them.

    Which ones a run uses isn't known before it ends: some are imported late, and by workers alone.
    """
    versions = {}
    for name in COMPUTING:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@cache
def commit() -> str | None:
    """Return the commit of Vaak's own checkout, with ``+`` where it has changes; None for an installed package."""
    folder = Path(vaak.__file__).parent
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


@cache
def code_version() -> str:
    """Return a unique name of Vaak's code: its commit, or a hash of its files."""
    found = commit()
    if found is not None and not found.endswith("+"):
        return found[:12]
    folder, digest = Path(vaak.__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    return f"{(found or '')[:12]}{'+' if found else ''}{digest.hexdigest()[:12]}"


def format_bytes(number: float) -> str:
    """Return bytes as a reader reads them.

    >>> format_bytes(3.5 * 2**30), format_bytes(64 * 2**20), format_bytes(1024)
    ('3.5 GiB', '64.0 MiB', '1.0 KiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def nearest_existing(path: Path) -> Path:
    """Return the path itself or the folder nearest above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


@contextlib.contextmanager
def collecting_no_garbage() -> Iterator[None]:
    """Disable garbage collection within this context, in processes forked within it until they enable it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
