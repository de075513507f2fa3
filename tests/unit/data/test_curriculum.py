"""A curriculum opens the data easiest first, drops nothing it has opened, and leaves the number of steps alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vaak.config.training import TrainingConfig
from vaak.core.errors import DataError, UserError
from vaak.core.task import Dataset
from vaak.data.batching import curriculum_scheduler, training_planner
from vaak.data.curriculum import CurriculumScheduler, easiest_first, sizes_among_easiest
from vaak.data.loader import training_addresses
from vaak.data.plan import BatchPlan, Plan, Planner

KINDS = ("fixed", "bucketed", "packed", "stratified")
CAPACITY = 100
LENGTHS = np.random.default_rng(0).integers(1, CAPACITY, 300)

parts = st.floats(0.01, 1)
pacings = st.sampled_from(["linear", "root"])
any_curriculum = st.fixed_dictionaries(
    {"initial_difficulty": parts, "num_epochs": st.integers(1, 5), "pacing": pacings, "difficulty": st.just("lexical")}
)
any_difficulties = st.lists(st.integers(0, 30), min_size=1, max_size=120).map(np.array)
any_seed = st.integers(0, 2**32)
WHOLE = 10**9
MANY: dict[str, Any] = {
    "difficulties": np.arange(50) * 7 % 30,
    "curriculum": {"initial_difficulty": 0.3, "num_epochs": 3, "pacing": "linear", "difficulty": "lexical"},
    "seed": 0,
}
any_largest = st.integers(1, 70) | st.just(WHOLE)
"""As many examples as are planned at once, or all."""


class Rated(Dataset):
    """Examples of these difficulties, of other lengths and of three classes."""

    row_capacity = CAPACITY

    def __init__(self, difficulties: np.ndarray) -> None:
        size = len(difficulties)
        self.lengths = np.random.default_rng(size).integers(1, CAPACITY, size)
        self.strata, self.difficulties = np.arange(size) % 3, difficulties

    def difficulty(self, measure: str) -> np.ndarray:
        return self.difficulties if measure == "lexical" else super().difficulty(measure)


def configured(kind: str, curriculum: dict[str, Any] | None, batch_size: int = 4, seed: int = 0) -> TrainingConfig:
    options = {"batching": {"type": kind}, "batch_size": batch_size, "random_seed": seed, "curriculum": curriculum}
    return TrainingConfig.model_validate(options)


def planner_of(
    kind: str, difficulties: np.ndarray, curriculum: dict[str, Any] | None, largest: int = WHOLE, **options: int
) -> Planner:
    return training_planner(configured(kind, curriculum, **options), Rated(difficulties), largest)


def members(plan: Plan, position: int) -> list[int]:
    return [index for row in plan.microbatch(position) for index in row]


def ranks_of(kind: str, difficulties: np.ndarray, largest: int = WHOLE) -> np.ndarray:
    """The rank of each example, easiest first; where they are planned in pieces, each has one in turn."""
    strata = np.arange(len(difficulties)) % 3 if kind == "stratified" else None
    ranks, step = np.empty(len(difficulties), np.int64), -(-len(difficulties) // largest)
    for piece in range(step):
        own = easiest_first(difficulties[piece::step], None if strata is None else strata[piece::step])
        ranks[piece::step] = piece + step * np.argsort(own)
    return ranks


def passes(plan: Plan) -> list[list[int]]:
    """The examples of each pass, in the order of the epoch."""
    gathered: dict[int, list[int]] = {}
    for position in range(len(plan)):
        gathered.setdefault(plan.occurrence(position), []).extend(members(plan, position))
    return list(gathered.values())


# When how much is open.


@given(initial=parts, final=parts, num_epochs=st.floats(0.1, 50), pacing=pacings)
def test_competence_grows_from_the_first_part_to_the_last(initial, final, num_epochs, pacing):
    initial, final = sorted((initial, final))
    scheduler = CurriculumScheduler(initial, final, num_epochs, pacing)
    values = [scheduler.get_difficulty(epoch) for epoch in np.linspace(0, num_epochs, 50)]
    assert values[0] == pytest.approx(initial)
    assert values[-1] == final == scheduler.get_difficulty(10 * num_epochs)
    assert all(first <= second for first, second in pairwise(values))
    assert max(values) == final


def test_the_curves_are_the_papers():
    linear, root = (CurriculumScheduler(0.01, 1.0, 10, pacing) for pacing in ("linear", "root"))
    assert linear.get_difficulty(5) == pytest.approx(0.505)  # t (1 - c0) / T + c0
    assert root.get_difficulty(5) == pytest.approx(np.sqrt(0.5 * (1 - 0.01**2) + 0.01**2))
    assert linear.competence(0.5) == linear.get_difficulty(5)


@pytest.mark.parametrize(
    "wrong", [{"initial_difficulty": 0}, {"final_difficulty": 0.2}, {"num_epochs": 0}, {"pacing": "slow"}]
)
def test_a_curriculum_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(UserError, match="a curriculum"):
        CurriculumScheduler(**wrong)


def test_without_num_epochs_it_takes_the_whole_run():
    config = configured("fixed", {"num_epochs": None})
    assert curriculum_scheduler(config.model_copy(update={"epochs": 7}), 10).num_epochs == 7
    by_steps = config.model_copy(update={"epochs": 7, "max_steps": 12, "gradient_accumulation_steps": 3})
    assert curriculum_scheduler(by_steps, 10).num_epochs == 12 / 4
    given = configured("fixed", {"num_epochs": 5})
    assert curriculum_scheduler(given.model_copy(update={"max_steps": 12}), 10).num_epochs == 5


# What is easiest.


@given(difficulties=any_difficulties)
def test_equals_keep_their_order(difficulties):
    order = easiest_first(difficulties)
    assert order.tolist() == sorted(range(len(difficulties)), key=lambda index: (difficulties[index], index))


@given(difficulties=any_difficulties, data=st.data())
def test_any_easiest_part_has_the_classes_proportions(difficulties, data):
    strata = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(difficulties), max_size=len(difficulties))))
    order = easiest_first(difficulties, strata)
    assert sorted(order.tolist()) == list(range(len(difficulties)))
    sizes = np.bincount(strata, minlength=4)
    for size in range(1, len(order) + 1):
        counts = np.bincount(strata[order[:size]], minlength=4)
        assert np.abs(counts - sizes * size / len(order)).max() <= 0.5 + np.count_nonzero(sizes) / 2
    for stratum in range(4):
        own = difficulties[order[strata[order] == stratum]]
        assert (np.diff(own) >= 0).all()


# What the plans hold.


@given(sizes=st.lists(st.integers(1, 200), min_size=1, max_size=12).map(np.array))
@example(sizes=np.array([1] * 30 + [200]))
@example(sizes=np.array([3] * 30 + [200]))
def test_how_many_of_each_class_are_easiest_follows_from_their_sizes(sizes):
    strata = np.repeat(np.arange(len(sizes)), sizes)
    order = easiest_first(np.zeros(len(strata)), strata)
    for number in {*range(0, len(order), 7), *range(min(len(order), 20)), len(order)}:
        counts = np.bincount(strata[order[:number]], minlength=len(sizes))
        assert sizes_among_easiest(sizes, number).tolist() == counts.tolist()


@pytest.mark.parametrize("kind", KINDS)
@given(
    difficulties=any_difficulties,
    curriculum=any_curriculum,
    seed=any_seed,
    batch_size=st.integers(1, 9),
    largest=any_largest,
)
@example(batch_size=4, largest=10, **MANY)
@example(batch_size=2, largest=7, **MANY)
def test_each_place_holds_what_is_open_there_and_the_epoch_keeps_its_size(
    kind, difficulties, curriculum, seed, batch_size, largest
):
    options = {"seed": seed, "batch_size": batch_size, "largest": largest}
    planner, plain = (
        planner_of(kind, difficulties, curriculum, **options),
        planner_of(kind, difficulties, None, **options),
    )
    assert planner.num_microbatches == plain.num_microbatches
    scheduler = CurriculumScheduler(
        curriculum["initial_difficulty"], 1.0, curriculum["num_epochs"], curriculum["pacing"]
    )
    rank = ranks_of(kind, difficulties, largest)
    for epoch in range(curriculum["num_epochs"] + 1):
        plan = planner.plan(epoch)
        assert len(plan) == planner.num_microbatches
        for position in range(len(plan)):
            competence = scheduler.get_difficulty(epoch + position / len(plan))
            still_open = max(competence * len(difficulties), batch_size)
            assert rank[members(plan, position)].max() < still_open
    assert planner.plan(curriculum["num_epochs"]).fingerprint == plain.plan(curriculum["num_epochs"]).fingerprint


@pytest.mark.parametrize("kind", KINDS)
@given(difficulties=any_difficulties, curriculum=any_curriculum, seed=any_seed, largest=any_largest)
@example(largest=10, **MANY)
@example(largest=7, **MANY)
def test_every_pass_holds_everything_that_the_one_before_held_and_nothing_twice(
    kind, difficulties, curriculum, seed, largest
):
    planner = planner_of(kind, difficulties, curriculum, seed=seed, largest=largest)
    rank = ranks_of(kind, difficulties, largest)
    for epoch in range(curriculum["num_epochs"]):
        *whole, last = passes(planner.plan(epoch))
        assert all(set(first) <= set(second) for first, second in pairwise(whole))
        assert all(len(set(examples)) == len(examples) for examples in [*whole, last])
        assert all(sorted(rank[examples].tolist()) == list(range(len(examples))) for examples in whole)


@pytest.mark.parametrize("largest", [WHOLE, 70])
@pytest.mark.parametrize("kind", KINDS)
def test_over_an_epoch_what_was_always_open_comes_up_equally_often(kind, largest):
    curriculum = {"difficulty": "lexical", "num_epochs": 10, "initial_difficulty": 0.2}
    plan = planner_of(kind, LENGTHS, curriculum, largest).plan(0)
    easiest = ranks_of(kind, LENGTHS, largest) < 60
    read = [index for position in range(len(plan)) for index in members(plan, position)]
    counts = np.bincount(read, minlength=300)[easiest]
    assert counts.min() >= 3
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("kind", KINDS)
@given(curriculum=any_curriculum, seed=any_seed, largest=any_largest)
@settings(max_examples=20)
def test_a_plan_is_a_function_of_seed_and_epoch(kind, curriculum, seed, largest):
    planner = planner_of(kind, LENGTHS, curriculum, seed=seed, largest=largest)
    later, again = planner.plan(1), planner_of(kind, LENGTHS, curriculum, seed=seed, largest=largest).plan(1)
    planner.plan(0)
    assert again.fingerprint == later.fingerprint
    for position in reversed(range(len(later))):
        assert again.microbatch(position) == later.microbatch(position)
        assert again.occurrence(position) == later.occurrence(position)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_seeds_passes_and_curricula_shuffle_otherwise(kind):
    curriculum = {"difficulty": "lexical", "num_epochs": 10}
    plan = planner_of(kind, LENGTHS, curriculum).plan(0)
    same_pool = {"difficulty": "lexical", "initial_difficulty": 0.3, "final_difficulty": 0.3}
    first, second, *_ = passes(planner_of(kind, LENGTHS, same_pool).plan(0))
    assert set(first) == set(second)
    assert first != second
    others = [
        planner_of(kind, LENGTHS, curriculum).plan(1),
        planner_of(kind, LENGTHS, curriculum, seed=1).plan(0),
        planner_of(kind, LENGTHS, curriculum | {"num_epochs": 10_000}).plan(0),
        planner_of(kind, LENGTHS, curriculum | {"pacing": "root", "num_epochs": 10_000}).plan(0),
    ]
    assert len({plan.fingerprint for plan in [plan, *others]}) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_beyond_the_final_difficulty_never_comes_up(kind):
    curriculum = {"difficulty": "lexical", "initial_difficulty": 0.1, "final_difficulty": 0.5, "num_epochs": 2}
    planner = planner_of(kind, LENGTHS, curriculum)
    strata = np.arange(300) % 3 if kind == "stratified" else None
    easier = set(easiest_first(LENGTHS, strata)[:150].tolist())
    for epoch in (0, 1, 2, 9):
        plan = planner.plan(epoch)
        read = {index for position in range(len(plan)) for index in members(plan, position)}
        assert read <= easier
    assert read == easier


def test_bucketed_batches_keep_the_budget():
    options = {"type": "bucketed", "max_tokens": 400}
    curriculum = {"num_epochs": 3, "initial_difficulty": 0.1}
    config = TrainingConfig.model_validate({"batching": options, "batch_size": 4, "curriculum": curriculum})
    examples = Rated(LENGTHS)
    planner = training_planner(config, examples)
    for epoch in range(4):
        assert planner.plan(epoch).padded_sizes(examples.lengths).max() <= 400


def test_packed_rows_keep_the_capacity():
    examples = Rated(LENGTHS)
    planner = training_planner(configured("packed", {"num_epochs": 3}), examples)
    for epoch in range(4):
        plan = planner.plan(epoch)
        rows = [row for position in range(len(plan)) for row in plan.microbatch(position)]
        assert max(examples.lengths[row].sum() for row in rows) <= CAPACITY


def test_data_that_say_nothing_of_difficulty_are_compared_by_length():
    examples = Rated(LENGTHS)
    plan = training_planner(configured("fixed", {"difficulty": "length", "num_epochs": 5}), examples).plan(0)
    assert isinstance(plan, BatchPlan)
    assert examples.lengths[passes(plan)[0]].max() <= np.sort(examples.lengths)[: int(0.3 * 300)].max()


@pytest.mark.parametrize("wrong", [np.ones(2), np.array([1, np.nan, 2])])
def test_difficulties_that_are_none_are_refused(wrong):
    examples = Rated(np.ones(3))
    examples.difficulties = wrong
    with pytest.raises(DataError, match="a difficulty for each of the 3 examples"):
        training_planner(configured("fixed", {"difficulty": "lexical"}), examples)


# What the loader is sent.


@pytest.mark.parametrize("largest", [WHOLE, 70])
def test_repeats_are_told_apart_and_a_start_anywhere_sends_the_rest(largest):
    planner = planner_of("fixed", LENGTHS, {"difficulty": "lexical", "num_epochs": 4}, largest)

    def sent(**start: int) -> list[tuple[int, int, int, int]]:
        addresses = training_addresses(planner, 1, rank=0, world_size=1, **start)
        return [
            (address.epoch, address.occurrence, index, address.step)
            for address, _ in zip(addresses, range(2 * planner.num_microbatches - start["place"]), strict=False)
            for row in address.rows
            for index in row
        ]

    whole = sent(step=0, epoch=0, place=0)
    assert len({draw[:3] for draw in whole}) == len(whole)
    assert max(draw[1] for draw in whole) >= 2
    for place in (1, 40, planner.num_microbatches - 1):
        assert sent(step=place, epoch=0, place=place) == [draw for draw in whole if draw[3] > place]
