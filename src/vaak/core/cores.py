"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def allowed_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_a_process() -> int:
    """The cores that each process of the run has for itself, of those that it may use and a container grants."""
    quota = cpu_quota()
    cores = allowed_cores() if quota is None else min(allowed_cores(), int(quota))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """How many processors' time a container grants, the least of all control groups above; None without a limit.

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


def _quota(folder: Path) -> float | None:
    """The quota of one control group, version 2 or 1."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no such group here, or "max"
        return None
