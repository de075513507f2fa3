"""Plans of data with parts: a microbatch has one part, shares are those asked for, and nothing is left out."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.config.training import BatchingConfig, TrainingConfig
from vaak.core.errors import DataError, UserError
from vaak.core.task import Dataset
from vaak.data.batching import evaluation_plan, training_planner, whole_planner
from vaak.data.loader import training_addresses
from vaak.data.mixing import StepWeights, apportioned
from vaak.data.plan import Plan, Planner

SIZES = (80, 24, 8)
WHOLE = 10**9
any_largest = st.integers(1, 40) | st.just(WHOLE)
"""As many examples as are planned at once, or all."""


class InParts(Dataset):
    """Lengths in parts of these sizes, without anything to read."""

    parts: np.ndarray

    def __init__(self, sizes: tuple[int, ...], shares: Any = None) -> None:
        self.parts = np.repeat(np.arange(len(sizes)), sizes)
        self.lengths = 1 + np.arange(sum(sizes)) % 13
        self.shares, self.fingerprint = shares, "parts"
        self.strata = self.lengths % 3


def mixed(sizes: tuple[int, ...], shares: Any = None, kind: Any = "fixed", largest: int = WHOLE) -> Planner:
    return whole_planner(InParts(sizes, shares), BatchingConfig(type=kind), 4, 7, largest)


def places_of(plan: Plan) -> list[tuple[int, int]]:
    """The examples of a plan in their order, each with the position of its microbatch."""
    return [(place, index) for place in range(len(plan)) for row in plan.microbatch(place) for index in row]


def parts_of(plan: Plan, parts: np.ndarray) -> list[int]:
    """The part of each microbatch, which has no other."""
    found = [{int(parts[index]) for row in plan.microbatch(place) for index in row} for place in range(len(plan))]
    assert all(len(one) == 1 for one in found)
    return [next(iter(one)) for one in found]


@pytest.mark.parametrize("kind", ["fixed", "bucketed", "stratified"])
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple), largest=any_largest)
def test_in_proportion_every_example_is_there_once_in_every_epoch(kind, sizes, largest):
    planner = mixed(sizes, kind=kind, largest=largest)
    for epoch in range(3):
        plan = planner.plan(epoch)
        parts_of(plan, InParts(sizes).parts)
        assert sorted(index for _, index in places_of(plan)) == list(range(sum(sizes)))
        assert len(plan) == planner.num_microbatches
        assert not any(plan.occurrence(place) for place in range(len(plan)))


def test_in_proportion_the_microbatches_of_a_part_are_those_that_it_has_alone():
    plan, alone = mixed(SIZES).plan(2), mixed(SIZES[:1]).plan(2)
    own = [plan.microbatch(place) for place, part in enumerate(parts_of(plan, InParts(SIZES).parts)) if part == 0]
    assert sorted(own) == sorted(alone.microbatch(place) for place in range(len(alone)))


@pytest.mark.parametrize(("exponent", "expected"), [(1.0, [20, 6, 2]), (0.5, [15, 8, 5]), (0.0, [10, 9, 9])])
def test_shares_follow_sizes_to_the_power_of_the_exponent(exponent, expected):
    plan = mixed(SIZES, lambda epoch: exponent).plan(0)
    assert np.bincount(parts_of(plan, InParts(SIZES).parts)).tolist() == expected


def test_shares_are_kept_all_along_an_epoch():
    parts = np.array(parts_of(mixed((400, 400, 200)).plan(0), InParts((400, 400, 200)).parts))
    for half in (parts[:125], parts[125:]):
        assert np.abs(np.bincount(half, minlength=3) - [50, 50, 25]).max() <= 2
    assert parts.tolist() != sorted(parts.tolist())


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=3).map(tuple),
    exponents=st.lists(st.floats(0, 1), min_size=6, max_size=6),
    largest=any_largest,
)
def test_no_example_of_a_part_comes_again_before_all_others_came_whatever_the_shares(sizes, exponents, largest):
    planner, parts = mixed(sizes, lambda epoch: exponents[epoch], largest=largest), InParts(sizes).parts
    seen: Counter[int] = Counter()
    for epoch in range(6):
        plan = planner.plan(epoch)
        assert len(plan) == planner.num_microbatches
        places = places_of(plan)
        repeats = {(index, plan.occurrence(place)) for place, index in places}
        assert len(repeats) == len(places)
        assert all(occurrence < plan.num_passes for _, occurrence in repeats)
        seen.update(index for _, index in places)
        for part in range(len(sizes)):
            own = [seen[index] for index in np.flatnonzero(parts == part).tolist()]
            assert max(own) - min(own) <= 1


def test_a_plan_is_a_function_of_seed_epoch_and_shares():
    first, again = mixed(SIZES, abs), mixed(SIZES, abs)
    assert [first.plan(epoch).fingerprint for epoch in (3, 1)] == [again.plan(epoch).fingerprint for epoch in (3, 1)]
    assert first.plan(0).fingerprint != mixed(SIZES, float).plan(0).fingerprint


@pytest.mark.parametrize("largest", [WHOLE, 30])
@pytest.mark.parametrize("kind", ["fixed", "stratified"])
def test_a_curriculum_opens_the_easiest_of_each_part_and_keeps_their_shares(kind, largest):
    data = InParts(SIZES, lambda epoch: (1.0, 0.0)[epoch])
    options = {"batch_size": 4, "batching": {"type": kind}, "curriculum": {"initial_difficulty": 0.25, "num_epochs": 2}}
    planner = training_planner(TrainingConfig.model_validate(options), data, largest)
    slack = 0 if largest == WHOLE else 2 * math.ceil(max(SIZES) / (largest // len(SIZES)))
    for epoch, half in ((0, 0.65), (1, 1.0)):
        plan = planner.plan(epoch)
        parts = parts_of(plan, data.parts)
        assert len(plan) == planner.num_microbatches
        read = places_of(plan)
        assert len({(index, plan.occurrence(place)) for place, index in read}) == len(read)
        for part, size in enumerate(SIZES):
            own = {index for _, index in read if data.parts[index] == part}
            # in pieces, each has its easiest share, which may be an example or so more of the few of a piece
            hardest = np.sort(data.lengths[data.parts == part])[min(size, math.ceil(half * size) + slack) - 1]
            assert own
            assert all(data.lengths[index] <= hardest for index in own)
        assert bool(np.ptp(np.bincount(parts)) > 4) == (epoch == 0)


@pytest.mark.parametrize("largest", [WHOLE, 30])
@pytest.mark.parametrize("world_size", [2, 3])
def test_another_world_size_has_the_same_steps(world_size, largest):
    def addresses(rank: int, size: int, number: int) -> set[tuple[int, int, str]]:
        planner = mixed(SIZES, abs, largest=largest)
        place = {"step": 3, "epoch": 0, "place": 12, "rank": rank, "world_size": size}
        found = training_addresses(planner, 4, **place)
        return {(one.step, one.number, str(one.rows)) for one in (next(found) for _ in range(number))}

    of_ranks = set[tuple[int, int, str]]().union(*(addresses(rank, world_size, 24) for rank in range(world_size)))
    assert addresses(0, 1, 24) <= of_ranks


def test_an_evaluation_has_part_after_part():
    data = InParts(SIZES)
    plan = evaluation_plan(data.lengths, 5, 30, data.parts)
    assert sorted(plan.indices.tolist()) == list(range(sum(SIZES)))
    parts = parts_of(plan, data.parts)
    assert parts == sorted(parts)
    assert (plan.padded_sizes(data.lengths) <= 30).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batching": {"type": "packed"}}, "packed needs rows of a known length"),
    ],
)
def test_what_parts_cannot_have(options, message):
    with pytest.raises(UserError, match=message):
        training_planner(TrainingConfig(**options), InParts(SIZES))


def test_parts_without_any_example_are_refused():
    with pytest.raises(DataError, match="the dataset is empty"):
        mixed((0, 0))


# Weights by step.

KNOTS = ((0, (1.0, 0.0, 1.0)), (20, (1.0, 3.0, 0.0)), (60, (0.0, 1.0, 1.0)))


@pytest.mark.parametrize(("largest", "slack"), [(WHOLE, 0), (300, 1), (50, 1)])
@pytest.mark.parametrize("step_size", [1, 3])
def test_by_step_each_part_has_its_share_of_every_stretch(step_size: int, largest: int, slack: int):
    """Counts up to any place are those of a plain sum of shares, to within one and a rounding at an epoch's end."""
    dataset = InParts((400, 200, 120), StepWeights(KNOTS, step_size))
    planner = whole_planner(dataset, BatchingConfig(type="fixed"), 4, 7, largest)
    steps_per_epoch = -(-planner.num_microbatches // step_size)
    for epoch in range(3):
        found = parts_of(planner.plan(epoch), dataset.parts)
        assert len(found) == planner.num_microbatches
        due = np.zeros(3)
        for place, part in enumerate(found):
            step = epoch * steps_per_epoch + place // step_size
            values = [np.interp(step, [0, 20, 60], [w[one] / sum(w) for _, w in KNOTS]) for one in range(3)]
            assert values[part] > 0 or place + 1 < len(found), (epoch, place)
            due += values
            counts = np.bincount(found[: place + 1], minlength=3)
            assert np.abs(counts - due).max() < 2 + slack, (epoch, place, counts, due)


def test_by_step_a_plan_is_a_function_of_seed_epoch_and_weights_alone():
    def plans(knots: Any, epochs: list[int], seed: int = 7) -> list[str]:
        dataset = InParts(SIZES, StepWeights(knots, 2))
        planner = whole_planner(dataset, BatchingConfig(type="fixed"), 4, seed)
        return [planner.plan(epoch).fingerprint for epoch in epochs]

    first, *_, last = plans(KNOTS, [0, 1, 2, 3])
    assert plans(KNOTS, [3, 0]) == [last, first]
    assert plans(KNOTS, [0], seed=8) != [first]
    assert plans((*KNOTS[:2], (60, (0.0, 1.0, 2.0))), [0]) != [first]


@pytest.mark.parametrize("largest", [WHOLE, 30])
def test_by_step_repeats_of_an_example_are_told_apart(largest: int):
    """A small part with a large weight is read again and again within an epoch: each time is another pass."""
    dataset = InParts((100, 4, 4), StepWeights(((0, (1.0, 8.0, 1.0)),), 1))
    plan = whole_planner(dataset, BatchingConfig(type="fixed"), 4, 7, largest).plan(0)
    again = Counter((plan.occurrence(place), *map(tuple, plan.microbatch(place))) for place in range(len(plan)))
    assert max(again.values()) == 1
    assert Counter(parts_of(plan, dataset.parts))[1] == apportioned(np.array([1.0, 8.0, 1.0]), len(plan))[1] > 20


def test_a_curriculum_of_parts_mixed_by_step_is_refused():
    with pytest.raises(UserError, match="sources mixed by step"):
        training_planner(
            TrainingConfig.model_validate({"curriculum": {"difficulty": "length"}}),
            InParts(SIZES, StepWeights(KNOTS, 1)),
        )
