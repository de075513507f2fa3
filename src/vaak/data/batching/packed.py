"""Rows that hold several examples each, filled almost without a gap.

The rows' shapes are found on the histogram of lengths, longest first, each into the open rows where it fits best; so
the work grows with the number of different lengths and not with the number of examples. Shapes are the same in every
epoch; an epoch draws which example of a length fills which slot, and the order of the rows.

Source: Krell, Kosec, Perez, Fitzgibbon 2021, "Efficient Sequence Packing without Cross-contamination", section 3.1
(longest-pack-first histogram-packing). Differs: lengths that aren't integers are rounded up to a 16384th of the row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from vaak.data.plan import (
    BatchPlan,
    plan_generator,
    reorder_segments,
    shuffled_within_groups,
    smallest_integers,
    starts_every,
    starts_of,
)

CELLS_OF_A_ROW = 16384


class RowShape(NamedTuple):
    """A number of equal rows, each with examples of these lengths."""

    num_rows: int
    lengths: tuple[int, ...]


class PackedPlanner:
    """Every microbatch has ``batch_size`` rows of at most ``row_capacity`` together."""

    def __init__(self, lengths: np.ndarray, row_capacity: float, batch_size: int, seed: int) -> None:
        cells, capacity = whole_cells(lengths, row_capacity)
        shapes = pack_histogram(np.bincount(cells), capacity)
        slots = np.concatenate([np.tile(shape.lengths, shape.num_rows) for shape in shapes])
        row_sizes = np.repeat([len(shape.lengths) for shape in shapes], [shape.num_rows for shape in shapes])
        self._cells = smallest_integers(cells)
        self._slots_by_length = np.argsort(smallest_integers(slots), kind="stable")
        self._row_starts = starts_of(row_sizes)
        self._microbatch_starts = starts_every(batch_size, len(row_sizes))
        self._seed = seed
        self.num_microbatches = len(self._microbatch_starts) - 1

    def plan(self, epoch: int) -> BatchPlan:
        rng = plan_generator(self._seed, epoch)
        filled = np.empty(len(self._cells), dtype=np.int64)
        filled[self._slots_by_length] = shuffled_within_groups(self._cells, rng)
        row_order = rng.permutation(len(self._row_starts) - 1)
        return BatchPlan(*reorder_segments(filled, self._row_starts, row_order), self._microbatch_starts)


def whole_cells(lengths: np.ndarray, row_capacity: float) -> tuple[np.ndarray, int]:
    """Lengths and capacity as integers: as they are, or rounded up to a fraction of the row."""
    if np.issubdtype(lengths.dtype, np.integer):
        return lengths, int(row_capacity)
    cells = np.ceil(lengths * (CELLS_OF_A_ROW / row_capacity)).astype(np.int64)
    return np.minimum(cells, CELLS_OF_A_ROW), CELLS_OF_A_ROW


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
            copies = min(space // length, remaining)
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
        """The rows with the least space that ``length`` fits in, and that space; None where it fits in none."""
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
