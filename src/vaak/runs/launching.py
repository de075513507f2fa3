"""How the processes of a run learn of each other: started here, or by SLURM's srun.

Each has its place in torchrun's environment variables, which all else reads: RANK and WORLD_SIZE, LOCAL_RANK and
LOCAL_WORLD_SIZE of its machine, MASTER_ADDR and MASTER_PORT of rank 0.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, MutableMapping, Sequence

from vaak.engine.interrupts import LAUNCHED, passed_on

LOOK_AGAIN_SECONDS = 0.05
ENDING_SECONDS = 30.0
"""How long processes may take to end after another one has failed, as they do under torchrun."""
USERS_ERROR = 2
FIRST_PORT, PORTS = 10_000, 20_000
"""Ports of SLURM's steps: below those that systems give to connections (32,768 on Linux)."""


def train_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that trains with these arguments of ``vaak train``, by this Python."""
    return [sys.executable, "-P", "-m", "vaak", "train", *arguments]


def run_processes(command: Sequence[str], number: int) -> int:
    """Run a command ``number`` times at once on this machine; return the exit code: 0, or that of the first to fail.

    When one fails, the others are ended. Signals that stop a run are passed on to all. One line on standard error names
    the process that failed, unless it has reported an error of the user's itself. Killed, it counts as 128 and the
    signal.
    """
    places = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **{name: str(place) for name, place in places.items()}}
    processes: list[subprocess.Popen[bytes]] = []
    passed: list[int] = []

    def send(received: int) -> None:
        passed.append(received)
        _send(processes, received)

    with passed_on(send):
        try:
            for rank in range(number):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), LAUNCHED: "1"}
                # A terminal's Ctrl-C goes to its own group, this process: in separate groups they get it once.
                started = subprocess.Popen(
                    command, env={**environment, **own}, stdin=subprocess.DEVNULL, process_group=0
                )
                processes.append(started)
                if passed:
                    _send([started], passed[0])
                    break
            failed = first_to_fail(processes)
            _end(processes)
        finally:
            _send(processes, signal.SIGKILL)
            for process in processes:
                process.wait()
    if failed is None:
        return 0
    code = processes[failed].returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    if code != USERS_ERROR and not passed:
        others = "the other one was" if number == 2 else f"the {number - 1} others were"
        print(
            f"rank {failed} (process {processes[failed].pid}) {how}, and so {others} ended; resume with --resume auto",
            file=sys.stderr,
        )
    return code if code >= 0 else 128 - code


def first_to_fail(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until one of the processes fails, and return which; None if all end well.

    Of several that have failed at once, one that was killed is meant, then one that didn't report a user's error.
    """
    while True:
        codes = [process.poll() for process in processes]
        failed = [(code > 0, code == USERS_ERROR, rank) for rank, code in enumerate(codes) if code]
        if failed:
            return min(failed)[-1]
        if None not in codes:
            return None
        time.sleep(LOOK_AGAIN_SECONDS)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs: asked to, a process in training saves what it has reached."""
    _send(processes, signal.SIGTERM)
    deadline = time.monotonic() + ENDING_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN_SECONDS)


def _send(processes: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        # Nothing, where it has ended.
        process.send_signal(number)


def _free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def join_slurm_step(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set torchrun's variables from those of srun, in each of several tasks of a step.

    Nothing changes where another launcher has set them, in a step of one task, and in the script of a job, whose
    SLURM_NTASKS speaks of steps to come. MASTER_ADDR and MASTER_PORT that are given stay.

    Source: https://slurm.schedmd.com/srun.html, "Output environment variables".
    """
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks == 1 or "SLURM_PROCID" not in environment or {"RANK", "WORLD_SIZE"} & environment.keys():
        return
    node, local = int(environment.get("SLURM_NODEID", "0")), environment.get("SLURM_LOCALID", "0")
    job, step = (int(environment.get(f"SLURM_{name}_ID", "0")) for name in ("JOB", "STEP"))
    # Slurm sets it so with --gpus-per-task.
    own_gpu = len(environment.get("CUDA_VISIBLE_DEVICES", ",").split(",")) == 1
    environment.update(
        {
            "RANK": environment["SLURM_PROCID"],
            "WORLD_SIZE": str(tasks),
            "LOCAL_RANK": "0" if own_gpu else local,
            "LOCAL_WORLD_SIZE": str(tasks_on_node(environment.get("SLURM_STEP_TASKS_PER_NODE", str(tasks)), node)),
        }
    )
    environment.setdefault("MASTER_ADDR", first_host(environment.get("SLURM_STEP_NODELIST", "127.0.0.1")))
    environment.setdefault("MASTER_PORT", str(FIRST_PORT + (7 * job + step) % PORTS))


def tasks_on_node(described: str, node: int) -> int:
    """Return how many tasks a node has, of SLURM's list for all of them.

    >>> [tasks_on_node("4(x2),3", node) for node in range(3)]
    [4, 4, 3]
    """
    counts = [
        int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", described) for _ in range(int(times or "1"))
    ]
    return counts[min(node, len(counts) - 1)]


def first_host(nodes: str) -> str:
    """Return the first of SLURM's list of nodes.

    >>> first_host("gpu[007-012,020],cpu1"), first_host("login"), first_host("rack[2-3]n[10,12]")
    ('gpu007', 'login', 'rack2n10')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0] if first else nodes)
