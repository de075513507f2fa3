"""A container's limit, wherever its files are, and the machine's memory, whichever is nearer to its end."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import psutil
import pytest

from vaak.core import machine
from vaak.core.machine import GIB, LinuxMemory, OtherMemory, control_groups, host_memory
from vaak.runs.preflight.doctor.machine import memory as machine_finding


def write(folder: Path, **contents: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def group_v2(folder: Path, limit: object, current: int, cached: int = 0) -> None:
    stat = f"anon {current - cached}\nfile {cached + 99}\ninactive_file {cached}\nactive_file 0"
    write(folder, memory__max=limit, memory__current=current, memory__stat=stat)


def group_v1(folder: Path, limit: object, usage: int, cached: int = 0) -> None:
    stat = f"cache 5\ninactive_file 7\ntotal_inactive_file {cached}\ntotal_active_file 0"
    write(folder, memory__limit_in_bytes=limit, memory__usage_in_bytes=usage, memory__stat=stat)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine of 16 GiB of which 4 are used, and a process of 2 that once had 3."""
    folder = tmp_path / "proc"
    write(folder, meminfo=f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {12 * 2**20} kB")
    write(folder / "self", status=f"Name: x\nVmHWM: {3 * 2**20} kB\nVmRSS: {2 * 2**20} kB\nRssAnon: {2**20} kB")
    write(folder / "self", cgroup="0::/", clear_refs="")
    return folder


def read(proc: Path, groups: Path, own: str) -> tuple[float, ...]:
    """Used, limit and own in GiB."""
    (proc / "self" / "cgroup").write_text(own)
    return tuple(number / GIB for number in LinuxMemory(proc, groups).read())


def test_without_a_container_it_is_the_machines(proc, tmp_path):
    group_v2(tmp_path / "groups", "max", 8 * GIB)
    assert read(proc, tmp_path / "groups", "0::/\n") == (4 + 1, 16, 1 + 1)
    assert read(proc, tmp_path / "no groups", "0::/\n") == (5, 16, 2)


def test_the_limit_of_version_2_without_the_file_cache(proc, tmp_path):
    group_v2(tmp_path / "groups" / "pod" / "job", 8 * GIB, 6 * GIB, cached=3 * GIB)
    group_v2(tmp_path / "groups" / "pod", "max", 7 * GIB)
    assert read(proc, tmp_path / "groups", "0::/pod/job\n") == (3 + 1, 8, 2)


def test_a_group_above_may_be_the_one_that_is_full(proc, tmp_path):
    group_v2(tmp_path / "groups" / "pod" / "job", 8 * GIB, GIB)
    group_v2(tmp_path / "groups" / "pod", 10 * GIB, 9 * GIB)
    assert read(proc, tmp_path / "groups", "0::/pod/job\n") == (10, 10, 2)


def test_a_groups_name_may_have_colons_as_containerds_have(proc, tmp_path):
    group_v2(tmp_path / "groups" / "pod:cri-containerd:abc", 8 * GIB, 7 * GIB)
    assert read(proc, tmp_path / "groups", "0::/pod:cri-containerd:abc\n") == (8, 8, 2)


def test_the_limit_of_version_1(proc, tmp_path):
    group_v1(tmp_path / "groups" / "memory" / "docker" / "abc", 8 * GIB, 7 * GIB, cached=GIB)
    group_v1(tmp_path / "groups" / "memory", 2**63 - 4096, 9 * GIB)
    own = "9:name=systemd:/\n4:memory:/docker/abc\n1:cpu,cpuacct:/\n0::/\n"
    assert read(proc, tmp_path / "groups", own) == (6 + 1, 8, 2)


def test_a_container_that_sees_its_own_group_as_the_root(proc, tmp_path):
    group_v1(tmp_path / "groups" / "memory", 8 * GIB, 6 * GIB)
    assert read(proc, tmp_path / "groups", "4:memory:/docker/abc\n") == (7, 8, 2)
    group_v2(tmp_path / "other", 5 * GIB, 4 * GIB)
    assert read(proc, tmp_path / "other", "0::/../../elsewhere\n") == (5, 5, 2)


def test_the_machine_counts_where_it_is_fuller_than_the_container(proc, tmp_path):
    write(proc, meminfo=f"MemTotal: {16 * 2**20} kB\nMemAvailable: {2**20} kB")
    group_v2(tmp_path / "groups", 8 * GIB, 2 * GIB)
    assert read(proc, tmp_path / "groups", "0::/\n") == (16, 16, 2)


def test_a_limit_above_the_machines_memory_is_none(tmp_path):
    group_v2(tmp_path, 64 * GIB, GIB)
    assert control_groups(tmp_path, "0::/\n", 16 * GIB) == []


def test_readings_follow_the_files(proc, tmp_path):
    group_v2(tmp_path / "groups", 8 * GIB, 6 * GIB)
    memory = LinuxMemory(proc, tmp_path / "groups")
    before = memory.read()
    write(tmp_path / "groups", memory__current=7 * GIB)
    assert memory.read()[0] - before[0] == GIB
    assert memory.peak() == 3 * GIB
    memory.reset_peak()
    assert (proc / "self" / "clear_refs").read_text() == "5"


def test_the_files_are_closed_with_the_memory(proc, tmp_path):
    group_v2(tmp_path / "groups", 8 * GIB, 6 * GIB)
    before = len(os.listdir("/proc/self/fd"))
    memory = LinuxMemory(proc, tmp_path / "groups")
    assert len(os.listdir("/proc/self/fd")) == before + 4
    del memory
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="others have no /proc")
def test_without_proc_the_limit_is_unknown_and_said_once(monkeypatch, caplog, tmp_path):
    """It was a FileNotFoundError, in the first step of a training."""
    asked = functools.lru_cache(maxsize=1)(functools.partial(machine._read_memory.__wrapped__, proc=tmp_path))
    monkeypatch.setattr(machine, "_read_memory", asked)
    used, limit, own = host_memory().read()
    assert 2**20 < used == own == host_memory().peak() < limit == machine.UNKNOWN_LIMIT
    host_memory().reset_peak()
    assert [record.getMessage() for record in caplog.records] == [
        f"the limit of memory is unknown ([Errno 2] No such file or directory: '{tmp_path}/meminfo'): "
        "nothing is done before memory runs out"
    ]
    assert machine_finding().said == "unknown: /proc can't be read"


def test_what_psutil_says_agrees_with_proc():
    """Where there is /proc, both can be asked."""
    if not isinstance(host_memory(), LinuxMemory):
        pytest.skip("requires /proc")
    used, limit, own = OtherMemory().read()
    assert used == pytest.approx(limit - psutil.virtual_memory().available, abs=limit / 10)
    assert limit == psutil.virtual_memory().total == LinuxMemory().total
    host_memory().reset_peak()
    assert host_memory().read()[2] < 2 * own
    assert host_memory().peak() == pytest.approx(OtherMemory().peak(), rel=0.2)


def test_a_forked_process_reads_its_own(tmp_path):
    if not isinstance(host_memory(), LinuxMemory):
        pytest.skip("requires /proc")
    parents = host_memory()
    assert host_memory() is parents
    pid = os.fork()
    if pid == 0:
        os._exit(int(host_memory() is parents))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
