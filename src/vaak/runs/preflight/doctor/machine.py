"""The machine: Python, processors, memory, disks, limits, the clock."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import vaak
from vaak.core.machine import GIB, UNKNOWN_LIMIT, allowed_cores, cpu_quota, format_bytes, host_memory, nearest_existing
from vaak.runs.preflight.doctor import DoctorFinding, Mark

MACHINE = "machine"
LITTLE_DISK, NO_DISK = 5 * GIB, GIB // 10
LITTLE_MEMORY = 2 * GIB
LITTLE_SHARED_MEMORY = GIB
FEW_OPEN_FILES = 1024


def examine_machine(folder: Path) -> Iterator[DoctorFinding]:
    """Yield findings about the machine; runs would be in ``folder``/runs."""
    yield DoctorFinding(
        MACHINE, "Python", "ok", f"{platform.python_version()} ({sys.executable}) on {platform.platform()}"
    )
    yield processors()
    yield memory()
    yield disk(folder, "disk")
    runs = folder / "runs"
    if runs.exists() and runs.stat().st_dev != folder.stat().st_dev:
        yield disk(runs, "disk of runs/")
    yield from shared_memory(Path("/dev/shm"))
    yield from open_files()
    yield clock(time.time())


def processors() -> DoctorFinding:
    """Model, cores, and how many of them this process may use."""
    cores, allowed = os.cpu_count() or 1, allowed_cores()
    quota = cpu_quota()
    said = f"{processor_model()}, {cores} cores"
    if allowed < cores:
        said += f", {allowed} of them allowed to this process"
    if quota is not None and quota < allowed:
        said += f", a container's quota of {quota:g}"
        threads = max(1, int(quota))
        advice = f"set training.performance.num_threads: {threads}; threads beyond the quota wait for one another"
        return DoctorFinding(MACHINE, "processor", "warning", said, advice)
    return DoctorFinding(MACHINE, "processor", "ok", said)


def processor_model() -> str:
    """Return the processor's name, as the system knows it."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired):
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def memory() -> DoctorFinding:
    """Memory in use, of the machine's or of a container's limit."""
    used, limit, _ = host_memory().read()
    if limit == UNKNOWN_LIMIT:
        return DoctorFinding(MACHINE, "memory", "warning", "unknown: /proc can't be read", "mount /proc")
    free = limit - used
    mark: Mark = "warning" if free < LITTLE_MEMORY else "ok"
    advice = "use a smaller batch, or end other programs" if mark == "warning" else ""
    return DoctorFinding(MACHINE, "memory", mark, f"{format_bytes(free)} free of {format_bytes(limit)}", advice)


def disk(folder: Path, name: str) -> DoctorFinding:
    """Space where runs would be written, and whether they may be."""
    place = nearest_existing(folder)
    usage = shutil.disk_usage(place)
    said = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} at {place}"
    if not os.access(place, os.W_OK):
        return DoctorFinding(MACHINE, name, "problem", f"{place} can't be written", "give run_dir= on a disk that can")
    if hasattr(os, "statvfs") and os.statvfs(place).f_files and not os.statvfs(place).f_favail:
        return DoctorFinding(MACHINE, name, "problem", f"no more files can be created at {place}", "remove old ones")
    if usage.free < NO_DISK:
        return DoctorFinding(MACHINE, name, "problem", said, "make space, or give run_dir= on another disk")
    if usage.free < LITTLE_DISK:
        return DoctorFinding(
            MACHINE, name, "warning", said, "make space, or keep fewer: training.checkpoint.save_total_limit"
        )
    return DoctorFinding(MACHINE, name, "ok", said)


def shared_memory(folder: Path) -> Iterator[DoctorFinding]:
    """Through it, workers hand over batches (Linux)."""
    if not folder.is_dir():
        return
    total = shutil.disk_usage(folder).total
    mark: Mark = "warning" if total < LITTLE_SHARED_MEMORY else "ok"
    advice = "start the container with --shm-size=8g, or set training.performance.num_workers: 0"
    yield DoctorFinding(
        MACHINE, "shared memory", mark, f"{format_bytes(total)} at {folder}", advice if mark == "warning" else ""
    )


def open_files() -> Iterator[DoctorFinding]:
    """Yield how many files this process may have open at once; workers that hand over tensors take many."""
    try:
        import resource
    except ImportError:
        # Windows doesn't have it.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    mark: Mark = "warning" if 0 <= soft < FEW_OPEN_FILES else "ok"
    said = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} at once"
    more = "" if hard == resource.RLIM_INFINITY else f" (at most {hard} here)"
    yield DoctorFinding(MACHINE, "open files", mark, said, f"ulimit -n 4096{more}" if mark == "warning" else "")


def clock(now: float) -> DoctorFinding:
    """Return whether the clock is earlier than the files of this program, which were written in the past."""
    written = Path(vaak.__file__).stat().st_mtime
    said = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(now))
    if now < written - 86400:
        advice = "set the clock: trackers, logs and prepared data rely on it (training itself doesn't)"
        return DoctorFinding(MACHINE, "clock", "warning", f"{said}, but Vaak was installed later than that", advice)
    return DoctorFinding(MACHINE, "clock", "ok", said)
