"""Which plan a configuration asks for; and the plans that don't look at lengths: fixed, stratified.

Stratified: the examples are laid out class by class and dealt in turn to all batches, like cards. A class of ``n``
examples is contiguous, so over ``b`` batches each gets ``floor(n / b)`` or ``ceil(n / b)`` of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from vaak.config.training import BatchingConfig, TrainingConfig
from vaak.core.errors import DataError, UserError
from vaak.core.task import Dataset
from vaak.data.bucketing import BucketedPlanner, PackedPlanner
from vaak.data.curriculum import CurriculumPlanner, CurriculumScheduler, EasiestFirst
from vaak.data.mixing import MixedPlanner, SharesOf, StepWeights
from vaak.data.pieces import PiecewisePlanner, Selection, all_examples, by_shards
from vaak.data.plan import (
    ArrayPlanner,
    BatchPlan,
    Planner,
    RenumberedPlanner,
    checked_lengths,
    one_after_another,
    plan_generator,
    rounded_up,
    shuffled_within_groups,
    smallest_integers,
    start_offsets,
    starts_every,
)

LARGEST_PLAN = 2**24
"""Examples that are planned at once; of more, a plan is made in pieces."""


def training_planner(config: TrainingConfig, dataset: Dataset, largest: int = LARGEST_PLAN) -> Planner:
    """Return the planner of a run's training examples, with its curriculum if it has one; it plans ``largest`` at once.

    Raises what ``make_planner`` raises, and UserError if the data have no such difficulty.
    """
    batching, batch_size, seed, number = config.batching, config.batch_size, config.random_seed, len(dataset.lengths)
    if batching.shard_size is None:
        examples = all_examples(number, dataset.parts, largest)
    else:
        if config.curriculum is not None:
            raise UserError(
                "training.batching.shard_size: a curriculum orders examples by difficulty, not as they are stored; "
                "leave one of them out"
            )
        examples = by_shards(number, dataset.parts, batching.shard_size, batching.shards_mixed, seed)
    whole = _make_planner(examples, dataset, batching, batch_size, seed)
    if config.curriculum is None:
        return whole
    if isinstance(dataset.shares, StepWeights):
        raise UserError("training.curriculum: sources mixed by step aren't ordered by difficulty, too; leave one out")
    difficulties = dataset.difficulty(config.curriculum.difficulty)
    if difficulties.shape != (number,) or not np.isfinite(difficulties).all():
        raise DataError(f"a curriculum needs a difficulty for each of the {number} examples, and each a number")
    pools = EasiestFirst(examples, difficulties, dataset.strata if batching.type == "stratified" else None)

    def of_pool(size: int, seed: int, epoch: int) -> Planner:
        return _make_planner(pools.easiest(size), dataset, batching, batch_size, seed, epoch)

    scheduler = curriculum_scheduler(config, whole.num_microbatches)
    return CurriculumPlanner(whole, of_pool, examples, scheduler, batch_size, seed)


def curriculum_scheduler(config: TrainingConfig, num_microbatches: int) -> CurriculumScheduler:
    """Return the scheduler of ``training.curriculum``; it takes the whole run where no ``num_epochs`` is given."""
    options = config.curriculum
    assert options is not None
    num_epochs: float = config.epochs
    if options.num_epochs is not None:
        num_epochs = options.num_epochs
    elif config.max_steps is not None:
        # Passes are over the whole data; the last may be a fraction.
        num_epochs = config.max_steps / -(-num_microbatches // config.gradient_accumulation_steps)
    return CurriculumScheduler(options.initial_difficulty, options.final_difficulty, num_epochs, options.pacing)


def whole_planner(
    dataset: Dataset, batching: BatchingConfig, batch_size: int, seed: int, largest: int = LARGEST_PLAN
) -> Planner:
    """Return the planner of all examples, of which it plans ``largest`` at once; those of several parts are mixed.

    ``batching``, ``batch_size`` and ``seed``, and what is raised, are those of ``make_planner``.
    """
    examples = all_examples(len(dataset.lengths), dataset.parts, largest)
    return _make_planner(examples, dataset, batching, batch_size, seed)


def _make_planner(
    examples: Selection,
    dataset: Dataset,
    batching: BatchingConfig,
    batch_size: int,
    seed: int,
    epoch: int | None = None,
) -> Planner:
    """Make the planner of some examples; parts keep the shares that they have in ``epoch``, if it is given."""

    multiple = (batching.round_lengths or 0) * dataset.length_of_position if batching.type == "bucketed" else 0
    longest = dataset.longest if multiple else 0.0

    def of_piece(part: int, piece: int, seed: int) -> ArrayPlanner:
        chosen = examples.members(part, piece)
        members = None if isinstance(chosen, slice) else chosen
        planner = make_planner(
            batching,
            lengths=rounded_up(dataset.lengths[chosen], multiple, longest),
            strata=None if dataset.strata is None else dataset.strata[chosen],
            batch_size=batch_size,
            row_capacity=dataset.row_capacity if dataset.parts is None else None,
            seed=seed,
            members=members,
        )
        return planner if members is None else RenumberedPlanner(planner, members)

    def of_part(part: int) -> Planner:
        if examples.largest is None:
            return of_piece(part, 0, seed)
        return PiecewisePlanner(int(examples.num_pieces[part]), partial(of_piece, part), seed)

    planners = [of_part(part) for part in range(len(examples.sizes))]
    if dataset.parts is None:
        return planners[0]
    shares, stretch = dataset.shares, None
    if shares is not None and epoch is not None and not isinstance(shares, StepWeights):
        shares = SharesOf(shares, epoch)
    if examples.largest is not None:
        # A stretch may have microbatches of any one part.
        rows = max(size / planner.num_microbatches for size, planner in zip(examples.sizes, planners, strict=True))
        stretch = max(1, int(examples.largest / rows))
    return MixedPlanner(planners, shares, seed, stretch)


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
    """Return the planner that ``batching`` names.

    ``lengths`` ``(example,)`` are in tokens or seconds, and ``strata`` ``(example,)`` are classes, for stratified
    batches. ``batch_size`` is the rows of a microbatch, ``row_capacity`` the length of a packed row, and ``seed`` draws
    the order. ``members`` are the examples' numbers among all, for errors.

    Raises DataError for an empty dataset or an example that fits in no batch; UserError if the data can't be
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
    """Return the padded budget of a batch and the option it comes from."""
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
        # -1: no card, in the last round.
        dealt = np.full(rounds * self.num_microbatches, -1)
        dealt[: len(cards)] = cards
        # A round gives each batch one card, so a batch is a column.
        batches = dealt.reshape(rounds, self.num_microbatches).T[rng.permutation(self.num_microbatches)]
        present = batches >= 0
        return BatchPlan(batches[present], None, start_offsets(present.sum(axis=1)))
