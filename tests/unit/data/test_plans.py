"""Every kind of plan keeps its promises on any lengths, and pads little on real ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vaak.config.training import BatchingConfig
from vaak.core.errors import DataError, UserError
from vaak.core.task import Dataset
from vaak.data.batching import evaluation_plan, make_planner, whole_planner
from vaak.data.plan import ArrayPlanner, BatchPlan, Plan, Planner

KINDS = ("fixed", "bucketed", "packed", "stratified")
CAPACITY = 100

token_lengths = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=150).map(np.array)
second_lengths = st.lists(st.floats(0.01, CAPACITY, allow_nan=False), min_size=1, max_size=150).map(np.array)
any_lengths = token_lengths | second_lengths
any_seed = st.integers(0, 2**32)


def planner_of(kind: Any, lengths: np.ndarray, batch_size: int = 4, seed: int = 0, **options: Any) -> ArrayPlanner:
    strata = np.arange(len(lengths)) % 3
    return make_planner(
        BatchingConfig(type=kind, **options),
        lengths=lengths,
        strata=strata,
        batch_size=batch_size,
        row_capacity=CAPACITY,
        seed=seed,
    )


class Lengths(Dataset):
    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths, self.strata, self.row_capacity = lengths, np.arange(len(lengths)) % 3, CAPACITY


def of_pieces(
    kind: Any, lengths: np.ndarray, largest: int, batch_size: int = 4, seed: int = 0, **options: Any
) -> Planner:
    """A planner that plans at most ``largest`` examples at once."""
    return whole_planner(Lengths(lengths), BatchingConfig(type=kind, **options), batch_size, seed, largest)


def same(a: Plan, b: Plan) -> bool:
    return a.fingerprint == b.fingerprint and all(a.microbatch(i) == b.microbatch(i) for i in range(len(a)))


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=any_lengths, seed=any_seed, batch_size=st.integers(1, 9), largest=st.integers(1, 160))
def test_every_example_is_there_once_in_every_epoch(kind, lengths, seed, batch_size, largest):
    planner = of_pieces(kind, lengths, largest, batch_size, seed)
    for epoch in range(3):
        plan = planner.plan(epoch)
        rows = [row for position in range(len(plan)) for row in plan.microbatch(position)]
        assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
        assert len(plan) == planner.num_microbatches
        assert all(1 <= len(plan.microbatch(position)) <= batch_size for position in range(len(plan)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(lengths=any_lengths, seed=any_seed)
def test_a_plan_is_a_function_of_seed_and_epoch(kind, lengths, seed):
    planner = planner_of(kind, lengths, seed=seed)
    later = planner.plan(5)
    planner.plan(0)
    assert same(planner_of(kind, lengths, seed=seed).plan(5), later)


@pytest.mark.parametrize("kind", KINDS)
def test_another_epoch_and_another_seed_have_another_order(kind):
    lengths = np.random.default_rng(0).integers(1, CAPACITY, 500)
    plan = planner_of(kind, lengths).plan(0)
    assert not same(plan, planner_of(kind, lengths).plan(1))
    assert not same(plan, planner_of(kind, lengths, seed=1).plan(0))


@given(lengths=any_lengths, budget=st.integers(CAPACITY, 5 * CAPACITY), num_buckets=st.integers(1, 70))
def test_bucketed_batches_keep_the_budget(lengths, budget, num_buckets):
    option = "max_tokens" if np.issubdtype(lengths.dtype, np.integer) else "max_duration"
    planner = planner_of("bucketed", lengths, num_buckets=num_buckets, **{option: budget})
    for epoch in range(2):
        plan = planner.plan(epoch)
        assert len(plan) == planner.num_microbatches
        for position in range(len(plan)):
            rows = plan.microbatch(position)
            assert len(rows) * max(lengths[row[0]] for row in rows) <= budget


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=token_lengths, multiple=st.integers(1, CAPACITY))
def test_padding_to_multiples_is_counted(kind, lengths, multiple):
    plan = planner_of(kind, lengths).plan(0)
    most, padded_sizes = 0.0, []
    for position in range(len(plan)):
        rows = [float(sum(lengths[index] for index in row)) for row in plan.microbatch(position)]
        most = max(most, *rows)
        padded_sizes.append((len(rows), max(rows)))
    rounded = [number * min(math.ceil(longest / multiple) * multiple, most) for number, longest in padded_sizes]
    assert plan.padded_sizes(lengths, multiple) == pytest.approx(rounded)
    assert plan.padding_waste(lengths, multiple) == pytest.approx(1 - sum(map(float, lengths)) / sum(rounded), abs=1e-9)


@pytest.mark.parametrize("multiple", [8, 13])
def test_bucketed_batches_keep_the_budget_with_rounded_lengths(multiple: int):
    lengths = np.random.default_rng(0).integers(1, 100, 300)
    dataset = Lengths(lengths)
    batching = BatchingConfig(type="bucketed", max_tokens=400, round_lengths=multiple)
    plan = whole_planner(dataset, batching, 64, seed=0).plan(0)
    padded = [(len(rows), max(int(lengths[row[0]]) for row in rows)) for rows in map(plan.microbatch, range(len(plan)))]
    shapes = {(rows, min(-(-longest // multiple) * multiple, 99)) for rows, longest in padded}
    assert all(rows * longest <= 400 for rows, longest in shapes)
    assert len({longest for _, longest in shapes}) <= -(-99 // multiple), "as many lengths as there are multiples"


@given(lengths=any_lengths)
def test_packed_rows_keep_the_capacity(lengths):
    plan = planner_of("packed", lengths).plan(0)
    for position in range(len(plan)):
        for row in plan.microbatch(position):
            assert sum(lengths[index] for index in row) <= CAPACITY * (1 + 1e-12)


@given(
    strata=st.lists(st.sampled_from(["noun", "verb", "particle", "rare"]), min_size=1, max_size=200).map(np.array),
    batch_size=st.integers(1, 40),
    seed=any_seed,
)
def test_stratified_batches_have_the_sets_proportions(strata, batch_size, seed):
    planner = make_planner(
        BatchingConfig(type="stratified"),
        lengths=np.ones(len(strata)),
        strata=strata,
        batch_size=batch_size,
        row_capacity=None,
        seed=seed,
    )
    plan = planner.plan(0)
    batches = [[row[0] for row in plan.microbatch(position)] for position in range(len(plan))]
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    for stratum in np.unique(strata):
        mean = np.sum(strata == stratum) / len(plan)
        assert all(abs(np.sum(strata[batch] == stratum) - mean) < 1 for batch in batches)


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=any_lengths, seed=any_seed, largest=st.integers(1, 160))
def test_pieces_are_a_function_of_seed_and_epoch_in_any_order_of_asking(kind, lengths, seed, largest):
    planner, again = (of_pieces(kind, lengths, largest, seed=seed) for _ in range(2))
    plans = [planner.plan(epoch) for epoch in (0, 3)]
    for position in range(planner.num_microbatches):  # alternately, so each plan finds another piece made
        for plan, epoch in zip(plans, (0, 3), strict=True):
            assert again.plan(epoch).microbatch(position) == plan.microbatch(position)
    for plan, epoch in zip(plans, (0, 3), strict=True):
        assert plan.fingerprint == again.plan(epoch).fingerprint
        padded_sizes = plan.padded_sizes(lengths)
        assert len(padded_sizes) == len(plan)
        longest = [max(sum(lengths[index] for index in row) for row in plan.microbatch(at)) for at in range(len(plan))]
        np.testing.assert_allclose(
            padded_sizes, longest * np.array([len(plan.microbatch(at)) for at in range(len(plan))])
        )
    if len(lengths) <= largest:
        assert same(plans[0], planner_of(kind, lengths, seed=seed).plan(0))


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_mixed_look_alike_and_come_in_another_order_each_epoch(kind):
    lengths = np.random.default_rng(0).integers(1, CAPACITY, 4000)
    planner = of_pieces(kind, lengths, 1000, **({"max_tokens": 800} if kind == "bucketed" else {}))
    orders, firsts = set(), set()
    for epoch in range(4):
        plan = planner.plan(epoch)
        rows = [[index for row in plan.microbatch(at) for index in row] for at in range(len(plan))]
        pieces = [{index % 4 for index in row} for row in rows]
        assert all(len(piece) == 1 for piece in pieces), "a microbatch is of one piece"
        orders.add(tuple(dict.fromkeys(piece.pop() for piece in pieces)))
        firsts.add(tuple(rows[0]))
        within = [[index // 4 for index in row] for row in rows]
        assert len({tuple(row) for row in within}) > 0.9 * len(within), "pieces aren't shuffled alike"
    assert len(orders) > 1
    assert len(firsts) == 4
    assert planner.plan(0).padding_waste(lengths) == pytest.approx(
        planner_of(kind, lengths, **({"max_tokens": 800} if kind == "bucketed" else {})).plan(0).padding_waste(lengths),
        abs=0.03,
    )


def test_an_example_of_a_piece_is_named_by_its_own_number():
    lengths = np.full(100, 3.0)
    lengths[77] = 1000.0
    with pytest.raises(DataError, match="example 77 has length 1000"):
        of_pieces("bucketed", lengths, 10, max_tokens=512)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf])
def test_lengths_that_are_none_are_refused_with_their_index(kind, bad):
    with pytest.raises(DataError, match="example 1 has length"):
        planner_of(kind, np.array([3.0, bad, 2.0]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_dataset_is_refused(kind):
    with pytest.raises(DataError, match="empty"):
        planner_of(kind, np.array([], dtype=np.int64))


def test_an_example_that_fits_in_no_batch_is_named():
    lengths = np.array([5, 101, 7])
    with pytest.raises(DataError, match=r"example 1 has length 101, more than the row's length 100"):
        planner_of("packed", lengths)
    with pytest.raises(DataError, match=r"example 1 has length 101, more than training.batching.max_tokens 100"):
        planner_of("bucketed", lengths, max_tokens=100)
    with pytest.raises(DataError, match=r"example 1 has length 101, more than training.batching.max_duration 100"):
        planner_of("bucketed", lengths, max_duration=100)


def test_what_the_data_lacks_is_said():
    arguments: dict[str, Any] = {
        "lengths": np.ones(3),
        "strata": None,
        "batch_size": 2,
        "row_capacity": None,
        "seed": 0,
    }
    with pytest.raises(UserError, match="class for each example"):
        make_planner(BatchingConfig(type="stratified"), **arguments)
    with pytest.raises(UserError, match="rows of a known length"):
        make_planner(BatchingConfig(type="packed"), **arguments)
    with pytest.raises(UserError, match="max_tokens and max_duration"):
        make_planner(BatchingConfig(type="bucketed", max_tokens=5, max_duration=5), **arguments)
    with pytest.raises(DataError, match="3 examples, but classes for 2"):
        make_planner(BatchingConfig(type="stratified"), **(arguments | {"strata": np.zeros(2)}))


def test_padding_waste_counts_padded_sizes():
    lengths = np.array([4, 2, 1, 1])
    assert BatchPlan(np.arange(4), None, np.array([0, 2, 4])).padding_waste(lengths) == pytest.approx(2 / 10)
    packed = BatchPlan(np.arange(4), np.array([0, 1, 4]), np.array([0, 2]))
    assert packed.padding_waste(lengths) == 0.0


def test_fingerprints_differ_where_plans_differ():
    indices, starts = np.arange(4), np.array([0, 2, 4])
    plans = [
        BatchPlan(indices, None, starts),
        BatchPlan(indices[::-1], None, starts),
        BatchPlan(indices, None, np.array([0, 1, 4])),
        BatchPlan(indices, np.arange(5), starts),
    ]
    assert len({plan.fingerprint for plan in plans}) == 4
    assert BatchPlan(indices.astype(np.int32), None, starts).fingerprint == plans[0].fingerprint


def test_evaluation_goes_by_length_and_never_changes():
    plan = evaluation_plan(np.array([3, 1, 2, 1]), 3)
    assert [plan.microbatch(position) for position in range(len(plan))] == [[[1], [3], [2]], [[0]]]


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=60), st.integers(1, 8), st.floats(1, 200))
@example([2.0] * 5, 8, 4.0)  # two are as much as the budget
def test_evaluation_keeps_within_a_budget(lengths: list[float], batch_size: int, budget: float):
    """No batch goes beyond it but one example alone, none could hold the first of the next, none is lost."""
    found = np.array(lengths)
    plan = evaluation_plan(found, batch_size, budget)
    assert sorted(plan.indices.tolist()) == list(range(len(found)))
    assert (np.diff(found[plan.indices]) >= 0).all()
    rows, padded_sizes = np.diff(plan.microbatch_starts), plan.padded_sizes(found)
    assert ((padded_sizes <= budget) | (rows == 1)).all()
    assert (rows <= batch_size).all()
    firsts = found[plan.indices[plan.microbatch_starts[1:-1]]]
    assert (((rows[:-1] + 1) * firsts > budget) | (rows[:-1] == batch_size)).all()


def test_sentences_of_log_normal_length_are_planned_without_waste():
    lengths = np.clip(np.random.default_rng(0).lognormal(3.5, 0.6, 50_000), 1, 512).astype(np.int64)
    bucketed = planner_of("bucketed", lengths, max_tokens=8192)
    assert bucketed.plan(0).padding_waste(lengths) < 0.03
    packed = make_planner(
        BatchingConfig(type="packed"), lengths=lengths, strata=None, batch_size=8, row_capacity=512, seed=0
    ).plan(0)
    num_rows = packed.microbatch_starts[-1]
    assert lengths.sum() / (num_rows * 512) > 0.99


def test_packing_seconds_is_as_tight():
    lengths = np.clip(np.random.default_rng(0).lognormal(1.5, 0.6, 20_000), 0.3, 30)
    plan = make_planner(
        BatchingConfig(type="packed"), lengths=lengths, strata=None, batch_size=8, row_capacity=30.0, seed=0
    ).plan(0)
    assert lengths.sum() / (plan.microbatch_starts[-1] * 30.0) > 0.98


def test_a_small_set_is_not_cut_in_tiny_batches():
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 0.6, 200), 1, 300).astype(np.int64)
    plan = planner_of("bucketed", lengths, max_tokens=512).plan(0)
    assert plan.padding_waste(lengths) < 0.10
    assert len(plan) <= 1.4 * lengths.sum() / 512
    assert np.diff(plan.microbatch_starts).min() >= 4


def test_epochs_mix_the_examples_of_a_bucket():
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 0.6, 2000), 1, 300).astype(np.int64)
    planner = planner_of("bucketed", lengths, max_tokens=1024)
    first, second = (
        {frozenset(index for row in plan.microbatch(i) for index in row) for i in range(len(plan))}
        for plan in (planner.plan(0), planner.plan(1))
    )
    assert len(first & second) < len(first) / 2


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_real_hindi_text_is_padded_by_less_than_five_per_cent(vaak_data, unit):
    texts = [file.read_text("utf-8") for file in sorted(vaak_data("hindi").glob("*.train.txt"))]
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    lengths = np.array([len(line.split() if unit == "words" else line) for line in lines])
    longest = int(lengths.max())
    planner = planner_of("bucketed", lengths, max_tokens=8 * longest)
    assert planner.plan(0).padding_waste(lengths) < 0.05
    packed = make_planner(
        BatchingConfig(type="packed"), lengths=lengths, strata=None, batch_size=8, row_capacity=longest, seed=0
    ).plan(0)
    assert lengths.sum() / (packed.microbatch_starts[-1] * longest) > 0.95
