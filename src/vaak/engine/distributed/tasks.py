"""Ranks that wait for rank 0 do tasks for it: those of ``in_processes`` and ``in_order``, wherever they are called.

    rank 0's main thread    puts tasks into a queue; does one itself where that is full; yields what is done
    a thread for rank r     sends what rank r asks for, out of the queue, and receives what it has done
    rank r                  receives a function; asks for a task, does it, reports it, until there are no more

Functions, tasks and results are pickled: from one process of this run to another, which knows by ``SignedPeers`` that
it is one before it unpickles anything; never to or from a file. Which rank does a task is a matter of time alone, so
nothing that is made may depend on it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch

from vaak.config.components import with_users_files
from vaak.core.errors import UserError
from vaak.core.interrupts import is_ending
from vaak.core.process_pool import Begin, in_own_processes, shared_with
from vaak.engine.distributed.signed import SignedPeers

log = logging.getLogger("vaak")
Numbered = tuple[int, Any]
"""A task, or its result, after its number."""
ASKS = pickle.dumps(("asks", None))


@dataclass(frozen=True)
class _OfNumbered:
    """``begin`` for numbered tasks, in any process of the rank that has this ``device``."""

    begin: Begin
    device: torch.device

    def __call__(self) -> Callable[[Numbered], Any]:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a worker process begins with the first
        function = self.begin()
        return lambda numbered: function(numbered[1])


class SharedTasks:
    """Rank 0's side: within ``lead``, tasks are done by this process and by all that are in ``help_rank_0``."""

    def __init__(self, ranks: SignedPeers) -> None:
        self.ranks, self.num_processes = ranks, ranks.world_size - 1
        self._results: Generator[Numbered, None, None] | None = None

    def lead(self, function: Callable[[], Any]) -> Any:
        """Return what ``function`` returns; after it, or a UserError of it, the others no longer wait for tasks."""
        with shared_with(self):
            try:
                result = function()
            except UserError:
                if not self.ranks.has_refused:
                    self._release()
                raise
        self._release()
        return result

    def share(
        self, begin: Begin, tasks: Iterable[Any], num_jobs: int, remedy: str, most_ahead: int | None = None
    ) -> Iterator[Numbered]:
        """As in ``OtherProcesses``; where ``begin`` can't be pickled, this process does all tasks itself."""
        self._close()
        work, numbered = _OfNumbered(begin, self.ranks.device), enumerate(tasks)
        try:
            order = pickle.dumps((with_users_files(begin), num_jobs, remedy))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            log.info("rank 0 alone prepares what follows, which can't be sent to others: %s", error)
            found = in_own_processes(work, numbered, 1, remedy)
            self._results = ((number, result) for (number, _), result in found)
            return self._results
        sharing = _Sharing(numbered, most_ahead)
        for rank in range(1, self.ranks.world_size):
            sharing.add_server(_serve, self.ranks, rank, order)
        if num_jobs > 1:  # this rank's processes are served as the other ranks are
            sharing.add_server(_use_own_processes, work, num_jobs, remedy)
        self._results = sharing.results(work if num_jobs < 2 else None)
        return self._results

    def _close(self) -> None:
        """Finish what is being made, where an error of whoever wanted it has left it half-way."""
        if self._results is not None:
            self._results.close()

    def _release(self) -> None:
        """Tell the others that there are no more tasks."""
        self._close()
        for rank in range(1, self.ranks.world_size):
            with contextlib.suppress(UserError):  # one that has ended is named where all meet next
                self.ranks.send(pickle.dumps(None), rank)


class _Sharing:
    """Tasks on their way: ``todo`` are those that a server may take, ``done`` is what servers say of theirs."""

    def __init__(self, tasks: Iterator[Numbered], most_ahead: int | None) -> None:
        self.todo: SimpleQueue[Numbered | None] = SimpleQueue()
        self.done: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._tasks, self._most_ahead = tasks, most_ahead
        self._servers: list[Thread] = []
        self._begun: dict[int, None] = {}  # numbers of tasks that aren't done, in their order
        self._number, self._are_left, self._is_lost = 0, True, False

    def add_server(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Have a thread take tasks from here."""
        self._servers.append(Thread(target=serve, args=(self, *arguments), daemon=True))

    def results(self, work: _OfNumbered | None) -> Generator[Numbered, None, None]:
        """The results of all tasks, as they are done; by ``work``, this thread does some, too."""
        function: Callable[[Numbered], Any] | None = None
        # a server with several processes gives no result before each has two tasks: it never waits for them
        room = math.inf if work is None else len(self._servers)
        for server in self._servers:
            server.start()
        try:
            while self._are_left or self._begun:
                while self.todo.qsize() < room and (task := self._next_task()):
                    self.todo.put(task)
                while not self.done.empty():
                    yield self._finished(*self.done.get())
                if work is not None and (task := self._next_task() or self._taken_back()):
                    with shared_with(None):
                        function = function or work()
                        result = function(task)
                    yield self._finished("done", (task[0], result))
                elif self._begun:
                    yield self._finished(*self.done.get())
        finally:
            self._close()

    def _next_task(self) -> Numbered | None:
        """The next task, if there is one and it may begin now."""
        first = next(iter(self._begun), self._number)
        if not self._are_left or (self._most_ahead is not None and self._number - first >= self._most_ahead):
            return None
        task = next(self._tasks, None)
        if task is None:
            self._are_left = False
            self._end()
        else:
            self._begun[self._number] = None
            self._number += 1
        return task

    def _taken_back(self) -> Numbered | None:
        """A task that no server has taken yet."""
        with contextlib.suppress(Empty):
            if (task := self.todo.get_nowait()) is not None:
                return task
            self.todo.put(None)
        return None

    def _finished(self, kind: str, value: Any) -> Numbered:
        if kind != "done":
            self._is_lost = kind == "lost"
            raise value
        number, result = value
        del self._begun[number]
        return number, result

    def _end(self) -> None:
        """Let each server end when it asks next."""
        for _ in self._servers:
            self.todo.put(None)

    def _close(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self.todo.get_nowait()
        self._end()
        if self._is_lost or is_ending():
            return
        for server in self._servers:
            server.join()  # what is being made is finished: files are ours that long


def _serve(sharing: _Sharing, ranks: SignedPeers, rank: int, order: bytes) -> None:
    """Let a rank do tasks until there are no more, or one fails."""
    try:
        ranks.send(pickle.dumps(order), rank)
        while (said := pickle.loads(ranks.receive(rank)))[0] != "ends":
            if said[0] == "asks":
                ranks.send(pickle.dumps(sharing.todo.get()), rank)
                continue
            sharing.done.put(said)
            if said[0] == "failed":
                return
    except Exception as error:
        sharing.done.put(("lost", error))


def _use_own_processes(sharing: _Sharing, work: _OfNumbered, num_jobs: int, remedy: str) -> None:
    """Do tasks in processes that this one starts."""
    try:
        for (number, _), result in in_own_processes(work, iter(sharing.todo.get, None), num_jobs, remedy):
            sharing.done.put(("done", (number, result)))
    except Exception as error:
        sharing.done.put(("failed", error))


def help_rank_0(ranks: SignedPeers) -> None:
    """Do tasks for rank 0 until it says that there are no more. Raises UserError where it has ended."""
    while (order := pickle.loads(ranks.receive(0))) is not None:
        try:
            begin, num_jobs, remedy = pickle.loads(order)
            work = _OfNumbered(begin, ranks.device)
            for (number, _), result in in_own_processes(work, _asked_for(ranks), num_jobs, remedy):
                ranks.send(pickle.dumps(("done", (number, result))), 0)
            said: tuple[str, Any] = "ends", None
        except Exception as error:  # rank 0 raises it; where that has ended, what follows does
            if ranks.has_refused:
                raise
            said = "failed", _picklable(error, ranks.rank)
        ranks.send(pickle.dumps(said), 0)


def _asked_for(ranks: SignedPeers) -> Iterator[Numbered]:
    while True:
        ranks.send(ASKS, 0)
        task = pickle.loads(ranks.receive(0))
        if task is None:
            return
        yield task


def _picklable(error: Exception, rank: int) -> Exception:
    """The error as another process can raise it; a bug's traceback is added to it."""
    found = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        is_users = isinstance(error, UserError)
        error = UserError(str(error)) if is_users else RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, UserError | OSError):
        error.add_note(f"on rank {rank}:\n{found}")
    return error
