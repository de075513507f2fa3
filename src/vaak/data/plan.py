"""A plan: which examples are in which microbatch of an epoch, as flat arrays and offsets.

::

    indices            7 2 | 5 | 1 0 | 3 | 6 4      example indices, row after row
    row_starts         0     2   3     5   6   8    offsets into indices; None if every row is one example
    microbatch_starts  0         2           4  5   offsets into rows

A plan is a pure function of (seed, epoch), knows nothing of ranks, and has the same number of microbatches in every
epoch, so the number of steps of a run is known before it starts. Of very many examples it is made in pieces, one at a
time (``vaak.data.pieces``).

A part of a set that has its proportions of groups, as a function of a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from vaak.core.errors import DataError
from vaak.core.random_keys import Purpose, draw_key


class Piece(NamedTuple):
    """Microbatches of an epoch that are planned together: the first ``size`` of those that ``make`` plans."""

    size: int
    make: Callable[[], BatchPlan]


@dataclass(frozen=True)
class BatchPlan:
    """The microbatches of one epoch, in the order in which they are trained on.

    ``passes`` numbers, for each microbatch, the pass over the examples that it belongs to; None if an epoch is one.
    """

    indices: np.ndarray
    row_starts: np.ndarray | None
    microbatch_starts: np.ndarray
    passes: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of microbatches."""
        return len(self.microbatch_starts) - 1

    def microbatch(self, position: int) -> list[list[int]]:
        """Return the rows of one microbatch; each row is a list of example indices."""
        first, last = self.microbatch_starts[position], self.microbatch_starts[position + 1]
        if self.row_starts is None:
            return [[index] for index in self.indices[first:last].tolist()]
        starts = self.row_starts[first : last + 1].tolist()
        return [self.indices[start:end].tolist() for start, end in pairwise(starts)]

    def occurrence(self, position: int) -> int:
        """Return the number of a microbatch's pass, which tells its examples from their repeats in the same epoch."""
        return 0 if self.passes is None else int(self.passes[position])

    @property
    def num_passes(self) -> int:
        """Above all occurrences."""
        return 1 if self.passes is None else int(self.passes.max(initial=0)) + 1

    @property
    def pieces(self) -> Sequence[Piece]:
        """The plan itself, as the only piece of one."""
        return [Piece(len(self), lambda: self)]

    def from_pass(self, first: int) -> BatchPlan:
        """Return the plan, with passes that are numbered from ``first`` on."""
        return replace(self, passes=(np.zeros(len(self), np.int64) if self.passes is None else self.passes) + first)

    def among(self, members: np.ndarray) -> BatchPlan:
        """Return the plan of ``members``, which it numbers from 0, by the numbers that they have among all."""
        return replace(self, indices=members[self.indices])

    def part(self, first: int, last: int) -> BatchPlan:
        """Return the microbatches from ``first`` up to ``last``, which isn't among them."""
        starts = self.microbatch_starts[first : last + 1]
        passes = None if self.passes is None else self.passes[first:last]
        if self.row_starts is None:
            return BatchPlan(self.indices[starts[0] : starts[-1]], None, starts - starts[0], passes)
        rows = self.row_starts[starts[0] : starts[-1] + 1]
        return BatchPlan(self.indices[rows[0] : rows[-1]], rows - rows[0], starts - starts[0], passes)

    def padded_sizes(self, lengths: np.ndarray, multiple: float = 0) -> np.ndarray:
        """Return each microbatch's padded size: its rows times the longest, which is rounded up to a ``multiple``."""
        return count_padded_sizes(*self.shapes(lengths), multiple)

    def shapes(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of each microbatch, and the longest of them."""
        longest = np.maximum.reduceat(self._row_lengths(lengths), self.microbatch_starts[:-1])
        return np.diff(self.microbatch_starts), longest

    def padding_waste(self, lengths: np.ndarray, multiple: float = 0) -> float:
        """The fraction of the padded sizes that is padding, where rows are padded to the longest of their microbatch.

        That is rounded up to a ``multiple``.
        """
        row_lengths = self._row_lengths(lengths)
        padded = float(np.sum(self.padded_sizes(lengths, multiple), dtype=np.float64))
        # Rounded sums may be a little larger than the whole.
        return max(0.0, 1.0 - float(np.sum(row_lengths, dtype=np.float64)) / padded)

    def _row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        row_lengths: np.ndarray = np.asarray(lengths)[self.indices]
        if self.row_starts is None:
            return row_lengths
        return np.add.reduceat(row_lengths, self.row_starts[:-1], dtype=np.float64)

    @property
    def fingerprint(self) -> str:
        """A hash that ranks and resumed runs compare."""
        digest = hashlib.blake2b(digest_size=8)
        repeats = () if self.passes is None else (self.passes,)
        for array in (self.indices, self.row_starts, self.microbatch_starts, *repeats):
            # in one byte order, and with lengths, so that other arrays of the same numbers have another hash
            numbers = np.empty(0, "<i8") if array is None else np.ascontiguousarray(array, "<i8")
            digest.update(len(numbers).to_bytes(8, "little"))
            digest.update(numbers.data)
        return digest.hexdigest()


class Plan(Protocol):
    """The interface of an epoch's plan: a ``BatchPlan``, or one in pieces.

    ``num_passes`` is above all occurrences.
    """

    @property
    def num_passes(self) -> int: ...

    @property
    def pieces(self) -> Sequence[Piece]: ...

    def __len__(self) -> int: ...

    def microbatch(self, position: int) -> list[list[int]]: ...

    def occurrence(self, position: int) -> int: ...

    def part(self, first: int, last: int) -> BatchPlan: ...

    def padded_sizes(self, lengths: np.ndarray, multiple: float = 0) -> np.ndarray: ...

    def padding_waste(self, lengths: np.ndarray, multiple: float = 0) -> float: ...

    @property
    def fingerprint(self) -> str: ...


class Planner(Protocol):
    """Makes the plan of any epoch; its microbatches are equally many in all of them."""

    num_microbatches: int

    def plan(self, epoch: int) -> Plan:
        """Return the plan of an epoch: a pure function of the seed and the epoch."""
        ...


class ArrayPlanner(Protocol):
    """A planner whose plans are whole."""

    num_microbatches: int

    def plan(self, epoch: int) -> BatchPlan: ...


class RenumberedPlanner:
    """A planner of ``members``, which ``planner`` numbers from 0, by the numbers that they have among all."""

    def __init__(self, planner: ArrayPlanner, members: np.ndarray) -> None:
        self._planner, self._members = planner, members
        self.num_microbatches = planner.num_microbatches

    def plan(self, epoch: int) -> BatchPlan:
        return self._planner.plan(epoch).among(self._members)


class PiecewisePlan:
    """The plan of an epoch whose pieces, one after another, are made when they are asked for; the last one is kept."""

    def __init__(self, pieces: Sequence[Piece], num_passes: int = 1) -> None:
        self.pieces, self.num_passes = pieces, num_passes
        self._starts = start_offsets(np.array([piece.size for piece in pieces]))
        self._last: tuple[int, BatchPlan] | None = None

    def __len__(self) -> int:
        """Number of microbatches."""
        return int(self._starts[-1])

    def microbatch(self, position: int) -> list[list[int]]:
        """Return the rows of one microbatch; each row is a list of example indices."""
        number = self._number(position)
        return self._made(number).microbatch(position - int(self._starts[number]))

    def occurrence(self, position: int) -> int:
        """Return the number of a microbatch's pass, as a plan's in one piece."""
        number = self._number(position)
        return self._made(number).occurrence(position - int(self._starts[number]))

    def part(self, first: int, last: int) -> BatchPlan:
        """Return the microbatches from ``first`` up to ``last``, which isn't among them, in one piece."""
        found = []
        for number in range(self._number(first), self._number(last - 1) + 1):
            start, end = self._starts[number : number + 2].tolist()
            found.append(self._made(number).part(max(first, start) - start, min(last, end) - start))
        return one_after_another(found)

    def padded_sizes(self, lengths: np.ndarray, multiple: float = 0) -> np.ndarray:
        """The padded size of each microbatch, as that of a plan in one piece. All pieces are made, one at a time."""
        rows, longest = zip(*(self._made(number).shapes(lengths) for number in range(len(self.pieces))), strict=True)
        return count_padded_sizes(np.concatenate(rows), np.concatenate(longest), multiple)

    def padding_waste(self, lengths: np.ndarray, multiple: float = 0) -> float:
        """Return the fraction of the padded sizes of its first piece that is padding."""
        return self._made(0).padding_waste(lengths, multiple)

    @property
    def fingerprint(self) -> str:
        """A hash of its first piece, and of how many microbatches each has."""
        digest = hashlib.blake2b(self._made(0).fingerprint.encode(), digest_size=8)
        digest.update(np.ascontiguousarray(self._starts, "<i8").data)
        return digest.hexdigest()

    def _number(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def _made(self, number: int) -> BatchPlan:
        if self._last is None or self._last[0] != number:
            # Its memory is for the next.
            self._last = None
            piece = self.pieces[number]
            self._last = number, piece.make().part(0, piece.size)
        return self._last[1]


class LastPlan:
    """A planner that keeps the last plan it made: a run asks for the same one several times as it starts."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.num_microbatches = planner.num_microbatches
        self._last: tuple[int, Plan] | None = None

    def plan(self, epoch: int) -> Plan:
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self.planner.plan(epoch))
        return self._last[1]


def plan_generator(seed: int, epoch: int, skip: int = 0) -> np.random.Generator:
    """Return the random numbers of one epoch's plan, but for the first ``skip``."""
    return np.random.Generator(np.random.PCG64(draw_key(Purpose.PLAN, seed, epoch)).advance(skip))


def rounded_up(lengths: np.ndarray, multiple: float, longest: float) -> np.ndarray:
    """Return the lengths ``(example,)`` as multiples of this, ``longest`` at most; unchanged where it is 0."""
    return np.asarray(np.minimum(-(-lengths // multiple) * multiple, longest)) if multiple else lengths


def checked_lengths(
    lengths: np.ndarray, limit: float | None = None, limit_name: str = "", members: np.ndarray | None = None
) -> np.ndarray:
    """Return the lengths as one array of numbers, those of the examples ``members``, or of all.

    Raises DataError if it is empty, or a length isn't a number above zero, or is above ``limit``; it names the example.
    """
    lengths = np.asarray(lengths)
    if lengths.size == 0:
        raise DataError("the dataset is empty: it has no examples to make batches of")
    unusable = ~(np.isfinite(lengths) & (lengths > 0))
    if unusable.any():
        index = int(np.argmax(unusable))
        example = index if members is None else members[index]
        raise DataError(f"example {example} has length {lengths[index]}: only examples longer than zero can be planned")
    if limit is not None and lengths.max() > limit:
        index = int(np.argmax(lengths > limit))
        example = index if members is None else members[index]
        raise DataError(
            f"example {example} has length {lengths[index]}, more than {limit_name} {limit}: "
            f"shorten it, leave it out, or raise {limit_name}"
        )
    return lengths


def count_padded_sizes(rows: np.ndarray, longest: np.ndarray, multiple: float) -> np.ndarray:
    """The padded sizes of microbatches with these ``rows``, whose ``longest`` are rounded up as ``rounded_up`` says."""
    return np.asarray(rounded_up(longest, multiple, longest.max()) * rows)


def one_after_another(plans: Sequence[BatchPlan]) -> BatchPlan:
    """One plan of several; all have rows of one example, or none has, and all number their passes, or none does."""
    rows = [np.diff(plan.row_starts) for plan in plans if plan.row_starts is not None]
    passes = [plan.passes for plan in plans if plan.passes is not None]
    return BatchPlan(
        np.concatenate([plan.indices for plan in plans]),
        start_offsets(np.concatenate(rows)) if rows else None,
        start_offsets(np.concatenate([np.diff(plan.microbatch_starts) for plan in plans])),
        np.concatenate(passes) if passes else None,
    )


def start_offsets(sizes: np.ndarray) -> np.ndarray:
    """Offsets of consecutive segments: ``[2, 3]`` gives ``[0, 2, 5]``."""
    return np.concatenate(([0], np.cumsum(sizes)))


def starts_every(size: int, total: int) -> np.ndarray:
    """Offsets of segments of ``size``, of which the last may be smaller.

    >>> starts_every(2, 5).tolist()
    [0, 2, 4, 5]
    """
    return np.append(np.arange(0, total, size), total)


def reorder_segments(values: np.ndarray, starts: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the segments of ``values`` in another order, and their new offsets.

    >>> values, starts = reorder_segments(np.array([7, 8, 9]), np.array([0, 1, 3]), np.array([1, 0]))
    >>> values.tolist(), starts.tolist()
    ([8, 9, 7], [0, 2, 3])
    """
    sizes = np.diff(starts)[order]
    new_starts = start_offsets(sizes)
    # where each new place comes from: how far its segment has moved, plus its own number
    source = np.repeat(starts[:-1][order] - new_starts[:-1], sizes)
    source += np.arange(len(values))
    return values[source], new_starts


def shuffled_within_groups(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Example indices group by group, in ascending order of the group and shuffled inside each."""
    # A stable sort by group keeps this order inside each.
    order = rng.permutation(len(groups))
    return order[np.argsort(groups[order], kind="stable")]


def smallest_integers(values: np.ndarray) -> np.ndarray:
    """Non-negative integers in the narrowest type that holds them: NumPy sorts 16 bits in linear time."""
    return values.astype(np.min_scalar_type(int(values.max())))


def stratified_sample(names: list[str], groups: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the indices of ``size`` examples, in order, of each group its proportion to within one example.

    ``names`` and ``groups`` ``(example,)`` are those of all examples. Which ones of a group are chosen depends on their
    names and ``seed`` alone, so a larger sample of a group has all of a smaller one.
    """
    size = min(size, len(names))
    present, members = np.unique(groups, return_inverse=True)
    exact = np.bincount(members, minlength=len(present)) * (size / max(len(names), 1))
    shares = np.floor(exact).astype(np.int64)
    largest_rests = np.argsort(shares - exact, kind="stable")
    shares[largest_rests[: size - shares.sum()]] += 1
    keys = np.array([draw_key(Purpose.SAMPLE, seed, name) for name in names], np.int64)
    chosen = []
    for number, share in enumerate(shares):
        own = np.flatnonzero(members == number)
        chosen.append(own[np.argsort(keys[own], kind="stable")[:share]])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def sample_size(number: int, percent: float, most: int | None) -> int:
    """How many of ``number`` examples ``percent`` of them are, at least one and at most ``most``.

    >>> sample_size(1000, 0.5, None), sample_size(30, 1.5, None), sample_size(1000, 100, 10), sample_size(0, 5, None)
    (5, 1, 10, 0)
    """
    share = max(1, round(number * percent / 100)) if number else 0
    return share if most is None else min(share, most)
