"""Microbatches of several parts of a dataset, each from one part alone, mixed in an epoch.

Every part has a separate planner, and is read pass after pass, through all epochs: no example of a part comes again
before all others of it came. In an epoch the parts have together as many microbatches as one pass over all of them,
and part ``i``, which has ``m`` in a pass, has a share of them in proportion to ``m ** exponent``::

    exponent 1     one pass over each part: as often as it has data
    exponent 0.5   small parts more often: temperature 2
    exponent 0     all parts equally often

Shares are kept exactly, and all along the epoch, instead of drawn: the ``j``-th of the ``k`` microbatches of a part is
at a random place in the ``j``-th of ``k`` equal pieces of the epoch. Every plan is a function of seed and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vaak.core.random_keys import Purpose, draw_key
from vaak.data.plan import BatchPlan, Planner, one_after_another, plan_generator, reorder_segments


@dataclass(frozen=True)
class SharesOf:
    """The ``shares`` of one epoch, for plans of passes in it."""

    shares: Callable[[int], float]
    epoch: int

    def __call__(self, number: int) -> float:
        return self.shares(self.epoch)


class MixedPlanner:
    """Plans each of the parts, which have ``members``, by what ``planner_of`` them gives.

    ``exponent(epoch)`` says how shares follow sizes (None: always 1); two that differ differ in their text, too, which
    is part of the plan, so that a run can't be resumed under another. ``seed`` draws the order.
    """

    def __init__(
        self,
        members: Sequence[np.ndarray],
        planner_of: Callable[[np.ndarray], Planner],
        exponent: Callable[[int], float] | None,
        seed: int,
    ) -> None:
        self._members, self._planners = members, [planner_of(own) for own in members]
        self._sizes = np.array([planner.num_microbatches for planner in self._planners])
        self._exponent, self._seed = exponent, draw_key(Purpose.MIXTURE, seed, str(exponent))
        self.num_microbatches = int(self._sizes.sum())
        self._passed = [np.zeros_like(self._sizes)]

    def shares(self, epoch: int) -> np.ndarray:
        """The number of microbatches of each part in an epoch."""
        exponent = 1.0 if self._exponent is None else self._exponent(epoch)
        return apportioned(self._sizes**exponent, self.num_microbatches)

    def _before(self, epoch: int) -> np.ndarray:
        """The number of microbatches of each part in all earlier epochs."""
        while len(self._passed) <= epoch:
            self._passed.append(self._passed[-1] + self.shares(len(self._passed) - 1))
        return self._passed[epoch]

    def plan(self, epoch: int) -> BatchPlan:
        before, shares, rng = self._before(epoch), self.shares(epoch), plan_generator(self._seed, epoch)
        plans, passes, places = [], [], []
        for part, (position, left) in enumerate(zip(before.tolist(), shares.tolist(), strict=True)):
            places.append((np.arange(left) + rng.random(left)) / max(left, 1))
            first = position // self._planners[part].num_microbatches
            while left:
                number, place = divmod(position, self._planners[part].num_microbatches)
                plan = self._planners[part].plan(number)
                plan = plan.part(place, min(len(plan), place + left)).among(self._members[part])
                plans.append(plan)
                passes.append(number - first)
                position, left = position + len(plan), left - len(plan)
        whole, order = one_after_another(plans, passes), np.argsort(np.concatenate(places), kind="stable")
        assert whole.passes is not None
        assert whole.row_starts is None, "packed rows of several parts"
        indices, starts = reorder_segments(whole.indices, whole.microbatch_starts, order)
        return BatchPlan(indices, None, starts, whole.passes[order])


def apportioned(weights: np.ndarray, total: int) -> np.ndarray:
    """``total`` in whole numbers in proportion to ``weights``, by largest remainder.

    >>> apportioned(np.array([2.0, 1.0, 1.0]), 9).tolist()
    [5, 2, 2]
    """
    exact = weights * (total / weights.sum())
    shares: np.ndarray = np.floor(exact).astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return shares
