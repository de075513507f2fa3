"""Real processes of a run, started as torchrun would."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vaak.config.training import TrainingConfig
from vaak.engine.distributed.launcher import is_alive
from vaak.engine.distributed.ranks import Ranks, start_ranks

PRELOADED = [
    *("vaak.runs.start", "vaak.tasks.lm.task", "torch._dynamo", "torch.distributed.nn"),
    *("toy_recordings", "lhotse.features.kaldi", "scipy.signal"),
]
"""Modules that the processes of tests begin with, where they are forks of one that imports them once."""

LEAVING_SECONDS = 0.5
"""How long a process that is to be killed waits for the others to wait for it."""


def run_on_two_ranks(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, port, *arguments)`` in two processes and wait for them; both must end well."""
    assert run_on_ranks(2, work, *arguments) == [0, 0]


def run_on_ranks(world_size: int, work: Callable[..., None], *arguments: Any, seconds: float = 240) -> list[int | None]:
    """Call ``work(rank, port, *arguments)`` in several processes; return their exit codes, None of one that hangs."""
    port = free_port()
    context = multiprocessing.get_context("forkserver")  # imports torch once, not in every process
    context.set_forkserver_preload(PRELOADED)
    processes = [context.Process(target=work, args=(rank, port, *arguments)) for rank in range(world_size)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return codes


def free_port() -> int:
    """A port that no one listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def children_of(pid: int) -> list[int]:
    """The processes that a process started, from the system's own table."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in listed.stdout.split()]


def have_ended_within(seconds: float, pids: Iterable[int]) -> bool:
    """Wait for processes to end. The time counts in which one runs or waits, but not that in which it is kept waiting.

    A limit is then as strict on a busy machine as on an idle one: one that is ready to run while others have the
    processors is given longer, and one that hangs isn't. The system's figures are those of a process's main thread.
    """
    started, before = time.monotonic(), {pid: _kept_waiting_seconds(pid) for pid in pids}
    while alive := [pid for pid in before if is_alive(pid)]:
        passed = time.monotonic() - started
        late = [pid for pid in alive if passed - (_kept_waiting_seconds(pid) - before[pid]) > seconds]
        if any(map(is_alive, late)):  # one that has ended by now has no times any more
            return False
        time.sleep(0.02)
    return True


def _kept_waiting_seconds(pid: int) -> float:
    """Return how long a process was ready to run while others ran; 0 where the system doesn't tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def join(rank: int, port: int, world_size: int = 2, **distributed: Any) -> Ranks:
    """In one of them: meet the others."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ |= {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
    options = {"device": "cpu", "gradient_accumulation_steps": world_size, "distributed": distributed}
    return start_ranks(TrainingConfig.model_validate(options))
