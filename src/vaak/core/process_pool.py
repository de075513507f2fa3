"""Tasks shared out to worker processes, and to the other processes of a run that wait meanwhile.

While rank 0 prepares data, its tasks are also done by other ranks, on this machine and others: ``shared_with`` says who
they are, and whoever has tasks doesn't know of it. What a task makes may not depend on the process that does it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar
from itertools import islice
from typing import Any, Protocol, TypeVar

from vaak.core.errors import UserError
from vaak.core.interrupts import begin_as_worker

Task = TypeVar("Task")
Result = TypeVar("Result")
WAITING = 4
Begin = Callable[[], Callable[[Any], Any]]
"""Called once in each process, gives the function that does its tasks. It has to pickle."""


class OtherProcesses(Protocol):
    """Processes that wait for this one, and do tasks for it."""

    num_processes: int

    def share(
        self, begin: Begin, tasks: Iterable[Any], num_jobs: int, remedy: str, most_ahead: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """``in_processes`` by these processes and this one; yields numbers of tasks, from 0, with results.

        ``tasks`` may come one by one. None is begun that comes ``most_ahead`` or more after one that isn't done, which
        requires a ``num_jobs`` of 1.
        """


_others: ContextVar[OtherProcesses | None] = ContextVar("others", default=None)


@contextlib.contextmanager
def shared_with(others: OtherProcesses | None) -> Iterator[None]:
    """Within this context, these processes do tasks, too; with None, no others do."""
    before = _others.get()
    _others.set(others)
    try:
        yield
    finally:
        _others.set(before)


def in_processes(
    begin: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], num_jobs: int, remedy: str
) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, as they are done, in ``num_jobs`` processes, or in this one if one is enough.

    Where other processes wait for this one, each of them does tasks in as many. Each process calls ``begin``, which
    has to pickle, for the function that does its tasks. Of one process's own, no more results wait than two for each
    of its processes. Raises what a task raises; where a process was killed, UserError with the ``remedy``.
    """
    others = _others.get()
    if others is None or len(tasks) < 2:
        yield from in_own_processes(begin, tasks, min(num_jobs, len(tasks)), remedy)
        return
    for number, result in others.share(begin, tasks, num_jobs, remedy):
        yield tasks[number], result


def in_order(begin: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task]) -> Iterator[Result]:
    """The result of each task, in the order of the tasks; where other processes wait for this one, they do some.

    ``begin`` is as in ``in_processes``. Tasks may come one by one: of each process, at most ``WAITING`` of them and
    their results are in memory. Raises what a task raises.
    """
    others = _others.get()
    if others is None:
        yield from map(begin(), tasks)
        return
    early: dict[int, Result] = {}
    place = 0
    for number, result in others.share(begin, tasks, 1, "", WAITING * (1 + others.num_processes)):
        early[number] = result
        while place in early:
            yield early.pop(place)
            place += 1


def in_own_processes(
    begin: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task], num_jobs: int, remedy: str
) -> Iterator[tuple[Task, Result]]:
    """``in_processes`` without others."""
    if num_jobs < 2:
        function = None
        for task in tasks:
            function = function or begin()
            yield task, function(task)
        return
    context = multiprocessing.get_context("spawn")  # a fork would share what torch's threads and CUDA hold
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
            pool.shutdown(cancel_futures=True)  # waits for what is being made: files are ours that long


_functions: list[Callable[[Any], Any]] = []
"""The one of this process, if it belongs to a pool."""


def _begin(begin: Begin) -> None:
    begin_as_worker()
    _functions.append(begin())
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the processes share the cores


def _run_function(task: Any) -> Any:
    return _functions[0](task)
