"""Where the pieces of a long stage are made: in processes here, on a Ray cluster, or by what torchrun started.

PIPELINE/.orders/WORD/000001.json     a function that all the others call next (to train, to make rows), or the end
                      rank-1.json     where a helper is: its process and machine

Under torchrun rank 0 runs the stages, the others help to train and embed. Orders are files in the pipeline's folder,
which all machines must share: the network brings the helpers no more than the word that names the folder. What isn't
ordered (clusters, pictures, exports) rank 0 does alone while they wait.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from vaak.config.components import import_file, users_files
from vaak.core.errors import RemoteError, UserError
from vaak.core.process_pool import in_processes
from vaak.core.storage.files import read_json, write_json

log = logging.getLogger("vaak")
ORDERS_FOLDER = ".orders"
LOOK_AGAIN_SECONDS = 0.1
LEAVING_SECONDS = 10.0
"""How long rank 0 waits at the end for the others to have read that it is the end."""


class Helpers:
    """The other processes, as rank 0 sees them; each order is carried out by all of them at once."""

    def __init__(self, directory: Path, world_size: int) -> None:
        """Begin a folder of orders. Raises UserError if the processes don't meet."""
        from vaak.engine.distributed.ranks import START_SECONDS, common_word

        shutil.rmtree(directory / ORDERS_FOLDER, ignore_errors=True)
        self.world_size, self.number = world_size, 0
        word = os.urandom(8).hex()
        self.folder = directory / ORDERS_FOLDER / word
        self.folder.mkdir(parents=True)
        common_word(word)
        deadline = time.monotonic() + START_SECONDS
        while missing := [rank for rank in range(1, world_size) if not (self.folder / f"rank-{rank}.json").exists()]:
            # The others look for rank 0 just as long.
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank {missing[0]} hasn't come to {directory} in {START_SECONDS:.0f} s: all processes need this "
                    "folder, on a disk that their machines share; start all of them again"
                )
            time.sleep(LOOK_AGAIN_SECONDS)

    def order(self, function: Callable[..., object], **values: Any) -> None:
        """Have each of the other processes call a function of a module with these JSON values."""
        self._write({"call": f"{function.__module__}:{function.__name__}", "values": values})

    def wait_for(self, is_done: Callable[[], bool]) -> None:
        """Wait for what the others do. Raises UserError if one of them has ended."""
        while not is_done():
            if lost := [rank for rank in range(1, self.world_size) if _has_ended(self.folder / f"rank-{rank}.json")]:
                raise UserError(f"rank {lost[0]} has ended, and so this one; see its output, then add --resume")
            time.sleep(LOOK_AGAIN_SECONDS)

    def close(self, has_failed: bool) -> None:
        """Let the others end, with an error if the pipeline ``has_failed``."""
        with contextlib.suppress(OSError):
            self._write({"end": has_failed})
            deadline = time.monotonic() + LEAVING_SECONDS
            while any(self.folder.glob("rank-*.json")) and time.monotonic() < deadline:
                time.sleep(LOOK_AGAIN_SECONDS)
            shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _write(self, what: dict[str, Any]) -> None:
        self.number += 1
        write_json(self.folder / f"{self.number:06d}.json", what)


def help_rank_0(directory: Path) -> None:
    """Carry out the orders of rank 0 until it says that the pipeline has ended.

    Raises UserError if it has ended without a word, and RemoteError after its error.
    """
    from vaak.engine.distributed.launcher import has_ended, own_place
    from vaak.engine.distributed.ranks import common_word, use_own_device

    use_own_device()
    word, place_of_main = common_word(None)
    if not re.fullmatch("[0-9a-f]{16}", word):
        # As a path, it would lead to anyone's orders.
        raise UserError(
            "the message received as rank 0's isn't valid: another program sends to the ports of this pipeline; start "
            "it again in a network that others can't reach (docs/security.md)"
        )
    rank, folder = int(os.environ["RANK"]), directory / ORDERS_FOLDER / word
    write_json(own := folder / f"rank-{rank}.json", own_place())
    number = 0
    while True:
        number += 1
        path = folder / f"{number:06d}.json"
        while not path.exists():
            # Look for the order again: rank 0 may have written it right before it ended.
            if has_ended(place_of_main) and not path.exists():
                raise UserError("rank 0 has ended, and so this process; add --resume")
            time.sleep(LOOK_AGAIN_SECONDS)
        order: dict[str, Any] = read_json(path)
        if "end" in order:
            own.unlink(missing_ok=True)
            if order["end"]:
                raise RemoteError("the pipeline has failed on rank 0")
            return
        module, _, name = order["call"].partition(":")
        getattr(importlib.import_module(module), name)(**order["values"])


def _has_ended(file: Path) -> bool:
    """Return whether the process that a file names was on this machine and has ended."""
    from vaak.engine.distributed.launcher import has_ended

    try:
        return has_ended(read_json(file))
    except FileNotFoundError:
        # It hasn't come yet.
        return False


Task = TypeVar("Task")
Result = TypeVar("Result")
RESUME_REMEDY = "--resume continues with what is missing, perhaps with fewer --num-jobs"


@dataclass(frozen=True)
class Jobs:
    """The processes that work at once, and where; ``helpers`` are those that torchrun started with this one."""

    executor: Literal["local", "ray"] = "local"
    num_jobs: int = 1
    helpers: Helpers | None = None

    def map(
        self, begin: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task]
    ) -> Iterator[tuple[Task, Result]]:
        """Yield each task with its result as it finishes.

        Each process calls ``begin``, which has to pickle, for the function that does its tasks.

        Raises what a task raises, and UserError if a process is lost.
        """
        if self.executor == "local" and min(self.num_jobs, len(tasks)) < 2:
            return in_processes(begin, tasks, 1, RESUME_REMEDY)
        carried = _Carried(_UsersFiles(users_files()), begin)
        if self.executor == "ray":
            return _map_on_ray(carried, tasks, self.num_jobs)
        return in_processes(carried, tasks, self.num_jobs, RESUME_REMEDY)


@dataclass(frozen=True)
class _UsersFiles:
    """Users' files; a process that receives them has imported them."""

    paths: tuple[Path, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _imported, (self.paths,)


def _imported(paths: tuple[Path, ...]) -> _UsersFiles:
    for path in paths:
        import_file(path)
    return _UsersFiles(paths)


@dataclass(frozen=True)
class _Carried:
    """A function for other processes, which may be in a user's file: that comes first, since fields come in order."""

    files: _UsersFiles
    function: Callable[[], Any]

    def __call__(self) -> Any:
        return self.function()


def _map_on_ray(
    begin: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], num_jobs: int
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, computed by actors of Ray."""

    class Worker:
        def __init__(self) -> None:
            self.function = begin()

        def do(self, task: Task) -> Result:
            return self.function(task)

    with _ray(num_jobs) as ray:
        actor: Any = ray.remote(Worker)
        idle = [actor.remote() for _ in range(min(num_jobs, len(tasks)))]
        rest, running = iter(tasks), dict[Any, tuple[Any, Task]]()
        while True:
            # As many tasks as actors are on their way; whichever ends first gets the next one.
            for task in islice(rest, len(idle)):
                worker = idle.pop()
                running[worker.do.remote(task)] = worker, task
            if not running:
                return
            (done, *_), _ = ray.wait([*running])
            worker, task = running.pop(done)
            idle.append(worker)
            yield task, ray.get(done)


@contextlib.contextmanager
def _ray(num_cpus: int) -> Iterator[Any]:
    """Ray, connected to the cluster that RAY_ADDRESS names, or to one of this machine that ends with the context.

    Raises UserError if it isn't installed or loses a process, and what a task raised.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--executor ray requires Ray: pip install 'vaak[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = not ray.is_initialized()
    if started:
        # Ray refuses the resources of a cluster that is already there.
        own: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": num_cpus, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield ray
    except ray.exceptions.RayActorError as error:
        raise UserError(f"a process on Ray was lost, often because memory ran out; {RESUME_REMEDY}") from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        if started:
            ray.shutdown()
