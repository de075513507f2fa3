"""Which plan a configuration asks for; and the plans that don't look at lengths: fixed, stratified, mixed.

Stratified: the examples are laid out class by class and dealt in turn to all batches, like cards. A class of ``n``
examples is contiguous, so over ``b`` batches each gets ``floor(n / b)`` or ``ceil(n / b)`` of them.

Mixed: each microbatch is from one part of the dataset alone. Every part has a separate planner, and is read pass after
pass, through all epochs. In an epoch the parts have together as many microbatches as one pass over all of them; part
``i``, which has ``m`` in a pass, has a share of them in proportion to ``m ** exponent``: 1, one pass over each part;
0.5, small parts more often; 0, all parts equally often. Shares are kept exactly, all along the epoch, instead of drawn.
Or weights of the parts at some steps are given (``StepWeights``): then the shares of a step are those on the line
between the two that are nearest, and a function of the step's number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vaak.config.training import BatchingConfig, TrainingConfig
from vaak.core.errors import DataError, UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset
from vaak.data.bucketing import BucketedPlanner, PackedPlanner
from vaak.data.curriculum import CurriculumPlanner, CurriculumScheduler, easiest_first
from vaak.data.plan import (
    ArrayPlanner,
    BatchPlan,
    PiecewisePlanner,
    Planner,
    checked_lengths,
    one_after_another,
    plan_generator,
    reorder_segments,
    rounded_up,
    shuffled_within_groups,
    smallest_integers,
    starts_every,
    starts_of,
)


def training_planner(config: TrainingConfig, dataset: Dataset) -> Planner:
    """The planner of a run's training examples, with its curriculum if it has one.

    Raises what ``make_planner`` raises, and UserError where the data have no such difficulty.
    """

    whole = whole_planner(dataset, config.batching, config.batch_size, config.random_seed)
    if config.curriculum is None:
        return whole
    if isinstance(dataset.shares, StepWeights):
        raise UserError("training.curriculum: sources mixed by step aren't ordered by difficulty, too; leave one out")

    def of_pool(pool: np.ndarray, seed: int, epoch: int) -> ArrayPlanner:
        return planner_of(dataset, config.batching, config.batch_size, seed, pool, epoch)

    difficulties, number = dataset.difficulty(config.curriculum.difficulty), len(dataset.lengths)
    if difficulties.shape != (number,) or not np.isfinite(difficulties).all():
        raise DataError(f"a curriculum needs a difficulty for each of the {number} examples, and each a number")
    # Difficulties of unlike examples don't compare: a short sentence of one part may be the hardest of another.
    groups, strata = dataset.parts, dataset.strata if config.batching.type == "stratified" else None
    if strata is not None:
        groups = strata if groups is None else np.unique(np.stack([groups, strata]), axis=1, return_inverse=True)[1]
    order = easiest_first(difficulties, groups)
    scheduler = curriculum_scheduler(config, whole.num_microbatches)
    return CurriculumPlanner(whole, of_pool, order, scheduler, config.batch_size, config.random_seed)


def curriculum_scheduler(config: TrainingConfig, num_microbatches: int) -> CurriculumScheduler:
    """The scheduler of ``training.curriculum``; it takes the whole run where no ``num_epochs`` is given."""
    options = config.curriculum
    assert options is not None
    num_epochs: float = config.epochs
    if options.num_epochs is not None:
        num_epochs = options.num_epochs
    elif config.max_steps is not None:  # in passes over the whole data, the last of which may be a fraction
        num_epochs = config.max_steps / -(-num_microbatches // config.gradient_accumulation_steps)
    return CurriculumScheduler(options.initial_difficulty, options.final_difficulty, num_epochs, options.pacing)


LARGEST_PLAN = 2**24
"""Examples of which a plan is made in one piece."""


def whole_planner(
    dataset: Dataset, batching: BatchingConfig, batch_size: int, seed: int, largest: int = LARGEST_PLAN
) -> Planner:
    """The planner of all examples: in pieces where they are more than ``largest``, and not of several parts.

    ``batching``, ``batch_size`` and ``seed``, and what is raised, are those of ``make_planner``.
    """
    number = len(dataset.lengths)
    if dataset.parts is not None or number <= largest:
        return planner_of(dataset, batching, batch_size, seed)

    def of_piece(members: np.ndarray, seed: int) -> ArrayPlanner:
        return planner_of(dataset, batching, batch_size, seed, members)

    return PiecewisePlanner(number, largest, of_piece, seed)


def planner_of(
    dataset: Dataset,
    batching: BatchingConfig,
    batch_size: int,
    seed: int,
    pool: np.ndarray | None = None,
    epoch: int | None = None,
) -> ArrayPlanner:
    """The planner of a dataset, or of the examples in ``pool``; of one with parts, a planner for each, mixed.

    ``batching``, ``batch_size`` and ``seed``, and what is raised, are those of ``make_planner``. Parts keep the shares
    that they have in ``epoch``, if it is given.
    """

    multiple = (batching.round_lengths or 0) * dataset.length_of_position if batching.type == "bucketed" else 0
    longest = dataset.longest if multiple else 0.0

    def of(chosen: np.ndarray | slice) -> ArrayPlanner:
        return make_planner(
            batching,
            lengths=rounded_up(dataset.lengths[chosen], multiple, longest),
            strata=None if dataset.strata is None else dataset.strata[chosen],
            batch_size=batch_size,
            row_capacity=dataset.row_capacity if dataset.parts is None else None,
            seed=seed,
            members=None if isinstance(chosen, slice) else chosen,
        )

    if dataset.parts is None:
        return of(slice(None) if pool is None else pool)
    pool = np.arange(len(dataset.parts)) if pool is None else pool
    own = dataset.parts[pool]
    members = [np.flatnonzero(own == part) for part in np.unique(own)]
    shares = dataset.shares
    if shares is not None and epoch is not None and not isinstance(shares, StepWeights):
        shares = SharesOf(shares, epoch)
    return MixedPlanner(members, lambda places: of(pool[places]), shares, seed)


def make_planner(  # noqa: PLR0913 (what each kind of batch reads of a dataset)
    batching: BatchingConfig,
    *,
    lengths: np.ndarray,
    strata: np.ndarray | None,
    batch_size: int,
    row_capacity: float | None,
    seed: int,
    members: np.ndarray | None = None,
) -> ArrayPlanner:
    """The planner that ``batching`` names.

    ``lengths`` ``(example,)`` are in tokens or seconds, and ``strata`` ``(example,)`` are classes, for stratified
    batches. ``batch_size`` is the rows of a microbatch, ``row_capacity`` the length of a packed row, and ``seed`` draws
    the order. ``members`` are the examples' numbers among all, for errors.

    Raises DataError for an empty dataset or an example that fits in no batch; UserError where the data can't be
    planned this way.
    """
    if batching.type == "bucketed":
        budget, name = _budget(batching)
        return BucketedPlanner(
            checked_lengths(lengths, budget, name, members), budget, batch_size, batching.num_buckets, seed
        )
    if batching.type == "packed":
        if row_capacity is None:
            raise UserError("training.batching.type: packed needs rows of a known length; this data has none")
        return PackedPlanner(
            checked_lengths(lengths, row_capacity, "the row's length", members), row_capacity, batch_size, seed
        )
    if batching.type == "stratified":
        if strata is None:
            raise UserError("training.batching.type: stratified needs a class for each example; this data has none")
        return StratifiedPlanner(strata, len(checked_lengths(lengths, members=members)), batch_size, seed)
    return FixedPlanner(len(checked_lengths(lengths, members=members)), batch_size, seed)


def evaluation_plan(
    lengths: np.ndarray, batch_size: int, budget: float | None = None, parts: np.ndarray | None = None
) -> BatchPlan:
    """Batches of ``batch_size`` in ascending order of length, part after part: always the same, with little padding.

    With a ``budget``, rows times the longest keeps within it, but for an example that exceeds it alone.
    """
    if parts is not None:
        members = [np.flatnonzero(parts == part) for part in np.unique(parts)]
        return one_after_another(
            [evaluation_plan(np.asarray(lengths)[own], batch_size, budget).among(own) for own in members]
        )
    order = np.argsort(checked_lengths(lengths), kind="stable")
    if budget is None:
        return BatchPlan(order, None, starts_every(batch_size, len(order)))
    ascending, starts = np.asarray(lengths)[order], [0]
    while starts[-1] < len(order):
        candidates = ascending[starts[-1] : starts[-1] + batch_size]
        fitting = int((np.arange(1, len(candidates) + 1) * candidates <= budget).sum())
        starts.append(starts[-1] + max(1, fitting))
    return BatchPlan(order, None, np.array(starts))


def largest_rows(config: TrainingConfig, longest: float) -> int:
    """Rows of the largest microbatch there may be, where every example has the greatest length."""
    budget, _ = _budget(config.batching)
    bounded = config.batching.type == "bucketed" and budget is not None
    return max(1, int(budget // longest)) if bounded and budget is not None else config.batch_size


def _budget(batching: BatchingConfig) -> tuple[float | None, str]:
    """The padded budget of a batch and the option it comes from."""
    if batching.max_tokens is not None and batching.max_duration is not None:
        raise UserError("training.batching: max_tokens and max_duration are both given; keep one")
    if batching.max_tokens is not None:
        return batching.max_tokens, "training.batching.max_tokens"
    return batching.max_duration, "training.batching.max_duration"


class FixedPlanner:
    """Every microbatch has ``batch_size`` rows."""

    def __init__(self, num_examples: int, batch_size: int, seed: int) -> None:
        self._microbatch_starts = starts_every(batch_size, num_examples)
        self._seed = seed
        self.num_microbatches = len(self._microbatch_starts) - 1

    def plan(self, epoch: int) -> BatchPlan:
        order = plan_generator(self._seed, epoch).permutation(int(self._microbatch_starts[-1]))
        return BatchPlan(order, None, self._microbatch_starts)


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
        # The order of classes is drawn, too: else the same ones would always fall into the last, incomplete round.
        class_order = smallest_integers(rng.permutation(self._num_classes))
        cards = shuffled_within_groups(class_order[self._classes], rng)
        rounds = -(-len(cards) // self.num_microbatches)
        dealt = np.full(rounds * self.num_microbatches, -1)  # -1: no card, in the last round
        dealt[: len(cards)] = cards
        # A round gives each batch one card, so a batch is a column.
        batches = dealt.reshape(rounds, self.num_microbatches).T[rng.permutation(self.num_microbatches)]
        present = batches >= 0
        return BatchPlan(batches[present], None, starts_of(present.sum(axis=1)))


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

    def __call__(self, epoch: int, num_microbatches: int) -> np.ndarray:
        """The share of each part in each microbatch of an epoch, ``(microbatch, part)``.

        >>> StepWeights([(0, (1, 0)), (2, (1, 1))], step_size=2)(0, 5).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.75, 0.25], [0.75, 0.25], [0.5, 0.5]]
        """
        first = epoch * -(-num_microbatches // self.step_size)
        steps = first + np.arange(num_microbatches) // self.step_size
        at, weights = [step for step, _ in self.knots], np.array([values for _, values in self.knots], dtype=np.float64)
        shares = weights / weights.sum(axis=1, keepdims=True)
        return np.stack([np.interp(steps, at, one) for one in shares.T], axis=1)


Shares = Callable[[int], float] | StepWeights


class MixedPlanner:
    """Plans each of the parts, which have ``members``, by what ``planner_of`` them gives.

    ``exponent(epoch)`` says how shares follow sizes (None: always 1), or gives them by step; two that differ differ in
    their text, too, which is part of the plan, so that a run can't be resumed under another. ``seed`` draws the order.
    """

    def __init__(
        self,
        members: Sequence[np.ndarray],
        planner_of: Callable[[np.ndarray], ArrayPlanner],
        exponent: Shares | None,
        seed: int,
    ) -> None:
        self._members, self._planners = members, [planner_of(own) for own in members]
        self._sizes = np.array([planner.num_microbatches for planner in self._planners])
        self._exponent, self._seed = exponent, draw_key(Purpose.MIXTURE, seed, str(exponent))
        self.num_microbatches = int(self._sizes.sum())
        self._passed = [np.zeros_like(self._sizes)]

    def shares(self, epoch: int) -> np.ndarray:
        """The number of microbatches of each part in an epoch."""
        if isinstance(self._exponent, StepWeights):
            return apportioned(self._exponent(epoch, self.num_microbatches).sum(axis=0), self.num_microbatches)
        exponent = 1.0 if self._exponent is None else self._exponent(epoch)
        return apportioned(self._sizes**exponent, self.num_microbatches)

    def plan(self, epoch: int) -> BatchPlan:
        while len(self._passed) <= epoch:
            self._passed.append(self._passed[-1] + self.shares(len(self._passed) - 1))
        # how many microbatches of each part all earlier epochs had: where each part's next pass begins
        before, shares, rng = self._passed[epoch], self.shares(epoch), plan_generator(self._seed, epoch)
        plans, passes, places = [], [], []
        due: np.ndarray | None = None  # which part of its microbatches each part should have had, before each place
        if isinstance(self._exponent, StepWeights):
            due = np.cumsum(self._exponent(epoch, self.num_microbatches), axis=0)
            due = np.concatenate([np.zeros_like(due[:1]), due]) / np.where(due[-1] > 0, due[-1], 1.0)
        for part, (position, left) in enumerate(zip(before.tolist(), shares.tolist(), strict=True)):
            # Evenly spaced, moved by one draw each: a part's share holds in every stretch of the epoch.
            even = (np.arange(left) + rng.random(left)) / max(left, 1)
            places.append(even if due is None else np.interp(even, due[:, part], np.arange(len(due))))
            # An epoch may end in the midst of a part's pass: ``position`` counts from the start of the run.
            first = position // self._planners[part].num_microbatches
            while left:
                number, place = divmod(position, self._planners[part].num_microbatches)
                plan = self._planners[part].plan(number)
                plan = plan.part(place, min(len(plan), place + left)).among(self._members[part])
                plans.append(plan)
                passes.append(number - first)  # counted within the epoch: an example gets other draws each time
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
    # ties go to the first part: a plan may not depend on how a sort treats equals
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return shares
