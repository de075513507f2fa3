"""Locks: one holder, lost with its process and by nothing else."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vaak.core.storage.lock import describe_holder, is_locked, locked

HOLDER = """
import os, signal, sys
from pathlib import Path
from vaak.core.storage.lock import is_locked, locked
path = Path(sys.argv[1])
with locked(path):
    {body}
    print("held", flush=True)
    sys.stdin.readline()
"""
WITH_A_WORKER = """
    reading, writing = os.pipe()
    if os.fork() == 0:  # a worker, which outlives its parent
        os.close(writing)
        os.read(reading, 1)
        print("locked" if is_locked(path) else "free", flush=True)
        os._exit(0)
    os.close(reading)
"""


def holder(path: Path, body: str = "pass") -> subprocess.Popen[str]:
    """A process that holds the lock until its standard input ends or it is killed."""
    code = HOLDER.replace("    {body}", body if body.startswith("\n") else f"    {body}")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


SEEN = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from vaak.core.storage.lock import is_locked
print(is_locked(Path(sys.argv[1])))
"""


def seen_by_another(path: Path) -> bool:
    """Return whether a separate process sees the lock as held."""
    return subprocess.check_output([sys.executable, "-c", SEEN, str(path)], text=True) == "True\n"


def test_one_holder_until_its_process_is_killed(tmp_path: Path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with holder(path) as process:
        assert is_locked(path)
        assert is_locked(path)  # asking takes nothing from its holder
        with pytest.raises(BlockingIOError, match="is locked"), locked(path, patience=0):
            raise AssertionError
        process.kill()
    assert not is_locked(path)
    with locked(path, patience=0):
        pass


@pytest.mark.parametrize("body", ["is_locked(path)", "is_locked(path.parent / 'link')", "open(path.parent / 'x', 'w')"])
def test_who_holds_it_may_ask_for_it(tmp_path: Path, body: str):
    (tmp_path / "lock").touch()
    (tmp_path / "link").symlink_to("lock")
    with holder(tmp_path / "lock", f"{body}; assert is_locked(path)") as process:
        assert is_locked(tmp_path / "lock")
        process.kill()


def test_the_holder_cannot_take_it_twice(tmp_path: Path):
    with locked(tmp_path / "lock"):
        with pytest.raises(BlockingIOError), locked(tmp_path / "lock", patience=0):
            raise AssertionError
        assert seen_by_another(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        _ = 1 // 0
    assert not is_locked(tmp_path / "lock")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_worker_that_outlives_the_holder_holds_nothing(tmp_path: Path):
    path = tmp_path / "lock"
    process = holder(path, WITH_A_WORKER)
    assert process.stdout is not None
    process.kill()  # the worker's pipe ends with it, and the worker looks
    process.wait()
    assert not is_locked(path)
    assert process.stdout.read() == "free\n"
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()


def test_asking_writes_nothing_and_two_who_ask_are_no_holders(tmp_path: Path):
    (tmp_path / "lock").touch()
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'rb')\nfcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)\n"
        "print('held', flush=True)\nsys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "held\n"
        assert not is_locked(tmp_path / "lock")
        asking.kill()


def test_who_is_refused_hears_who_holds_it_and_how_to_end_that(tmp_path: Path):
    path = tmp_path / "lock"
    path.write_text("garbage of an older version")
    assert describe_holder(path) == "another process"
    with holder(path) as process:
        said = describe_holder(path)
        assert said.startswith(f"process {process.pid} on ")
        assert re.search(r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(", said)
        assert said.endswith(f"end it: kill {process.pid})")
        with pytest.raises(BlockingIOError) as refused, locked(path, patience=0):
            raise AssertionError
        assert str(refused.value) == f"{path} is locked by {said}"
        process.kill()


def test_asking_itself_who_holds_it_does_not_lose_it(tmp_path: Path):
    with locked(tmp_path / "lock"):
        assert describe_holder(tmp_path / "lock") == f"this process ({os.getpid()})"
        assert seen_by_another(tmp_path / "lock")


def test_a_lock_on_another_machine_is_ended_there(tmp_path: Path):
    about = {"pid": 7, "host": "node7", "since": "2026-01-01 10:00:00"}
    (tmp_path / "lock").write_text(json.dumps(about))
    assert describe_holder(tmp_path / "lock") == (
        "process 7 on node7 since 2026-01-01 10:00:00 (end it: kill 7 on node7)"
    )


def test_a_full_disk_does_not_refuse_a_lock(tmp_path: Path, monkeypatch):
    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with locked(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")


def test_threads_of_a_process_take_turns(tmp_path):
    """The kernel gives a record lock to any thread of the process that has it."""
    path, inside, seen = tmp_path / "lock", [0], []

    def enter(number: int) -> None:
        with locked(path):
            inside[0] += 1
            time.sleep(0.002)
            seen.append((inside[0], is_locked(path), number % 8 != 7 or _is_held_for_another(path)))
            inside[0] -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(enter, range(24)))
    assert seen == [(1, True, True)] * 24
    assert not is_locked(path)


def _is_held_for_another(path: Path) -> bool:
    """Return whether another process finds the lock held."""
    code = "import sys, pathlib, vaak.core.storage.lock as lock; print(lock.is_locked(pathlib.Path(sys.argv[1])))"
    return subprocess.check_output([sys.executable, "-c", code, str(path)], text=True) == "True\n"
