"""The loader: torch's own, over addresses of microbatches, started at any of them.

One iteration spans the whole rest of the run, so workers never wait for an epoch to end, and starting in the middle
costs the same as starting at the beginning.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Sized
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import cast

import torch
from torch._C import _error_if_any_worker_fails

from vaak.config.training import PerformanceConfig
from vaak.core.child_processes import begin_as_worker
from vaak.core.cores import cores_of_a_process
from vaak.core.errors import UserError
from vaak.core.task import Dataset
from vaak.data.plan import BatchPlan, Planner
from vaak.data.reader import Address, Microbatch, MicrobatchReader

READ_AHEAD_SECONDS = 0.001
_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""Of every loader of this process, as long as torch keeps them."""
_fetching: list[object] = []
"""The loaders that the main thread waits for."""


def training_addresses(
    planner: Planner, microbatches_per_step: int, *, step: int, epoch: int, place: int, rank: int, world_size: int
) -> Iterator[Address]:
    """Addresses of this rank's microbatches, without end, from microbatch ``place`` of ``epoch`` on.

    ``step`` is the optimizer step that begins there. Rank r of w takes the microbatches r, r + w, ... of each step, so
    the steps are the same whatever the number of ranks; the last step of an epoch may be shorter.

    ``planner`` plans each epoch. A step has ``microbatches_per_step`` microbatches over all ranks; ``rank`` is r and
    ``world_size`` is w.
    """
    while True:
        plan = planner.plan(epoch)
        for first in range(place, len(plan), microbatches_per_step):
            step += 1
            size = min(microbatches_per_step, len(plan) - first)
            for number in range(rank, size, world_size):
                at = first + number
                yield Address(step, number, epoch, plan.microbatch(at), plan.occurrence(at))
        epoch, place = epoch + 1, 0


def evaluation_addresses(plan: BatchPlan, rank: int, world_size: int) -> Iterator[Address]:
    """Every ``world_size``-th microbatch of an evaluation plan, from ``rank`` on."""
    for number in range(rank, len(plan), world_size):
        yield Address(step=0, number=number, epoch=0, rows=plan.microbatch(number))


def load(
    reader: MicrobatchReader, addresses: Iterable[Address], options: PerformanceConfig, pin_memory: bool
) -> Generator[Microbatch, None, None]:
    """The microbatches at these addresses, in order, read by ``num_workers`` processes, or by this one.

    The processes end when the iteration is closed, or with their parent. Raises what the reader raises.
    """
    workers = num_workers(options, reader.dataset)
    if not workers:
        for read in _in_bursts(_ErrorsAsValues(reader), iter(addresses)):
            if isinstance(read, UserError):
                raise read
            yield read.pin_memory() if pin_memory else read
        return
    loader = torch.utils.data.DataLoader(
        _ErrorsAsValues(reader),
        batch_size=None,
        sampler=cast("Sized", _Addresses(addresses)),  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_as_read,  # type: ignore[arg-type]
        pin_memory=pin_memory,
        generator=torch.Generator(),  # separate: the loader draws a seed that must not come from the model's generator
        prefetch_factor=options.prefetch_factor,
        worker_init_fn=_start_worker,
    )
    batches = iter(loader)
    started = cast("list[BaseProcess]", getattr(batches, "_workers", []))
    _workers.update(started)
    for worker in started:
        _end_when_told(worker)
    _raise_only_while_fetching()
    try:
        while True:
            with naming_lost_workers(ConnectionError, EOFError, FileNotFoundError):
                found = _fetched(batches)
            if found is None:
                return
            if isinstance(found, UserError):
                raise found
            yield found
    finally:
        # At once: an exception keeps this frame, and what it holds, as long as somebody has it. And freed with it
        # by the garbage collector, the queues to the workers close first, so that these never hear of the end.
        batches._shutdown_workers()  # type: ignore[attr-defined]
        found = None  # else the exception and its frame would hold each other


def _end_when_told(worker: BaseProcess) -> None:
    """Have ``terminate``, by which torch and Python's exit end a worker, kill it: workers ignore SIGTERM.

    Schedulers send that to all processes of a job, and a worker is to live until its run has saved.
    """
    popen = worker._popen  # type: ignore[attr-defined]
    popen.terminate = popen.kill


def _fetched(batches: Iterator[Microbatch | UserError]) -> Microbatch | UserError | None:
    """What the workers read next; None at the end. Raises RuntimeError where one of them has been lost."""
    _fetching.append(batches)
    try:
        _error_if_any_worker_fails()
        return next(batches, None)
    finally:
        _fetching.pop()


def _raise_only_while_fetching() -> None:
    """Keep torch from raising the loss of a worker wherever Python is: code that catches all errors would hide it."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        return
    raising = signal.getsignal(signal.SIGCHLD)
    if not callable(raising) or getattr(raising, "of_vaak", False):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if _fetching:
            raising(number, frame)

    handle.of_vaak = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGCHLD, handle)


def num_workers(options: PerformanceConfig, dataset: Dataset) -> int:
    """The processes that load ``dataset``: as many as the options say, or half of the cores where these leave it open.

    Those are at most as many as are of use for the dataset; the other cores train. Nothing read depends on it.
    """
    if options.num_workers is not None:
        return options.num_workers
    return min(dataset.useful_workers, cores_of_a_process() // 2)


def _in_bursts(reader: _ErrorsAsValues, addresses: Iterator[Address]) -> Iterator[Microbatch | UserError]:
    """What is read at these addresses, in order; as much at once as takes a millisecond.

    Between two steps of a small model, the processor's caches have forgotten how to read: one microbatch alone then
    takes longer than one of several.
    """
    for address in addresses:
        end = time.perf_counter() + READ_AHEAD_SECONDS
        burst = [reader[address]]
        while time.perf_counter() < end and (following := next(addresses, None)) is not None:
            burst.append(reader[following])
        yield from burst


@contextlib.contextmanager
def naming_lost_workers(*signs: type[Exception]) -> Iterator[None]:
    """Within this context, the loss of a worker is a UserError.

    The other workers are killed. ``signs`` are other exceptions that come of nothing else here: a worker may end while
    it hands over a batch.
    """
    kinds: tuple[type[Exception], ...] = (RuntimeError, *signs)
    try:
        yield
    except kinds as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
            raise
        for worker in _workers:
            worker.kill()  # the lost one may have held the queue's lock, which the others would wait for without end
        raise UserError(
            f"a process that loads data was killed from outside, often because memory ran out ({error}); resume with "
            "--resume auto, perhaps with fewer training.performance.num_workers"
        ) from error


class _ErrorsAsValues(torch.utils.data.Dataset[Microbatch | UserError]):
    """The reader, with errors handed over: those raised in a worker reach us wrapped in its whole traceback."""

    def __init__(self, reader: MicrobatchReader) -> None:
        self.reader = reader

    def __getitem__(self, address: Address) -> Microbatch | UserError:
        try:
            return self.reader[address]
        except UserError as error:
            return error


class _Addresses:
    """A sampler of torch's that yields addresses."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.addresses = addresses

    def __iter__(self) -> Iterator[Address]:
        return iter(self.addresses)


def _as_read(read: Microbatch | UserError) -> Microbatch | UserError:
    return read


def _start_worker(worker: int) -> None:
    begin_as_worker()
