"""Where the pieces of a long stage are made: in processes here, or on a Ray cluster. Their results come back here."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from vaak.config.components import module_of, users_files
from vaak.core.errors import UserError
from vaak.core.process_pool import in_processes
from vaak.pipeline.helpers import Helpers

Task = TypeVar("Task")
Result = TypeVar("Result")

REMEDY = "--resume continues with what is missing, perhaps with fewer --num-jobs"


@dataclass(frozen=True)
class Jobs:
    """How many processes work at once, and where; ``helpers`` are those that torchrun started with this one."""

    executor: Literal["local", "ray"] = "local"
    num_jobs: int = 1
    helpers: Helpers | None = None

    def map(
        self, begin: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task]
    ) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, as they are done.

        Each process calls ``begin``, which has to pickle, for the function that does its tasks.

        Raises what a task raises, and UserError where a process is lost.
        """
        if self.executor == "local" and min(self.num_jobs, len(tasks)) < 2:
            return in_processes(begin, tasks, 1, REMEDY)
        carried = _Carried(_UsersFiles(users_files()), begin)
        if self.executor == "ray":
            return _on_ray(carried, tasks, self.num_jobs)
        return in_processes(carried, tasks, self.num_jobs, REMEDY)


@dataclass(frozen=True)
class _UsersFiles:
    """Users' files; a process that receives them has imported them."""

    paths: tuple[Path, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _imported, (self.paths,)


def _imported(paths: tuple[Path, ...]) -> _UsersFiles:
    for path in paths:
        module_of(path)
    return _UsersFiles(paths)


@dataclass(frozen=True)
class _Carried:
    """A function for other processes, which may be in a user's file: that comes first, since fields come in order."""

    files: _UsersFiles
    function: Callable[[], Any]

    def __call__(self) -> Any:
        return self.function()


def _on_ray(
    begin: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], num_jobs: int
) -> Iterator[tuple[Task, Result]]:
    """The same in actors of Ray."""

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

    Raises UserError where it isn't installed or loses a process, and what a task raised.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--executor ray requires Ray: pip install 'vaak[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = not ray.is_initialized()
    if started:
        own: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": num_cpus, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield ray
    except ray.exceptions.RayActorError as error:
        raise UserError(f"a process on Ray was lost, often because memory ran out; {REMEDY}") from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        if started:
            ray.shutdown()
