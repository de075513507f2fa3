"""Who does a task is a matter of time; its results aren't. The ranks here are threads that have queues between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import pytest
import torch

from vaak.core.errors import DataError, UserError
from vaak.core.process_pool import WAITING, in_order, in_processes
from vaak.engine.distributed.signed import KEY_BYTES, SignedPeers
from vaak.engine.distributed.tasks import SharedTasks, help_rank_0

KEY = bytes(range(KEY_BYTES))
done_by: list[tuple[int, int]] = []
"""Tasks with the threads that did them."""
stalled = threading.Event()
"""Set: whoever isn't the first thread waits."""


class Linked:
    """A rank; what one sends comes to the other's queue."""

    device = torch.device("cpu")

    def __init__(self, rank: int, world_size: int, wires: dict[tuple[int, int], SimpleQueue[bytes]]) -> None:
        self.rank, self.world_size, self._wires = rank, world_size, wires

    def send(self, content: bytes, rank: int) -> None:
        self._wires[self.rank, rank].put(content)

    def receive(self, rank: int) -> bytes:
        return self._wires[rank, self.rank].get()


@contextmanager
def leading(world_size: int) -> Iterator[SharedTasks]:
    """Rank 0's side, with helpers that must have ended afterwards."""
    done_by.clear()
    stalled.clear()
    pairs = [(one, other) for one in range(world_size) for other in range(world_size)]
    wires: dict[tuple[int, int], SimpleQueue[bytes]] = {pair: SimpleQueue() for pair in pairs}
    ranks = [SignedPeers(Linked(rank, world_size, wires), KEY) for rank in range(world_size)]
    helpers = [threading.Thread(target=help_rank_0, args=(rank,), daemon=True) for rank in ranks[1:]]
    for helper in helpers:
        helper.start()
    yield SharedTasks(ranks[0])
    for helper in helpers:
        helper.join(10)
        assert not helper.is_alive()


def squares(failing: int | None = None, error: type[Exception] = DataError) -> Callable[[int], int]:
    def square(number: int) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        while not is_main and stalled.is_set():
            time.sleep(0.001)
        if number == failing:
            raise error(f"task {number}")
        done_by.append((number, threading.get_ident()))
        time.sleep(0.002)
        return number**2

    return square


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_results_come_in_the_order_of_the_tasks_whoever_does_them(world_size: int) -> None:
    with leading(world_size) as shared:
        found = shared.lead(lambda: [[*in_order(squares, iter(range(number)))] for number in (0, 1, 40)])
    assert found == [[one**2 for one in range(number)] for number in (0, 1, 40)]
    assert len({thread for _, thread in done_by}) == world_size


def test_each_task_is_done_once() -> None:
    tasks = [7, 7, *range(30)]
    with leading(3) as shared:
        found = shared.lead(lambda: [*in_processes(squares, tasks, 1, "")])
    assert sorted(found) == sorted((task, task**2) for task in tasks)
    assert sorted(task for task, _ in done_by) == sorted(tasks)


def test_no_more_results_wait_for_an_earlier_one_than_memory_is_meant_for() -> None:
    read: list[int] = []

    def reading() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    def release_later() -> None:
        time.sleep(0.5)
        most.append(len(read))
        stalled.clear()

    most: list[int] = []
    with leading(2) as shared:
        stalled.set()
        threading.Thread(target=release_later).start()
        assert shared.lead(lambda: [*in_order(squares, reading())]) == [one**2 for one in range(100)]
    assert 2 <= most[0] <= 2 * WAITING


@pytest.mark.parametrize("error", [DataError, ZeroDivisionError])
def test_what_a_task_raises_is_raised_here_and_the_next_tasks_are_done(error: type[Exception]) -> None:
    def work() -> list[int]:
        for number in range(20):  # done by this thread or another
            with pytest.raises(error, match=f"task {number}"):
                list(in_processes(partial(squares, number, error), range(20), 1, ""))
        return [*in_order(squares, range(5))]

    with leading(3) as shared:
        assert shared.lead(work) == [0, 1, 4, 9, 16]


def test_what_reading_the_tasks_raises_is_raised_here() -> None:
    def reading() -> Iterator[int]:
        yield from range(6)
        raise DataError("texts.txt:7: this isn't text")

    def work() -> None:
        list(in_order(squares, reading()))

    with leading(3) as shared, pytest.raises(DataError, match=r"texts\.txt:7"):
        shared.lead(work)


def test_results_that_nobody_wants_any_more_keep_no_one_waiting() -> None:
    kept = []

    def work() -> None:
        results = in_order(squares, range(50))
        kept.append(results)  # as the traceback of an error does
        assert next(results) == 0
        raise UserError("the disk is full")

    with leading(3) as shared, pytest.raises(UserError, match="the disk is full"):
        shared.lead(work)
    assert len(done_by) < 50


def test_a_function_that_cannot_be_sent_is_called_here_alone() -> None:
    here = threading.Lock()

    def begin() -> Callable[[int], int]:
        return lambda number: number + here.locked()

    with leading(2) as shared:
        assert shared.lead(lambda: [*in_order(begin, range(3))]) == [0, 1, 2]
        assert dict(in_processes(begin, range(3), 1, "")) == {0: 0, 1: 1, 2: 2}


def tasks_of_a_task() -> Callable[[int], list[int]]:
    return lambda number: [*in_order(squares, range(number))]


def test_a_task_that_has_tasks_itself_does_them_itself() -> None:
    with leading(3) as shared:
        assert shared.lead(lambda: [*in_order(tasks_of_a_task, range(8))])[3] == [0, 1, 4]
