"""Batches that each hold the whole set's proportions of classes: examples are dealt like cards.

The examples are laid out class by class and dealt in turn to all batches. A class of ``n`` examples is contiguous, so
over ``b`` batches each gets ``floor(n / b)`` or ``ceil(n / b)`` of them, and batches differ in size by at most one.
"""

from __future__ import annotations

import numpy as np

from vaak.core.errors import DataError
from vaak.data.plan import BatchPlan, plan_generator, shuffled_within_groups, smallest_integers, starts_of


class StratifiedPlanner:
    """Every microbatch has at most ``batch_size`` rows, and of each class its proportion to within one example."""

    def __init__(self, strata: np.ndarray, num_examples: int, batch_size: int, seed: int) -> None:
        if len(strata) != num_examples:
            raise DataError(f"there are {num_examples} examples, but classes for {len(strata)}: each example needs one")
        classes, codes = np.unique(np.asarray(strata), return_inverse=True)
        self._num_classes = len(classes)
        self._classes = smallest_integers(codes)
        self._seed = seed
        self.num_microbatches = -(-num_examples // batch_size)

    def plan(self, epoch: int) -> BatchPlan:
        rng = plan_generator(self._seed, epoch)
        class_order = smallest_integers(rng.permutation(self._num_classes))
        cards = shuffled_within_groups(class_order[self._classes], rng)
        rounds = -(-len(cards) // self.num_microbatches)
        dealt = np.full(rounds * self.num_microbatches, -1)
        dealt[: len(cards)] = cards
        batches = dealt.reshape(rounds, self.num_microbatches).T[rng.permutation(self.num_microbatches)]
        present = batches >= 0
        return BatchPlan(batches[present], None, starts_of(present.sum(axis=1)))
