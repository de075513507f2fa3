"""Tasks shared out to worker processes."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from vaak.core.errors import UserError
from vaak.core.interrupts import begin_as_worker

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_processes(
    begin: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], num_jobs: int, remedy: str
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result as it finishes, in ``num_jobs`` processes, or in this one if one is enough.

    Each process calls ``begin``, which has to pickle, for the function that does its tasks. No more results wait than
    two for each process. Raises what a task raises; where a process was killed, UserError with the ``remedy``.
    """
    num_jobs = min(num_jobs, len(tasks))
    if num_jobs < 2:
        function = begin() if tasks else None
        for task in tasks:
            assert function is not None
            yield task, function(task)
        return
    # A fork would share what torch's threads and CUDA hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, context, _begin, (begin,)) as pool:
        rest, running = iter(tasks), dict[Future[Result], Task]()
        try:
            while True:
                for task in islice(rest, 2 * num_jobs - len(running)):
                    running[pool.submit(_run_function, task)] = task
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        except BrokenProcessPool as error:
            raise UserError(f"a process was killed, often because memory ran out; {remedy}") from error
        finally:
            # Waits for what is being made: files are ours that long.
            pool.shutdown(cancel_futures=True)


_functions: list[Callable[[Any], Any]] = []
"""The one of this process, if it belongs to a pool."""


def _begin(begin: Callable[[], Callable[[Any], Any]]) -> None:
    begin_as_worker()
    _functions.append(begin())
    if "torch" in sys.modules:
        # The processes share the cores.
        sys.modules["torch"].set_num_threads(1)


def _run_function(task: Any) -> Any:
    return _functions[0](task)
