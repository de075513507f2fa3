"""Real processes of a run, started as torchrun would."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from vaak.config.training import TrainingConfig
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


def join(rank: int, port: int, world_size: int = 2, **distributed: Any) -> Ranks:
    """In one of them: meet the others."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ |= {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
    options = {"device": "cpu", "gradient_accumulation_steps": world_size, "distributed": distributed}
    return start_ranks(TrainingConfig.model_validate(options))
