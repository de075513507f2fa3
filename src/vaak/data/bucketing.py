"""Batches by length: of similar examples under a budget of padded size, or packed into rows almost without a gap.

Bucketed: the sorted lengths are cut into buckets where that saves most padding; an epoch shuffles the examples inside
each bucket, and then the order of all batches. The cuts are a shortest path. ``cost[i, j]`` of a bucket from candidate
cut ``i`` to ``j`` is its padding, plus a tenth of the space that its batches leave empty, so that a small set isn't
split into tiny batches, plus a tenth of a batch, so that it has few buckets of several batches.

Packed: the rows' shapes are found on the histogram of lengths, longest first, each into the open rows where it fits
best, so the work grows with the number of different lengths only. Shapes are the same in every epoch.
Source: Krell, Kosec, Perez, Fitzgibbon 2021, "Efficient Sequence Packing without Cross-contamination", section 3.1
(longest-pack-first histogram-packing). Differs: lengths that aren't integers are rounded up to a 16384th of the row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vaak.data.plan import (
    BatchPlan,
    plan_generator,
    reorder_segments,
    shuffled_within_groups,
    smallest_integers,
    start_offsets,
    starts_every,
)

CANDIDATE_CUTS = 512
WEIGHT_OF_EMPTY_SPACE = 0.1
WEIGHT_OF_A_BUCKET = 0.1


class BucketedPlanner:
    """Every microbatch keeps rows × longest within ``budget``; without one it has at most ``batch_size`` rows.

    ``lengths`` ``(example,)`` are cut into ``num_buckets`` groups; ``seed`` draws the order within groups and of
    batches. The ``budget`` is in the unit of the lengths.
    """

    def __init__(self, lengths: np.ndarray, budget: float | None, batch_size: int, num_buckets: int, seed: int) -> None:
        self._order = np.argsort(lengths, kind="stable")
        lengths = lengths[self._order]
        ends = candidate_ends(lengths)
        longest = lengths[ends - 1].astype(np.float64)
        rows = np.full(len(ends), batch_size)
        if budget is not None:
            rows = np.floor(budget / longest).astype(np.int64)
            # Rows × longest ≤ budget, also in floating point.
            rows = rows - (rows * longest > budget)
        # every table here is (first cut, last cut)
        num_examples = np.maximum(ends[None, :] - np.concatenate(([0], ends[:-1]))[:, None], 0)
        full = -(-num_examples // rows) * rows
        cost = longest * (num_examples + WEIGHT_OF_EMPTY_SPACE * (full - num_examples) + WEIGHT_OF_A_BUCKET * rows)
        chosen = cheapest_cuts(cost, num_buckets)
        sizes = np.diff(ends[chosen], prepend=0)
        parts = [even_parts(size, -(-size // rows)) for size, rows in zip(sizes, rows[chosen], strict=True)]
        self._bucket_starts = start_offsets(sizes)
        self._batch_starts = start_offsets(np.concatenate(parts))
        self._seed = seed
        self.num_microbatches = len(self._batch_starts) - 1

    def plan(self, epoch: int) -> BatchPlan:
        rng = plan_generator(self._seed, epoch)
        indices = self._order.copy()
        for first, last in pairwise(self._bucket_starts.tolist()):
            rng.shuffle(indices[first:last])
        batch_order = rng.permutation(self.num_microbatches)
        indices, microbatch_starts = reorder_segments(indices, self._batch_starts, batch_order)
        return BatchPlan(indices, None, microbatch_starts)


def candidate_ends(lengths: np.ndarray) -> np.ndarray:
    """Places where a bucket may end: where the ascending lengths change, thinned out evenly in rank and in length."""
    changes = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
    if len(changes) >= CANDIDATE_CUTS:
        by_rank = changes[np.linspace(0, len(changes) - 1, CANDIDATE_CUTS // 2).astype(np.int64)]
        marks = np.geomspace(lengths[0], lengths[-1], CANDIDATE_CUTS // 2)[1:-1]
        changes = np.union1d(by_rank, np.searchsorted(lengths, marks, side="right"))
    return np.append(changes[changes < len(lengths)], len(lengths))


def cheapest_cuts(cost: np.ndarray, most: int) -> np.ndarray:
    """Ends of at most ``most`` buckets that cost least together; ``cost[i, j]`` is that of one from cut i to j."""
    size = len(cost)
    cost = np.where(np.tri(size, k=-1, dtype=bool), np.inf, cost)
    best, came_from = cost[0], []
    for _ in range(min(most, size) - 1):
        # [cut, end]: the cheapest buckets up to a cut, and one more from there to an end
        through = best[:-1, None] + cost[1:]
        before = through.argmin(axis=0)
        cheaper = through[before, np.arange(size)] < best
        if not cheaper.any():
            # Then another bucket wouldn't help either.
            break
        best = np.where(cheaper, through[before, np.arange(size)], best)
        came_from.append(np.where(cheaper, before, -1))
    ends = [size - 1]
    for before in reversed(came_from):
        if before[ends[-1]] >= 0:
            ends.append(int(before[ends[-1]]))
    return np.array(ends[::-1])


def even_parts(total: int, parts: int) -> np.ndarray:
    """``total`` in ``parts`` whole numbers that differ by at most one.

    >>> even_parts(8, 3).tolist()
    [3, 3, 2]
    """
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


UNITS_PER_ROW = 16384


class RowShape(NamedTuple):
    """A number of equal rows, each with examples of these lengths."""

    num_rows: int
    lengths: tuple[int, ...]


class PackedPlanner:
    """Every microbatch has ``batch_size`` rows of at most ``row_capacity`` together."""

    def __init__(self, lengths: np.ndarray, row_capacity: float, batch_size: int, seed: int) -> None:
        if np.issubdtype(lengths.dtype, np.integer):
            sizes, capacity = lengths, int(row_capacity)
        else:
            # Rounded up to a fraction of the row.
            sizes, capacity = np.ceil(lengths * (UNITS_PER_ROW / row_capacity)).astype(np.int64), UNITS_PER_ROW
            sizes = np.minimum(sizes, UNITS_PER_ROW)
        shapes = pack_histogram(np.bincount(sizes), capacity)
        slots = np.concatenate([np.tile(shape.lengths, shape.num_rows) for shape in shapes])
        row_sizes = np.repeat([len(shape.lengths) for shape in shapes], [shape.num_rows for shape in shapes])
        self._sizes = smallest_integers(sizes)
        self._slots_by_length = np.argsort(smallest_integers(slots), kind="stable")
        self._row_starts = start_offsets(row_sizes)
        self._microbatch_starts = starts_every(batch_size, len(row_sizes))
        self._seed = seed
        self.num_microbatches = len(self._microbatch_starts) - 1

    def plan(self, epoch: int) -> BatchPlan:
        rng = plan_generator(self._seed, epoch)
        filled = np.empty(len(self._sizes), dtype=np.int64)
        # the shapes of rows stay; which example of a length fills which slot of that length is drawn
        filled[self._slots_by_length] = shuffled_within_groups(self._sizes, rng)
        row_order = rng.permutation(len(self._row_starts) - 1)
        return BatchPlan(*reorder_segments(filled, self._row_starts, row_order), self._microbatch_starts)


def pack_histogram(histogram: np.ndarray, capacity: int) -> list[RowShape]:
    """Shapes of rows that hold ``histogram[length]`` examples of each length, none longer than ``capacity``.

    >>> pack_histogram(np.array([0, 0, 1, 3]), 6)
    [RowShape(num_rows=1, lengths=(3, 3)), RowShape(num_rows=1, lengths=(3, 2))]
    """
    rows = _OpenRows()
    for length in np.flatnonzero(histogram)[::-1].tolist():
        remaining = int(histogram[length])
        while remaining:
            shape, space = rows.take_tightest(length) or (RowShape(remaining, ()), capacity)
            # Copies are counted in each row of this shape.
            copies = min(space // length, remaining)
            # Rows; the others keep their shape and space.
            used = min(shape.num_rows, remaining // copies)
            rows.put(RowShape(used, (*shape.lengths, *(length,) * copies)), space - copies * length)
            if shape.lengths and used < shape.num_rows:
                rows.put(RowShape(shape.num_rows - used, shape.lengths), space)
            remaining -= used * copies
    return rows.shapes()


class _OpenRows:
    """Row shapes by the space left in them."""

    def __init__(self) -> None:
        self._spaces: list[int] = []
        self._shapes: dict[int, list[RowShape]] = {}

    def put(self, shape: RowShape, space: int) -> None:
        if space not in self._shapes:
            insort(self._spaces, space)
        self._shapes.setdefault(space, []).append(shape)

    def take_tightest(self, length: int) -> tuple[RowShape, int] | None:
        """Return the rows with the least space that ``length`` fits in, and that space; None if it fits in none."""
        place = bisect_left(self._spaces, length)
        if place == len(self._spaces):
            return None
        space = self._spaces[place]
        shape = self._shapes[space].pop()
        if not self._shapes[space]:
            del self._shapes[space], self._spaces[place]
        return shape, space

    def shapes(self) -> list[RowShape]:
        return [shape for space in self._spaces for shape in self._shapes[space]]
