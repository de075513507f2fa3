"""Easy examples first: training draws from a growing fraction of the data, which never loses its easy examples.

An epoch is made of passes. Each pass takes the easiest part of the data that is open when it begins (the pool) and is a
whole plan of it, so it holds every example of the pool once, in full batches; as soon as it ends, the next one begins
with a larger pool. The epoch ends at the microbatch where an epoch of all examples would::

    epoch     [ pass 0, pool 30 % | pass 1, pool 32 %  | pass 2, pool 34 %   | pass 3, ...
    examples  easiest ............................................................  cut off

So the number of microbatches is that of the plain plan, whatever the batches are made of; in an epoch no example of a
pool comes up twice more than another that was there as long. Once all data are open, epochs are the plain plan's.

Very many examples are ordered and planned in pieces (``vaak.data.pieces``). A pool is the easiest part of each piece,
and a pass has the pool's pieces one after another. The next pass begins, with larger ones, after all of them.

Source: Platanios, Stretcu, Neubig, Poczos, Mitchell 2019, "Competence-based Curriculum Learning for Neural Machine
Translation", section 2. Differs: passes instead of draws with replacement; competence is that of the pass's beginning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.data.pieces import Selection
from vaak.data.plan import BatchPlan, Piece, PiecewisePlan, Plan, Planner, smallest_integers, start_offsets

PACINGS = ("linear", "root")


@dataclass(frozen=True)
class CurriculumScheduler:
    """How much of the data, easiest first, is open at which time: from ``initial_difficulty`` to ``final_difficulty``.

    Both are fractions of the data in (0, 1]. It takes ``num_epochs``, ``linear`` or fast at first (``root``).

    >>> scheduler = CurriculumScheduler(initial_difficulty=0.3, final_difficulty=1.0, num_epochs=10)
    >>> [round(scheduler.get_difficulty(epoch), 2) for epoch in (0, 1, 5, 10, 11)]
    [0.3, 0.37, 0.65, 1.0, 1.0]
    """

    initial_difficulty: float = 0.3
    final_difficulty: float = 1.0
    num_epochs: float = 10
    pacing: str = "linear"

    def __post_init__(self) -> None:
        if not 0 < self.initial_difficulty <= self.final_difficulty <= 1:
            raise UserError(
                f"a curriculum from initial_difficulty {self.initial_difficulty} to final_difficulty "
                f"{self.final_difficulty}: both must be above 0 and at most 1, the second not below the first"
            )
        if self.num_epochs <= 0 or self.pacing not in PACINGS:
            raise UserError(
                f"a curriculum over {self.num_epochs} epochs with pacing {self.pacing}: num_epochs is above 0, "
                f"pacing one of {', '.join(PACINGS)}"
            )

    def get_difficulty(self, epoch: float) -> float:
        """Return the fraction of the data that is open at a time in epochs: 2.5 is the middle of the third."""
        return self.competence(epoch / self.num_epochs)

    def competence(self, progress: float) -> float:
        """Return the fraction of the data that is open when ``progress`` of the curriculum, from 0 to 1, has passed.

        Source: Platanios et al. 2019, equations 6 and 7. Differs: it may end below 1.
        """
        first, last = self.initial_difficulty, self.final_difficulty
        if progress >= 1:
            return last
        progress = max(progress, 0.0)
        if self.pacing == "linear":
            return min(first + progress * (last - first), last)
        return min(math.sqrt(first**2 + progress * (last**2 - first**2)), last)


class CurriculumPlanner:
    """Plans passes over the easiest ``examples``, until ``whole`` plans everything.

    ``planner_of(size, seed, epoch)`` plans as many of the easiest, in passes of an epoch. A pool has at least
    ``fewest`` examples, enough to fill a microbatch.

    The ``scheduler`` says which fraction is open at an epoch, and ``seed`` draws the order.
    """

    def __init__(
        self,
        whole: Planner,
        planner_of: Callable[[int, int, int], Planner],
        examples: Selection,
        scheduler: CurriculumScheduler,
        fewest: int,
        seed: int,
    ) -> None:
        self._whole, self._make_planner, self._is_in_pieces = whole, planner_of, examples.largest is not None
        self._num_examples = int(examples.sizes.sum())
        self._scheduler, self._fewest, self._seed = scheduler, fewest, seed
        self.num_microbatches = whole.num_microbatches

    def plan(self, epoch: int) -> Plan:
        if self._pool_size(epoch) == self._num_examples:
            # All are open: the plan without a curriculum.
            return self._whole.plan(epoch)
        # The scheduler is in the key, so that a run can't be resumed under another one: its plans would look alike.
        seed = draw_key(Purpose.CURRICULUM, self._seed, epoch, str(self._scheduler))
        pieces, left, number, num_passes = list[Piece](), self.num_microbatches, 0, 0
        while left:
            # an epoch has as many microbatches as any other, so a small pool is passed over several times, growing
            time = epoch + (self.num_microbatches - left) / self.num_microbatches
            plan = self._make_planner(self._pool_size(time), seed, epoch).plan(number)
            for piece in plan.pieces:
                pieces.append(Piece(min(piece.size, left), partial(_from_pass, num_passes, piece)))
                left -= pieces[-1].size
                if not left:
                    break
            number, num_passes = number + 1, num_passes + plan.num_passes
        found = PiecewisePlan(pieces, num_passes)
        return found if self._is_in_pieces else found.part(0, len(found))

    def _pool_size(self, epoch: float) -> int:
        open_examples = int(self._scheduler.get_difficulty(epoch) * self._num_examples)
        return min(max(open_examples, self._fewest), self._num_examples)


def _from_pass(first: int, piece: Piece) -> BatchPlan:
    return piece.make().from_pass(first)


class EasiestFirst:
    """The examples of each piece in order of difficulty: at most 4 bytes for each are kept.

    Difficulties of unlike examples don't compare: a short sentence of one part may be the hardest of another. So they
    are compared within their part, and with ``strata`` ``(example,)`` within their class.
    """

    def __init__(self, examples: Selection, difficulties: np.ndarray, strata: np.ndarray | None) -> None:
        self._examples, self._orders = examples, list[list[np.ndarray]]()
        # For each part, the number of examples of each class.
        sizes = list[Counter[Any]]()
        for part, num_pieces in enumerate(examples.num_pieces.tolist()):
            self._orders.append([])
            sizes.append(Counter() if strata is not None else Counter({None: int(examples.sizes[part])}))
            for piece in range(num_pieces):
                members = examples.members(part, piece)
                own = None if strata is None else strata[members]
                if own is not None:
                    found, counts = np.unique(own, return_counts=True)
                    sizes[part].update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
                self._orders[part].append(smallest_integers(easiest_first(difficulties[members], own)))
        self._class_sizes = np.array([own[name] for own in sizes for name in sorted(own)])
        self._part_of_class = np.repeat(np.arange(len(sizes)), [len(own) for own in sizes])

    def easiest(self, number: int) -> Selection:
        """Return the ``number`` easiest examples, with the same share of each part, of each class and of each piece."""
        of_classes = sizes_among_easiest(self._class_sizes, number)
        of_parts = np.bincount(self._part_of_class, of_classes, len(self._orders)).astype(np.int64)
        present, steps = np.flatnonzero(of_parts), self._examples.num_pieces

        def members(part: int, piece: int) -> np.ndarray:
            part = int(present[part])
            # As many as every n-th example of a part.
            size = -(-(int(of_parts[part]) - piece) // int(steps[part]))
            chosen, own = self._orders[part][piece][:size], self._examples.members(part, piece)
            return chosen if isinstance(own, slice) else own[chosen]

        sizes = of_parts[present]
        return Selection(sizes, np.minimum(steps[present], sizes), members, self._examples.largest)


def sizes_among_easiest(sizes: np.ndarray, number: int) -> np.ndarray:
    """Return how many of each class, given their ``sizes``, are among the ``number`` easiest examples.

    It is the same whatever the difficulties are, as each class comes evenly (``easiest_first``).

    >>> sizes_among_easiest(np.array([6, 2]), 5).tolist()
    [4, 1]
    """
    # the last one's rank in its class, as a fraction of the class, differs from that among all by half a rank of each
    near, slack = number / sizes.sum(), len(sizes) / 2 / sizes.sum()
    low = np.maximum(np.floor((near - slack) * sizes - 1), 0).astype(np.int64)
    high = np.minimum(np.ceil((near + slack) * sizes + 1), sizes).astype(np.int64)
    classes = np.repeat(np.arange(len(sizes)), high - low)
    ranks = np.arange(len(classes)) + np.repeat(low - start_offsets(high - low)[:-1], high - low)
    first = np.argsort((ranks + 0.5) / sizes[classes], kind="stable")[: number - low.sum()]
    found: np.ndarray = low + np.bincount(classes[first], minlength=len(sizes))
    return found


def easiest_first(difficulties: np.ndarray, strata: np.ndarray | None = None) -> np.ndarray:
    """Return all example indices in ascending order of difficulty; equals keep their order.

    With ``strata`` examples are compared within their class, so that any easiest part has the classes' proportions.

    >>> easiest_first(np.array([5, 1, 3, 2])).tolist()
    [1, 3, 2, 0]
    >>> easiest_first(np.array([1, 2, 8, 9]), strata=np.array([0, 0, 1, 1])).tolist()
    [0, 2, 1, 3]
    """
    order = np.argsort(difficulties, kind="stable")
    if strata is None:
        return order
    classes = smallest_integers(np.unique(strata, return_inverse=True)[1])[order]
    sizes = np.bincount(classes)
    order = order[np.argsort(classes, kind="stable")]
    # each example's rank within its class, as a fraction of the class, is what examples of all classes compare by
    within = np.arange(len(order)) - np.repeat(start_offsets(sizes)[:-1], sizes)
    return order[np.argsort((within + 0.5) / np.repeat(sizes, sizes), kind="stable")]
