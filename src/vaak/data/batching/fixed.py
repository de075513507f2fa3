"""Batches of a fixed number of examples in random order; the last of an epoch may be smaller."""

from __future__ import annotations

from vaak.data.plan import BatchPlan, plan_generator, starts_every


class FixedPlanner:
    """Every microbatch has ``batch_size`` rows."""

    def __init__(self, num_examples: int, batch_size: int, seed: int) -> None:
        self._microbatch_starts = starts_every(batch_size, num_examples)
        self._seed = seed
        self.num_microbatches = len(self._microbatch_starts) - 1

    def plan(self, epoch: int) -> BatchPlan:
        order = plan_generator(self._seed, epoch).permutation(int(self._microbatch_starts[-1]))
        return BatchPlan(order, None, self._microbatch_starts)
