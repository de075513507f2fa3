"""From a microbatch's address to its batch: pure, so that any worker in any order gives the same one.

An address says which examples, in which rows, of which epoch. Each example is read with generators seeded by
``(seed, epoch, index, occurrence)``; nothing else that a dataset could draw from survives from one example to the next.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vaak.core.batch import Batch
from vaak.core.errors import DataError, HostMemoryError, UserError
from vaak.core.out_of_memory import is_the_machines_fault
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset, demand_kind


@dataclass(frozen=True)
class Address:
    """Which microbatch: its optimizer step, its number within the step, and its rows of example indices.

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
        """Which reading of which example this was."""
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

    ``dataset`` has the examples; their random draws depend on ``seed``.

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
    ) -> None:
        self.dataset = dataset
        self.purpose = purpose
        self.seed = seed
        self.skip_bad = skip_bad
        self.known_bad = frozenset(known_bad)
        self.generator = seed_generators if dataset.draws_globally else generator_of

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
        except Exception as error:
            reason, where = f"{type(error).__name__}: {error}", f"example {index} ({self.dataset.describe(index)})"
            if is_the_machines_fault(error):
                raise HostMemoryError(_short_of_memory(f"{where} was read", reason)) from error
            if self.skip_bad:
                skipped.append(Skip(epoch, index, self.dataset.describe(index), reason, occurrence))
                return None
            if isinstance(error, DataError):  # it names the file
                raise DataError(f"{error}; or leave such examples out by data.on_bad_example: skip") from error
            if isinstance(error, UserError):
                raise
            raise DataError(f"{where} can't be read: {reason}; fix it, or set data.on_bad_example: skip") from error

    def _collated(self, rows: list[list[Any]]) -> Batch:
        try:
            batch = self.dataset.collate(rows)
            demand_kind(batch, Batch, f"{type(self.dataset).__name__}.collate(rows)")
            return batch
        except Exception as error:
            if not is_the_machines_fault(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise HostMemoryError(_short_of_memory(f"a batch of {len(rows)} rows was put together", reason)) from error


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
    return generator_of(key)


def generator_of(key: int) -> np.random.Generator:
    """A generator of NumPy's new kind, seeded by ``key``."""
    return np.random.Generator(np.random.PCG64(_HashedKey(key)))  # type: ignore[arg-type]


class _HashedKey(np.random.bit_generator.ISeedSequence):
    """A key as the seed of a bit generator: its hash, in less time than NumPy's SeedSequence takes."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(hashlib.blake2b(self.key.to_bytes(4, "little"), digest_size=size).digest(), dtype)
