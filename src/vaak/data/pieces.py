"""Very many examples are planned in pieces, one at a time, so that however many there are, plans take no more memory.

::

    a part of the data     0 1 2 3 4 5 6 7
    in three pieces        0 3 6 | 1 4 7 | 2 5      every third example, so each piece looks like the whole
    an epoch               1 4 7 | 2 5 | 0 3 6      each piece is planned alone, in an order that is drawn

Pieces of all parts have together at most as many examples as are planned at once: where parts are mixed, one of each is
in memory. A part with few examples has few pieces, or one: pieces may not be so small that batches aren't full.

Pieces are of shards where storage is to be read in order (``by_shards``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from vaak.core.random_keys import Purpose, draw_key
from vaak.data.plan import ArrayPlanner, BatchPlan, Piece, PiecewisePlan, plan_generator

READ_AT_ONCE = 2**22
"""Examples whose parts are read at once."""


@dataclass(frozen=True)
class Selection:
    """Examples of a dataset, in pieces of each part.

    ``sizes`` and ``num_pieces`` ``(part,)`` count the examples and the pieces of each part, of which none is empty;
    ``members(part, piece)`` are the numbers of a piece's examples. ``largest`` is how many are planned at once; None:
    all are, in one piece for each part.
    """

    sizes: np.ndarray
    num_pieces: np.ndarray
    members: Callable[[int, int], np.ndarray | slice]
    largest: int | None


def all_examples(num_examples: int, parts: np.ndarray | None, largest: int) -> Selection:
    """All the examples, which are of the ``parts`` ``(example,)``; in pieces where they are more than ``largest``."""
    in_pieces = num_examples > largest
    sizes = np.array([num_examples]) if parts is None else count_parts(parts)
    # An empty part, which none can plan.
    present = np.flatnonzero(sizes) if num_examples else np.zeros(1, np.int64)
    sizes = sizes[present]
    num_pieces = -(-sizes // max(largest // len(sizes), 1)) if in_pieces else np.ones_like(sizes)

    def members(part: int, piece: int) -> np.ndarray | slice:
        step = int(num_pieces[part])
        if parts is None:
            return np.arange(piece, num_examples, step) if in_pieces else slice(None)
        found, seen = [np.zeros(0, np.int64)], 0
        for first in range(0, num_examples, READ_AT_ONCE):
            own = np.flatnonzero(parts[first : first + READ_AT_ONCE] == present[part])
            found.append(own[(piece - seen) % step :: step] + first)
            seen += len(own)
        return np.concatenate(found)

    return Selection(sizes, num_pieces, members, largest if in_pieces else None)


def by_shards(num_examples: int, parts: np.ndarray | None, shard_size: int, mixed: int, seed: int) -> Selection:
    """Return all the examples, in pieces of ``mixed`` shards each, which ``seed`` draws from all over a part.

    A shard is ``shard_size`` examples of a part one after another, in the order of storage. The shards of a part are
    dealt to its pieces evenly, the same in every epoch, so that epochs have equally many microbatches::

        a part in shards      0 1 2 | 3 4 5 | 6 7 8 | 9 10
        two of them a piece   3 4 5 9 10 | 0 1 2 6 7 8
    """
    sizes = np.array([num_examples]) if parts is None else count_parts(parts)
    present = np.flatnonzero(sizes) if num_examples else np.zeros(1, np.int64)
    sizes = sizes[present]
    num_shards = -(-sizes // shard_size)
    num_pieces = np.maximum(-(-num_shards // mixed), 1)

    def members(part: int, piece: int) -> np.ndarray:
        rng = np.random.Generator(np.random.PCG64(draw_key(Purpose.PLAN, seed, f"shards of {part}")))
        own = np.sort(np.array_split(rng.permutation(int(num_shards[part])), int(num_pieces[part]))[piece])
        places = (own[:, None] * shard_size + np.arange(shard_size)).ravel()
        places = places[places < sizes[part]]
        if parts is not None:
            places = np.flatnonzero(parts == present[part])[places]
        return np.asarray(places)

    return Selection(sizes, num_pieces, members, shard_size * mixed)


def count_parts(parts: np.ndarray, at_least: int = 0) -> np.ndarray:
    """Count the examples of each part, for ``at_least`` that many parts; ``parts`` ``(example,)`` are read in turns.

    NumPy counts 64-bit numbers only, and would copy all others.
    """
    counts = np.zeros(max(int(parts.max(initial=0)) + 1, at_least), np.int64)
    for first in range(0, len(parts), READ_AT_ONCE):
        counts += np.bincount(parts[first : first + READ_AT_ONCE], minlength=len(counts))
    return counts


class PiecewisePlanner:
    """Plans pieces of a part, of which ``planner_of(piece, seed)`` plans one; an epoch has one after another.

    Nothing of a piece is kept but the number of its microbatches.
    """

    def __init__(self, num_pieces: int, planner_of: Callable[[int, int], ArrayPlanner], seed: int) -> None:
        self._make_planner, self._seed = planner_of, seed
        self._sizes = [self._planner(piece).num_microbatches for piece in range(num_pieces)]
        self.num_microbatches = sum(self._sizes)

    def plan(self, epoch: int) -> PiecewisePlan:
        order = plan_generator(self._seed, epoch).permutation(len(self._sizes)).tolist()
        return PiecewisePlan([Piece(self._sizes[piece], partial(self._plan, piece, epoch)) for piece in order])

    def _plan(self, piece: int, epoch: int) -> BatchPlan:
        return self._planner(piece).plan(epoch)

    def _planner(self, piece: int) -> ArrayPlanner:
        return self._make_planner(piece, draw_key(Purpose.PLAN, self._seed, f"piece {piece}"))
