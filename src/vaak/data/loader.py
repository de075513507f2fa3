"""Loads the batch at a microbatch's address, by workers in any order; the loader is torch's own.

An address says which examples, in which rows, of which epoch. Each example is read with generators seeded by
``(seed, epoch, index, occurrence)``; nothing else that a dataset could draw from survives from one example to the next.

One iteration of the loader spans the whole rest of the run, so workers never wait for an epoch to end, and starting in
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
from vaak.core.machine import cores_of_a_process
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

    ``occurrence`` tells its examples from their repeats in the same epoch (BatchPlan.occurrence).
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
        """The example, and the reading of it that this was."""
        return self.epoch, self.index, self.occurrence


@dataclass
class Microbatch:
    """A batch that has been read, and what had to be skipped. ``batch`` is None where nothing is left."""

    address: Address
    batch: Batch | None
    skipped: list[Skip] = field(default_factory=list)

    def pin_memory(self) -> Microbatch:
        pinned = self.batch.pin_memory() if self.batch else None
        return Microbatch(self.address, pinned, self.skipped)


class MicrobatchReader(torch.utils.data.Dataset[Microbatch]):
    """``reader[address]`` is that microbatch.

    ``purpose`` keeps the draws of training (``data``) apart from those of each evaluation split. ``known_bad`` are
    (epoch, index, occurrence) that were skipped before, as the journal says: they are skipped again without a try.

    ``dataset`` has the examples; their random draws depend on ``seed``. Batches are padded to multiples of
    ``round_lengths`` positions.

    Raises DataError naming the example that can't be read, unless ``skip_bad``; HostMemoryError where the machine has
    no memory left to read it, which is never skipped: another time it can be read.
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
        rows = [[self._example(address, index, skipped) for index in row] for row in address.rows]
        indices = address.rows
        if skipped:
            left_out = {skip.index for skip in skipped}
            indices = [row for row in ([index for index in row if index not in left_out] for row in indices) if row]
            rows = [row for row in ([example for example in row if example is not None] for row in rows) if row]
        batch = self._collated(rows) if rows else None
        if batch is not None:
            batch.indices = indices
            batch.check_rows()
        return Microbatch(address, batch, skipped)

    def _example(self, address: Address, index: int, skipped: list[Skip]) -> Any:
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
                # It names the file.
                raise DataError(f"{error}; or leave such examples out by data.on_bad_example: skip") from error
            if isinstance(error, UserError):
                raise
            raise DataError(f"{where} can't be read: {reason}; fix it, or set data.on_bad_example: skip") from error

    def _collated(self, rows: list[list[Any]]) -> Batch:
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
    """Make those of a batch's tensors longer that ``padding`` names: to a multiple of ``multiple`` of its steps."""
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
        "training.performance.num_workers, or shorten what is too large to be read, and resume with --resume auto"
    )


def seed_generators(key: int) -> np.random.Generator:
    """Seed Python's, NumPy's and torch's CPU generators with ``key`` and return one of NumPy's new kind.

    Datasets are to use the one returned; the global ones are seeded because libraries draw from all of them.
    """
    random.seed(key)
    np.random.seed(key)
    torch.default_generator.manual_seed(key)
    return make_generator(key)


def make_generator(key: int) -> np.random.Generator:
    """A generator of NumPy's new kind, seeded by ``key``."""
    return np.random.Generator(np.random.PCG64(_HashedKey(key)))  # type: ignore[arg-type]


class _HashedKey(np.random.bit_generator.ISeedSequence):
    """A key as the seed of a bit generator: its hash, in less time than NumPy's SeedSequence takes."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(hashlib.blake2b(self.key.to_bytes(4, "little"), digest_size=size).digest(), dtype)


READ_AHEAD_SECONDS = 0.001
_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""The workers of every loader of this process, as long as torch keeps them."""
_fetching: list[object] = []
"""The loaders whose workers the main thread waits for."""


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
    """Addresses of this rank's microbatches, without end, from microbatch ``place`` of ``epoch`` on.

    ``step`` is the optimizer step that begins there. Rank r of w takes the microbatches r, r + w, ... of each step, so
    the steps are the same whatever the number of ranks; the last step of an epoch may be shorter.

    ``planner`` plans each epoch, and ``ahead`` reads what comes next. A step has ``microbatches_per_step`` microbatches
    over all ranks; ``rank`` is r and ``world_size`` is w.
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
    """Every ``world_size``-th microbatch of an evaluation plan, from ``rank`` on."""
    for number in range(rank, len(plan), world_size):
        yield Address(step=0, number=number, epoch=0, rows=plan.microbatch(number))


def load(
    reader: MicrobatchReader, addresses: Iterable[Address], options: PerformanceConfig, pin_memory: bool
) -> Generator[Microbatch, None, None]:
    """The microbatches at these addresses, in order, read by ``num_workers`` processes, or by this one.

    The processes end when the iteration is closed, or with their parent. Raises what the reader raises.
    """
    num_processes = num_workers(options, reader.dataset)
    if not num_processes:
        reads = _read_in_bursts(_ErrorsAsValues(reader), iter(addresses))
        while True:
            with waited_for():
                read = next(reads, None)
            if read is None:
                return
            if isinstance(read, UserError):
                raise read
            yield read.pin_memory() if pin_memory else read
    context, dataset = workers.how_to_start(_ErrorsAsValues(reader), type(reader.dataset).__qualname__, options)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=None,
        sampler=cast("Sized", _Addresses(addresses)),  # type: ignore[arg-type]
        num_workers=num_processes,
        collate_fn=_as_read,  # type: ignore[arg-type]
        pin_memory=pin_memory,
        # Separate: the loader draws a seed that must not come from the model's generator.
        generator=torch.Generator(),
        prefetch_factor=options.prefetch_factor,
        multiprocessing_context=context,
        worker_init_fn=_start_worker,
    )
    with naming_lost_workers(ConnectionError, EOFError, BlockingIOError), _collecting_no_garbage():
        # The process that forks workers can be lost, too.
        batches, started = iterate_with_workers(loader)
    _workers.update(started)
    for worker in started:
        # Schedulers send SIGTERM to all processes of a job: a worker lives until its run has saved.
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
        # At once: an exception keeps this frame, and what it holds, as long as somebody has it. And freed with it
        # by the garbage collector, the queues to the workers close first, so that these never hear of the end.
        end_workers(batches, started)
        # Otherwise the exception and its frame would hold each other.
        found = None


@contextlib.contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Collect no garbage in this context, so that processes forked within it inherit all; see ``_start_worker``."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def start_early(reader: MicrobatchReader, options: PerformanceConfig) -> None:
    """Begin what takes long of ``load``, where a GPU is used, while this process does something else."""
    if num_workers(options, reader.dataset):
        workers.start_early(_ErrorsAsValues(reader), options)


def _fetch_next(
    batches: Iterator[Microbatch | UserError], started: Collection[BaseProcess]
) -> Microbatch | UserError | None:
    """Return what the workers read next; None at the end. Raises RuntimeError where one of them has been lost."""
    _fetching.append(batches)
    try:
        require_workers_alive(started)
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


def _read_in_bursts(reader: _ErrorsAsValues, addresses: Iterator[Address]) -> Iterator[Microbatch | UserError]:
    """Yield the microbatches at these addresses, in order; read as many at once as take a millisecond.

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
    kinds: tuple[type[Exception], ...] = (RuntimeError, OSError, *signs)
    try:
        yield
    except kinds as error:
        is_lost = str(error).startswith("DataLoader worker")
        # Elsewhere, limits are others' to name.
        limit = workers.name_limit(error) if is_lost or signs else None
        if limit is None and not (is_lost or isinstance(error, signs)):
            raise
        for worker in _workers:
            # The lost one may have held the queue's lock, which the others would wait for without end.
            worker.kill()
        if limit is not None:
            raise HostMemoryError(limit) from error
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
    # Destructors of what a fork inherits may wait for threads that only its parent has: that of onnxruntime's sessions
    # never returned.
    gc.freeze()
    gc.enable()
    begin_as_worker()
    workers.send_what_fails()
