"""Load microbatches by their addresses, in this process or with torch's DataLoader and its workers.

An address says which examples of which epoch are in which rows. Each example is read with random generators seeded by
``(seed, epoch, index, occurrence)``, so what a dataset draws depends on nothing else, such as the order of reading or
the number of workers.

One iteration of the loader spans the whole rest of the run: workers never wait for the end of an epoch, and starting in
the middle costs the same as starting at the beginning.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F

from vaak.config.training import PerformanceConfig
from vaak.core.batch import Batch, require_kind
from vaak.core.errors import DataError, HostMemoryError, MissingPackageError, UserError, is_panic
from vaak.core.interrupts import begin_as_worker
from vaak.core.machine import collecting_no_garbage, count_own_cores
from vaak.core.out_of_memory import is_host_error
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset, Padding
from vaak.core.torch_internals import end_workers, iterate_with_workers, require_workers_alive, terminate_by_kill
from vaak.data import workers
from vaak.data.plan import BatchPlan, Planner
from vaak.data.read_ahead import ReadAhead
from vaak.data.waiting import waited_for


@dataclass(frozen=True)
class Address:
    """A microbatch by its optimizer step, its number within the step, and its rows of example indices.

    ``occurrence`` distinguishes its examples from their repeats in the same epoch (``BatchPlan.occurrence``).
    """

    step: int
    number: int
    epoch: int
    rows: list[list[int]]
    occurrence: int = 0


@dataclass(frozen=True)
class Skip:
    """An example that could not be read and was skipped."""

    epoch: int
    index: int
    description: str
    reason: str
    occurrence: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """The example and its occurrence, as in the journal of skipped examples."""
        return self.epoch, self.index, self.occurrence


@dataclass
class Microbatch:
    """A batch that has been read, and the examples that were skipped. ``batch`` is None if all were."""

    address: Address
    batch: Batch | None
    skipped: list[Skip] = field(default_factory=list)

    def pin_memory(self) -> Microbatch:
        pinned = self.batch.pin_memory() if self.batch else None
        return Microbatch(self.address, pinned, self.skipped)


class MicrobatchReader(torch.utils.data.Dataset[Microbatch]):
    """Reads the microbatch at an address: ``reader[address]``.

    The random draws of ``dataset``'s examples depend on ``seed``, and on ``purpose``, which keeps those of training
    apart from those of each evaluation split. ``known_bad`` lists the keys (epoch, index, occurrence) of examples that
    the journal says were skipped: they are skipped again without being read. Batches are padded to multiples of
    ``round_lengths`` positions.

    Raises DataError that names an example that can't be read, unless ``skip_bad``. Raises HostMemoryError if the
    machine has no memory left to read it; such an example is never skipped, because it may be readable later.
    """

    def __init__(
        self,
        dataset: Dataset,
        purpose: tuple[Purpose, *tuple[str, ...]],
        seed: int,
        *,
        skip_bad: bool = False,
        known_bad: Collection[tuple[int, int, int]] = (),
        round_lengths: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.purpose = purpose
        self.seed = seed
        self.skip_bad = skip_bad
        self.known_bad = frozenset(known_bad)
        self.round_lengths = round_lengths
        self.generator = seed_generators if dataset.draws_globally else make_generator

    def __getitem__(self, address: Address) -> Microbatch:
        skipped: list[Skip] = []
        rows = [[self._read_example(address, index, skipped) for index in row] for row in address.rows]
        indices = address.rows
        if skipped:
            left_out = {skip.index for skip in skipped}
            indices = [row for row in ([index for index in row if index not in left_out] for row in indices) if row]
            rows = [row for row in ([example for example in row if example is not None] for row in rows) if row]
        batch = self._collate(rows) if rows else None
        if batch is not None:
            batch.indices = indices
            batch.check_rows()
        return Microbatch(address, batch, skipped)

    def _read_example(self, address: Address, index: int, skipped: list[Skip]) -> Any:
        epoch, occurrence = address.epoch, address.occurrence
        if self.known_bad and (epoch, index, occurrence) in self.known_bad:
            skipped.append(Skip(epoch, index, self.dataset.describe(index), "skipped before", occurrence))
            return None
        rng = self.generator(draw_key(self.purpose[0], *self.purpose[1:], self.seed, epoch, index, occurrence))
        try:
            return self.dataset.example(index, rng)
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            reason, where = f"{type(error).__name__}: {error}", f"example {index} ({self.dataset.describe(index)})"
            if is_host_error(error):
                raise HostMemoryError(_short_of_memory(f"{where} was read", reason)) from error
            if self.skip_bad and not isinstance(error, MissingPackageError):
                skipped.append(Skip(epoch, index, self.dataset.describe(index), reason, occurrence))
                return None
            if isinstance(error, DataError):
                # Its message already names the file.
                raise DataError(f"{error}; or leave such examples out with data.on_bad_example: skip") from error
            if isinstance(error, UserError):
                raise
            raise DataError(f"{where} can't be read: {reason}; fix it, or set data.on_bad_example: skip") from error

    def _collate(self, rows: list[list[Any]]) -> Batch:
        try:
            batch = self.dataset.collate(rows)
            require_kind(batch, Batch, f"{type(self.dataset).__name__}.collate(rows)")
            if self.round_lengths is not None:
                pad_to_multiple(batch, self.dataset.padding(batch), self.round_lengths)
            return batch
        except Exception as error:
            if not is_host_error(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise HostMemoryError(_short_of_memory(f"a batch of {len(rows)} rows was put together", reason)) from error


def pad_to_multiple(batch: Batch, padding: Mapping[str, Padding], multiple: int) -> None:
    """Pad the tensors that ``padding`` names, in place, to a multiple of ``multiple`` of their steps.

    A tensor never becomes longer than the ``longest`` of its padding.
    """
    for name, (value, axis, step, longest) in padding.items():
        if name not in batch.tensors:
            continue
        tensor = batch.tensors[name]
        length = tensor.shape[axis]
        rounded = -(-length // (multiple * step)) * multiple * step
        missing = (rounded if longest is None else min(rounded, longest)) - length
        if missing > 0:
            after = (0, 0) * (tensor.ndim - 1 - axis)
            batch.tensors[name] = F.pad(tensor, (*after, 0, missing), value=value)


def _short_of_memory(when: str, reason: str) -> str:
    return (
        f"the machine ran out of memory or open files while {when} ({reason}): end other processes, lower "
        "training.performance.num_workers, or shorten examples that are too large, and resume with --resume auto"
    )


def seed_generators(key: int) -> np.random.Generator:
    """Seed Python's, NumPy's and torch's global CPU generators with ``key``, and return a new NumPy generator.

    Datasets should use the one returned; the global ones are seeded because libraries draw from them.
    """
    random.seed(key)
    np.random.seed(key)
    torch.default_generator.manual_seed(key)
    return make_generator(key)


def make_generator(key: int) -> np.random.Generator:
    """Return a NumPy ``Generator`` seeded with ``key``."""
    return np.random.Generator(np.random.PCG64(_HashedKey(key)))  # type: ignore[arg-type]


class _HashedKey(np.random.bit_generator.ISeedSequence):
    """Seeds a bit generator with the hash of a key, which is faster than NumPy's SeedSequence."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(hashlib.blake2b(self.key.to_bytes(4, "little"), digest_size=size).digest(), dtype)


BURST_SECONDS = 0.001
_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""The workers of all loaders of this process, as long as torch keeps them."""
_fetching: list[object] = []
"""The loaders that the main thread is waiting for."""


def training_addresses(
    planner: Planner,
    microbatches_per_step: int,
    ahead: ReadAhead | None = None,
    /,
    *,
    step: int,
    epoch: int,
    place: int,
    rank: int,
    world_size: int,
) -> Iterator[Address]:
    """Yield the addresses of this rank's microbatches, without end, from microbatch ``place`` of ``epoch`` on.

    ``step`` is the number of optimizer steps before that place. A step has ``microbatches_per_step`` microbatches over
    all ranks; the last step of an epoch may have fewer. Rank r of w takes the microbatches r, r + w, ... of each step,
    so the steps are the same for any number of ranks. ``planner`` plans each epoch; ``ahead`` is told the place in the
    plan, to read the files of the next examples in advance.
    """
    while True:
        plan = planner.plan(epoch)
        for first in range(place, len(plan), microbatches_per_step):
            step += 1
            size = min(microbatches_per_step, len(plan) - first)
            if ahead is not None:
                ahead.reach(epoch, plan, first)
            for number in range(rank, size, world_size):
                at = first + number
                yield Address(step, number, epoch, plan.microbatch(at), plan.occurrence(at))
        epoch, place = epoch + 1, 0


def evaluation_addresses(plan: BatchPlan, rank: int, world_size: int) -> Iterator[Address]:
    """Yield the addresses of every ``world_size``-th microbatch of an evaluation plan, starting with ``rank``."""
    for number in range(rank, len(plan), world_size):
        yield Address(step=0, number=number, epoch=0, rows=plan.microbatch(number))


def load(
    reader: MicrobatchReader, addresses: Iterable[Address], options: PerformanceConfig, pin_memory: bool
) -> Generator[Microbatch, None, None]:
    """Yield the microbatches at these addresses, in order, read by ``num_workers`` processes, or by this one.

    Workers end when the iteration is closed, or with their parent. Raises the errors of the reader, and UserError if a
    worker was killed.
    """
    num_processes = num_workers(options, reader.dataset)
    if not num_processes:
        return _load_here(reader, addresses, pin_memory)
    return _load_with_workers(reader, addresses, options, pin_memory, num_processes)


def _load_here(
    reader: MicrobatchReader, addresses: Iterable[Address], pin_memory: bool
) -> Generator[Microbatch, None, None]:
    """Yield the microbatches at these addresses, read by this process."""
    reads = _read_in_bursts(_ErrorsAsValues(reader), iter(addresses))
    while True:
        with waited_for():
            read = next(reads, None)
        if read is None:
            return
        if isinstance(read, UserError):
            raise read
        yield read.pin_memory() if pin_memory else read


def _load_with_workers(
    reader: MicrobatchReader,
    addresses: Iterable[Address],
    options: PerformanceConfig,
    pin_memory: bool,
    num_processes: int,
) -> Generator[Microbatch, None, None]:
    """Yield the microbatches at these addresses, read by ``num_processes`` workers."""
    context, dataset = workers.choose_start_method(_ErrorsAsValues(reader), type(reader.dataset).__qualname__, options)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=None,
        sampler=cast("Sized", _Addresses(addresses)),  # type: ignore[arg-type]
        num_workers=num_processes,
        collate_fn=_return_unchanged,  # type: ignore[arg-type]
        pin_memory=pin_memory,
        # The loader draws a base seed for its workers, which must not come from the model's generator.
        generator=torch.Generator(),
        prefetch_factor=options.prefetch_factor,
        multiprocessing_context=context,
        worker_init_fn=_start_worker,
    )
    with naming_lost_workers(ConnectionError, EOFError, BlockingIOError), collecting_no_garbage():
        # The forkserver process can be lost, too.
        batches, started = iterate_with_workers(loader)
    _workers.update(started)
    for worker in started:
        # Schedulers send SIGTERM to all processes of a job; workers ignore it until the run has saved.
        terminate_by_kill(worker)
    _raise_only_while_fetching()
    try:
        while True:
            with naming_lost_workers(ConnectionError, EOFError, FileNotFoundError), waited_for():
                found = _fetch_next(batches, started)
            if found is None:
                return
            if isinstance(found, UserError):
                raise found
            yield found
    finally:
        # Not left to the garbage collector: an exception keeps this frame alive as long as somebody keeps the
        # exception, and the queues to the workers may be freed first, so that these are never told to end.
        end_workers(batches, started)
        # Breaks the reference cycle of an exception and its frame.
        found = None


def start_early(reader: MicrobatchReader, options: PerformanceConfig) -> None:
    """Begin the slow part of ``load`` in the background, where a GPU is used (``vaak.data.workers``)."""
    if num_workers(options, reader.dataset):
        workers.start_early(_ErrorsAsValues(reader), options)


def _fetch_next(
    batches: Iterator[Microbatch | UserError], started: Collection[BaseProcess]
) -> Microbatch | UserError | None:
    """Return the next microbatch or error of the workers; None at the end. Raises RuntimeError for a lost worker."""
    _fetching.append(batches)
    try:
        require_workers_alive(started)
        return next(batches, None)
    finally:
        _fetching.pop()


def _raise_only_while_fetching() -> None:
    """Let torch's SIGCHLD handler raise only while batches are fetched.

    It raises an error for a lost worker wherever Python happens to be, and code that catches all errors would hide it.
    """
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
    """Return the number of processes that load ``dataset``; 0 means that this process loads it.

    Unless the options give a number, it is half of the cores, as the others train, but at most as many as are useful
    for the dataset. Batches don't depend on it.
    """
    if options.num_workers is not None:
        return options.num_workers
    return min(dataset.useful_workers, count_own_cores() // 2)


def _read_in_bursts(reader: _ErrorsAsValues, addresses: Iterator[Address]) -> Iterator[Microbatch | UserError]:
    """Yield the microbatches at these addresses, in order, read in bursts of a millisecond.

    A small model's step evicts the reader's code and data from the processor's caches, so one microbatch at a time
    takes longer than several in a row.
    """
    for address in addresses:
        end = time.perf_counter() + BURST_SECONDS
        burst = [reader[address]]
        while time.perf_counter() < end and (following := next(addresses, None)) is not None:
            burst.append(reader[following])
        yield from burst


@contextlib.contextmanager
def naming_lost_workers(*signs: type[Exception]) -> Iterator[None]:
    """Within this context, turn the loss of a worker into a UserError, and kill the other workers.

    ``signs`` are further exceptions that only a lost worker can cause here, such as one that dies while it sends a
    batch. Raises HostMemoryError if the worker met a limit of the machine.
    """
    kinds: tuple[type[Exception], ...] = (RuntimeError, OSError, *signs)
    try:
        yield
    except kinds as error:
        is_lost = str(error).startswith("DataLoader worker")
        # Outside of the loader's own calls, a limit may have another cause.
        limit = workers.name_limit(error) if is_lost or signs else None
        if limit is None and not (is_lost or isinstance(error, signs)):
            raise
        for worker in _workers:
            # The lost worker may have held the queue's lock, for which the others would wait forever.
            worker.kill()
        if limit is not None:
            raise HostMemoryError(limit) from error
        raise UserError(
            f"a data loader worker was killed from outside, often because memory ran out ({error}); resume with "
            "--resume auto, perhaps with a lower training.performance.num_workers"
        ) from error


class _ErrorsAsValues(torch.utils.data.Dataset[Microbatch | UserError]):
    """The reader, with users' errors returned instead of raised: torch would wrap them in the worker's traceback."""

    def __init__(self, reader: MicrobatchReader) -> None:
        self.reader = reader

    def __getitem__(self, address: Address) -> Microbatch | UserError:
        try:
            return self.reader[address]
        except UserError as error:
            return error


class _Addresses:
    """A sampler for torch's DataLoader that yields addresses."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.addresses = addresses

    def __iter__(self) -> Iterator[Address]:
        return iter(self.addresses)


def _return_unchanged(read: Microbatch | UserError) -> Microbatch | UserError:
    return read


def _start_worker(worker: int) -> None:
    # Destructors of inherited objects may wait for threads that only the parent has, as those of onnxruntime's sessions
    # do, which never returned. Frozen objects aren't collected.
    gc.freeze()
    gc.enable()
    begin_as_worker()
    workers.send_what_fails()
