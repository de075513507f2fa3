"""Two real processes of a run, started as torchrun would."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

from vaak.config.training import TrainingConfig
from vaak.engine.ranks import Ranks, start_ranks


def run_on_two_ranks(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, port, *arguments)`` in two processes and wait for them; both must end well."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, port, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0


def join(rank: int, port: int) -> Ranks:
    """In one of the two: meet the other."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return start_ranks(TrainingConfig(device="cpu", gradient_accumulation_steps=2))
