"""Plans of data in several parts: each microbatch is from one part alone, and each part has its share of them.

Every part has a separate planner, and is read pass after pass, through all epochs. In an epoch the parts have together
as many microbatches as one pass over all of them. The share of a part with ``m`` microbatches in a pass is in
proportion to ``m ** exponent``: 1, one pass over each part; 0.5, small parts more often; 0, all parts equally often.
Shares are kept exactly, all along the epoch, instead of drawn. Or weights of the parts at some steps are given
(``StepWeights``): then the shares of a step are those on the line between the two that are nearest, and a function of
the step's number alone.

Of very many examples, an epoch is mixed in stretches, each of which takes up every part where the one before left it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from vaak.core.random_keys import Purpose, draw_key
from vaak.data.plan import (
    BatchPlan,
    Piece,
    PiecewisePlan,
    Plan,
    Planner,
    one_after_another,
    plan_generator,
    reorder_segments,
    starts_every,
)


@dataclass(frozen=True)
class SharesOf:
    """The ``shares`` of one epoch, for plans of passes in it."""

    shares: Callable[[int], float]
    epoch: int

    def __call__(self, number: int) -> float:
        return self.shares(self.epoch)


@dataclass(frozen=True)
class StepWeights:
    """Weights of parts by step: ``knots`` are ``(step, weight of each part)``, by ascending steps.

    A step has ``step_size`` microbatches, over all ranks; the last one of an epoch may have fewer.
    """

    knots: Sequence[tuple[int, Sequence[float]]]
    step_size: int

    def __call__(self, epoch: int, num_microbatches: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """The share of each part in each microbatch of an epoch, from ``first`` up to ``last``, ``(microbatch, part)``.

        >>> StepWeights([(0, (1, 0)), (2, (1, 1))], step_size=2)(0, 5).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.75, 0.25], [0.75, 0.25], [0.5, 0.5]]
        """
        first_step = epoch * -(-num_microbatches // self.step_size)
        steps = first_step + np.arange(first, num_microbatches if last is None else last) // self.step_size
        at, weights = [step for step, _ in self.knots], np.array([values for _, values in self.knots], dtype=np.float64)
        shares = weights / weights.sum(axis=1, keepdims=True)
        return np.stack([np.interp(steps, at, one) for one in shares.T], axis=1)


Shares = Callable[[int], float] | StepWeights


class MixedPlanner:
    """Mixes what ``planners`` plan, one for each part.

    ``exponent(epoch)`` says how shares follow sizes (None: always 1), or gives them by step; two that differ differ in
    their text, too, which is part of the plan, so that a run can't be resumed under another. ``seed`` draws the order.
    At most ``stretch`` microbatches are mixed at once; None: those of an epoch.
    """

    def __init__(
        self, planners: Sequence[Planner], exponent: Shares | None, seed: int, stretch: int | None = None
    ) -> None:
        self._planners = planners
        self._sizes = np.array([planner.num_microbatches for planner in self._planners])
        self._exponent, self._seed = exponent, draw_key(Purpose.MIXTURE, seed, str(exponent))
        self.num_microbatches = int(self._sizes.sum())
        self._is_whole = stretch is None
        self._stretches = list(pairwise(starts_every(stretch or self.num_microbatches, self.num_microbatches).tolist()))
        self._passed = [np.zeros_like(self._sizes)]

    def shares(self, epoch: int) -> np.ndarray:
        """Return the number of microbatches of each part in each stretch of an epoch, ``(stretch, part)``."""
        sizes = [last - first for first, last in self._stretches]
        if isinstance(self._exponent, StepWeights):
            every = [self._weights(epoch, *stretch).sum(axis=0) for stretch in self._stretches]
            due = np.cumsum(every, axis=0)
            whole = apportioned(due[-1], self.num_microbatches)
        else:
            exponent = 1.0 if self._exponent is None else self._exponent(epoch)
            whole = apportioned(self._sizes**exponent, self.num_microbatches)
            due = np.outer(np.cumsum(sizes), whole)
        due = (
            due / np.where(due[-1] > 0, due[-1], 1) * whole
        )  # what each part should have had, up to each stretch's end
        shares, had = [], np.zeros_like(whole)
        for size, until in zip(sizes, due, strict=True):
            # What is rounded in one stretch is made good in the next.
            shares.append(apportioned(np.maximum(until - had, 0), size))
            had = had + shares[-1]
        return np.stack(shares)

    def plan(self, epoch: int) -> Plan:
        while len(self._passed) <= epoch:
            self._passed.append(self._passed[-1] + self.shares(len(self._passed) - 1).sum(axis=0))
        # how many microbatches of each part came before: where in its passes it is, from the start of the run
        position, firsts, pieces = self._passed[epoch], self._passed[epoch] // self._sizes, list[Piece]()
        for stretch, shares in zip(self._stretches, self.shares(epoch), strict=True):
            pieces.append(Piece(int(shares.sum()), partial(self._mixed, epoch, stretch, position, shares, firsts)))
            position = position + shares
        if self._is_whole:
            return pieces[0].make()
        return PiecewisePlan(pieces, num_passes=int((-(-position // self._sizes) - firsts).max()))

    def _weights(self, epoch: int, first: int, last: int) -> np.ndarray:
        assert isinstance(self._exponent, StepWeights)
        return self._exponent(epoch, self.num_microbatches, first, last)

    def _mixed(
        self, epoch: int, stretch: tuple[int, int], positions: np.ndarray, shares: np.ndarray, firsts: np.ndarray
    ) -> BatchPlan:
        """Return the plan of a stretch, of which each part has its share from its position on.

        ``firsts`` are the passes that an epoch begins with: passes are counted within it, so that an example gets other
        draws each time.
        """
        # Each microbatch of the epoch has one draw.
        rng = plan_generator(self._seed, epoch, skip=stretch[0])
        plans, places = [], []
        due: np.ndarray | None = None  # which part of its microbatches each part should have had, before each place
        if isinstance(self._exponent, StepWeights):
            due = np.cumsum(self._weights(epoch, *stretch), axis=0)
            due = np.concatenate([np.zeros_like(due[:1]), due]) / np.where(due[-1] > 0, due[-1], 1.0)
        for part, (position, left) in enumerate(zip(positions.tolist(), shares.tolist(), strict=True)):
            # Evenly spaced, moved by one draw each: a part's share holds all along the stretch.
            even = (np.arange(left) + rng.random(left)) / max(left, 1)
            places.append(even if due is None else np.interp(even, due[:, part], np.arange(len(due))))
            # A stretch may end in the midst of a part's pass, or have several.
            while left:
                number, place = divmod(position, self._planners[part].num_microbatches)
                plan = self._planners[part].plan(number)
                plan = plan.part(place, min(len(plan), place + left))
                plans.append(plan.from_pass(number - int(firsts[part])))
                position, left = position + len(plan), left - len(plan)
        whole, order = one_after_another(plans), np.argsort(np.concatenate(places), kind="stable")
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
    # ties go to the first part: a plan may not depend on how a sort treats equals
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return shares
