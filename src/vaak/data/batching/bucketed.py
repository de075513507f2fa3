"""Batches of examples of similar length under a budget of padded cells (tokens or seconds).

The sorted lengths are cut into buckets where that saves most padding. A bucket's batches hold equally many examples, as
many as the budget allows at the bucket's longest. Buckets depend on the sorted lengths alone; an epoch shuffles the
examples inside each bucket, and then the order of all batches.

Where to cut is a shortest path: ``cost[i, j]`` is the padded cells of a bucket from candidate cut ``i`` to ``j``. To
them comes a tenth of the space its batches leave empty, so that a small set isn't split into tiny batches, and a tenth
of a batch, so that it has few buckets of several batches, among which epochs can shuffle.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vaak.data.plan import BatchPlan, plan_generator, reorder_segments, starts_of

CANDIDATE_CUTS = 512
WEIGHT_OF_EMPTY_SPACE = 0.1
WEIGHT_OF_A_BUCKET = 0.1


class Buckets(NamedTuple):
    """Offsets of the buckets in the sorted lengths, and the rows of each batch, bucket after bucket."""

    starts: np.ndarray
    batch_sizes: np.ndarray


class BucketedPlanner:
    """Every microbatch keeps rows × longest within ``budget``; without one it has at most ``batch_size`` rows.

    ``lengths`` ``(example,)`` are cut into ``num_buckets`` groups; ``seed`` draws the order within groups and of
    batches. The ``budget`` is in the unit of the lengths.
    """

    def __init__(self, lengths: np.ndarray, budget: float | None, batch_size: int, num_buckets: int, seed: int) -> None:
        self._order = np.argsort(lengths, kind="stable")
        buckets = cut_buckets(lengths[self._order], budget, batch_size, num_buckets)
        self._bucket_starts = buckets.starts
        self._batch_starts = starts_of(buckets.batch_sizes)
        self._seed = seed
        self.num_microbatches = len(buckets.batch_sizes)

    def plan(self, epoch: int) -> BatchPlan:
        rng = plan_generator(self._seed, epoch)
        indices = self._order.copy()
        for first, last in pairwise(self._bucket_starts.tolist()):
            rng.shuffle(indices[first:last])
        batch_order = rng.permutation(self.num_microbatches)
        indices, microbatch_starts = reorder_segments(indices, self._batch_starts, batch_order)
        return BatchPlan(indices, None, microbatch_starts)


def cut_buckets(lengths: np.ndarray, budget: float | None, batch_size: int, num_buckets: int) -> Buckets:
    """At most ``num_buckets`` buckets of the ascending ``lengths``, and the sizes of their batches."""
    ends = candidate_ends(lengths)
    longest = lengths[ends - 1].astype(np.float64)
    rows = np.full(len(ends), batch_size) if budget is None else rows_within(budget, longest)
    num_examples = np.maximum(ends[None, :] - np.concatenate(([0], ends[:-1]))[:, None], 0)
    full = -(-num_examples // rows) * rows
    cost = longest * (num_examples + WEIGHT_OF_EMPTY_SPACE * (full - num_examples) + WEIGHT_OF_A_BUCKET * rows)
    chosen = cheapest_cuts(cost, num_buckets)
    sizes = np.diff(ends[chosen], prepend=0)
    batch_sizes = [even_parts(size, -(-size // rows)) for size, rows in zip(sizes, rows[chosen], strict=True)]
    return Buckets(starts_of(sizes), np.concatenate(batch_sizes))


def candidate_ends(lengths: np.ndarray) -> np.ndarray:
    """Places where a bucket may end: where the ascending lengths change, thinned out evenly in rank and in length."""
    changes = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
    if len(changes) >= CANDIDATE_CUTS:
        by_rank = changes[np.linspace(0, len(changes) - 1, CANDIDATE_CUTS // 2).astype(np.int64)]
        marks = np.geomspace(lengths[0], lengths[-1], CANDIDATE_CUTS // 2)[1:-1]
        changes = np.union1d(by_rank, np.searchsorted(lengths, marks, side="right"))
    return np.append(changes[changes < len(lengths)], len(lengths))


def rows_within(budget: float, longest: np.ndarray) -> np.ndarray:
    """The largest number of rows with rows × longest ≤ budget, also in floating point."""
    rows = np.floor(budget / longest).astype(np.int64)
    fitting: np.ndarray = rows - (rows * longest > budget)
    return fitting


def cheapest_cuts(cost: np.ndarray, most: int) -> np.ndarray:
    """Ends of at most ``most`` buckets that cost least together; ``cost[i, j]`` is that of one from cut i to j."""
    size = len(cost)
    cost = np.where(np.tri(size, k=-1, dtype=bool), np.inf, cost)
    best, came_from = cost[0], []
    for _ in range(min(most, size) - 1):
        through = best[:-1, None] + cost[1:]
        before = through.argmin(axis=0)
        cheaper = through[before, np.arange(size)] < best
        if not cheaper.any():
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
