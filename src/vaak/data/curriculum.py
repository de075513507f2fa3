"""Easy examples first: training draws from a growing fraction of the data, which never loses its easy examples.

An epoch is made of passes. Each pass takes the easiest part of the data that is open when it begins (the pool) and is a
whole plan of it, so it holds every example of the pool once, in full batches; as soon as it ends, the next one begins
with a larger pool. The epoch ends at the microbatch where an epoch of all examples would::

    epoch     [ pass 0, pool 30 % | pass 1, pool 32 %  | pass 2, pool 34 %   | pass 3, ...
    examples  easiest ............................................................  cut off

So the number of microbatches is that of the plain plan, whatever the batches are made of; in an epoch no example of a
pool comes up twice more than another that was there as long. Once all data are open, epochs are the plain plan's.

Source: Platanios, Stretcu, Neubig, Poczos, Mitchell 2019, "Competence-based Curriculum Learning for Neural Machine
Translation", section 2. Differs: passes instead of draws with replacement; competence is that of the pass's beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.data.plan import ArrayPlanner, BatchPlan, Plan, Planner, one_after_another, smallest_integers, starts_of

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
        """The fraction of the data that is open at a time in epochs: 2.5 is the middle of the third."""
        return self.competence(epoch / self.num_epochs)

    def competence(self, progress: float) -> float:
        """The fraction of the data that is open when ``progress`` of the curriculum, from 0 to 1, has passed.

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
    """Plans passes over the easiest examples, until ``whole`` plans everything.

    ``planner_of(pool, seed, epoch)`` plans some examples, which it numbers from 0, in passes of an epoch; ``order`` is
    all examples, easiest first. A pool has at least ``fewest`` examples: what fills a microbatch.

    The ``scheduler`` says which fraction is open at an epoch, and ``seed`` draws the order.
    """

    def __init__(
        self,
        whole: Planner,
        planner_of: Callable[[np.ndarray, int, int], ArrayPlanner],
        order: np.ndarray,
        scheduler: CurriculumScheduler,
        fewest: int,
        seed: int,
    ) -> None:
        self._whole, self._planner_of, self._order = whole, planner_of, order
        self._scheduler, self._fewest, self._seed = scheduler, fewest, seed
        self.num_microbatches = whole.num_microbatches

    def plan(self, epoch: int) -> Plan:
        if self._pool_size(epoch) == len(self._order):  # all are open: the plan without a curriculum
            return self._whole.plan(epoch)
        # The scheduler is in the key, so that a run can't be resumed under another one: its plans would look alike.
        seed = draw_key(Purpose.CURRICULUM, self._seed, epoch, str(self._scheduler))
        passes: list[BatchPlan] = []
        place = 0
        while place < self.num_microbatches:
            # an epoch has as many microbatches as any other, so a small pool is passed over several times, growing
            pool = self._order[: self._pool_size(epoch + place / self.num_microbatches)]
            plan = self._planner_of(pool, seed, epoch).plan(len(passes))
            plan = plan.part(0, min(len(plan), self.num_microbatches - place))
            passes.append(plan.among(pool))
            place += len(plan)
        return one_after_another(passes)

    def _pool_size(self, epoch: float) -> int:
        open_examples = int(self._scheduler.get_difficulty(epoch) * len(self._order))
        return min(max(open_examples, self._fewest), len(self._order))


def easiest_first(difficulties: np.ndarray, strata: np.ndarray | None = None) -> np.ndarray:
    """All example indices in ascending order of difficulty; equals keep their order.

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
    within = np.arange(len(order)) - np.repeat(starts_of(sizes)[:-1], sizes)
    return order[np.argsort((within + 0.5) / np.repeat(sizes, sizes), kind="stable")]
