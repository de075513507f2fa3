"""Plans in pieces: none is larger than a piece, pieces look like the whole, and mixtures keep their shares in each."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.task import Dataset
from vaak.data import batching
from vaak.data import pieces as pieces_of_parts
from vaak.data.batching import make_planner, training_planner
from vaak.data.mixing import StepWeights
from vaak.data.pieces import all_examples
from vaak.data.plan import BatchPlan, Piece, PiecewisePlan

CURRICULUM = {"difficulty": "length", "initial_difficulty": 0.1, "num_epochs": 2}


class Mixture(Dataset):
    """Examples whose parts, of these sizes, are in any order."""

    def __init__(self, sizes: tuple[int, ...], shares: Any = None, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.parts = rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int8), sizes)) if len(sizes) > 1 else None
        self.lengths = rng.integers(1, 100, sum(sizes))
        self.strata = rng.integers(0, 3, sum(sizes), dtype=np.int8)
        self.shares, self.row_capacity = shares, 100


def configured(kind: str, curriculum: dict[str, Any] | None = None, batch_size: int = 4) -> TrainingConfig:
    options = {"type": kind, "max_tokens": 400 if kind == "bucketed" else None}
    return TrainingConfig.model_validate({"batching": options, "batch_size": batch_size, "curriculum": curriculum})


@given(
    parts=st.lists(st.integers(0, 3), min_size=1, max_size=60).map(np.array),
    largest=st.integers(1, 70),
    several=st.booleans(),
)
@example(parts=np.arange(60) * 7 % 11 % 4, largest=20, several=True)
def test_pieces_divide_each_part_evenly(parts, largest, several):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces_of_parts, "READ_AT_ONCE", 7)
        divide(parts, largest, several)


def divide(parts: np.ndarray, largest: int, several: bool) -> None:
    examples = all_examples(len(parts), parts if several else None, largest)
    found = [
        [np.arange(len(parts))[examples.members(part, piece)].tolist() for piece in range(examples.num_pieces[part])]
        for part in range(len(examples.sizes))
    ]
    present = [np.flatnonzero(parts == one).tolist() for one in np.unique(parts)] if several else [[*range(len(parts))]]
    for own, pieces in zip(present, found, strict=True):
        assert pieces == [own[piece :: len(pieces)] for piece in range(len(pieces))]
    assert examples.sizes.tolist() == [len(own) for own in present]
    assert all(piece for pieces in found for piece in pieces)
    assert sum(max(map(len, pieces)) for pieces in found) <= max(largest, len(present))


@pytest.mark.parametrize("curriculum", [None, CURRICULUM])
@pytest.mark.parametrize(
    ("kind", "sizes"), [("fixed", (900,)), ("packed", (900,)), ("bucketed", (600, 280, 20)), ("stratified", (450, 450))]
)
def test_no_plan_is_larger_than_a_piece(kind, sizes, curriculum, monkeypatch: pytest.MonkeyPatch):
    sizes_planned, made = list[int](), list[int]()

    def noted(*args: Any, **options: Any) -> Any:
        sizes_planned.append(len(options["lengths"]))
        return make_planner(*args, **options)

    def made_piece(plan: PiecewisePlan, number: int) -> Any:
        piece = original(plan, number)
        made.append(len(piece.indices))
        return piece

    original = PiecewisePlan._made
    monkeypatch.setattr(batching, "make_planner", noted)
    monkeypatch.setattr(PiecewisePlan, "_made", made_piece)
    planner = training_planner(configured(kind, curriculum), Mixture(sizes, abs), 100)
    for epoch in range(3):
        plan = planner.plan(epoch)
        for position in range(len(plan)):
            plan.microbatch(position)
    assert max(sizes_planned) <= 100 // len(sizes)
    # rows of a stretch's microbatches are known on average only
    assert max(made) <= (100 if len(sizes) == 1 else 130)
    assert len(plan.pieces) >= 9


@pytest.mark.parametrize("kind", ["fixed", "bucketed", "stratified"])
@given(sizes=st.lists(st.integers(30, 200), min_size=2, max_size=4).map(tuple), seed=st.integers(0, 99))
def test_every_stretch_of_a_mixture_has_the_shares_of_the_whole(kind, sizes, seed):
    data = Mixture(sizes, seed=seed)
    assert data.parts is not None
    plan = training_planner(configured(kind), data, 50).plan(1)
    found = np.array([data.parts[plan.microbatch(position)[0][0]] for position in range(len(plan))])
    totals = np.bincount(found, minlength=len(sizes))
    starts = np.cumsum([piece.size for piece in plan.pieces])
    assert len(starts) > 1
    for end in starts.tolist():
        due = totals * (end / len(plan))
        assert np.abs(np.bincount(found[:end], minlength=len(sizes)) - due).max() < 2


def test_stretches_are_not_mixed_alike():
    data = Mixture((800, 800))
    plan = training_planner(configured("fixed"), data, 200).plan(0)
    assert data.parts is not None
    found = [int(data.parts[plan.microbatch(position)[0][0]]) for position in range(len(plan))]
    assert len({tuple(found[first : first + 50]) for first in range(0, 400, 50)}) == len(plan.pieces) == 8


def test_plans_whose_later_pieces_differ_in_size_have_other_fingerprints():
    first, later = (BatchPlan(np.arange(4), None, np.array([0, 2, 4])) for _ in range(2))
    plans = [PiecewisePlan([Piece(2, lambda: first), Piece(size, lambda: later)]) for size in (1, 2)]
    assert plans[0].fingerprint != plans[1].fingerprint


def test_weights_by_step_are_read_from_all_pieces_of_a_part():
    """A part that is read alone at the beginning is read whole: pieces of parts don't wait for each other."""
    data = Mixture((400, 400), StepWeights(((0, (1.0, 0.0)), (99, (1.0, 0.0)), (100, (0.0, 1.0))), step_size=1))
    plan = training_planner(configured("fixed"), data, 80).plan(0)
    assert len(plan) == 200
    read = [index for position in range(100) for row in plan.microbatch(position) for index in row]
    assert sorted(read) == np.flatnonzero(data.parts == 0).tolist()


@pytest.mark.parametrize("kind", ["fixed", "bucketed", "packed", "stratified"])
def test_pieces_of_a_curriculum_are_like_the_whole(kind):
    """All along an epoch, examples are as hard as where they are planned at once."""
    data = Mixture((6000,))
    means = []
    for largest in (10**9, 1000):
        plan = training_planner(configured(kind, CURRICULUM), data, largest).plan(0)
        rows = [[index for row in plan.microbatch(position) for index in row] for position in range(len(plan))]
        tenths = np.array_split(np.arange(len(rows)), 10)
        means.append([np.mean(data.lengths[np.concatenate([rows[one] for one in tenth])]) for tenth in tenths])
    whole, pieces = means
    assert whole[-1] > 3 * whole[0]
    np.testing.assert_allclose(pieces, whole, rtol=0.15)


def configured_by_shards(kind: str, shard_size: int, mixed: int) -> TrainingConfig:
    config = configured(kind)
    shards = {"shard_size": shard_size, "shards_mixed": mixed}
    return config.model_copy(update={"batching": config.batching.model_copy(update=shards)})


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3).map(tuple),
    kind=st.sampled_from(["fixed", "bucketed", "stratified", "packed"]),
    shard_size=st.integers(1, 12),
    mixed=st.integers(1, 4),
    epoch=st.integers(0, 2),
)
def test_an_epoch_by_shards_has_every_example_once_and_few_shards_at_a_time(sizes, kind, shard_size, mixed, epoch):
    dataset = Mixture(sizes if kind != "packed" else sizes[:1])
    config = configured_by_shards(kind, shard_size, mixed)
    planner = training_planner(config, dataset)
    plan = planner.plan(epoch)
    assert len(plan) == planner.num_microbatches
    taken = [[*chain(*plan.microbatch(place))] for place in range(len(plan))]
    if dataset.parts is None:
        # Of several parts, passes begin where an epoch before ended.
        assert sorted(chain(*taken)) == list(range(len(dataset.lengths)))
        for piece in plan.pieces:
            assert len(set((piece.make().indices // shard_size).tolist())) <= mixed
    else:
        counts = np.bincount([*chain(*taken)], minlength=len(dataset.lengths))
        assert (counts > 0).all() or epoch > 0
    # Any microbatch, from a planner that has made no other: a resume, on any rank.
    place = len(plan) // 2
    assert training_planner(config, dataset).plan(epoch).microbatch(place) == plan.microbatch(place)


def test_shards_are_drawn_from_all_over_the_data_and_orders_differ_by_epoch():
    dataset = Mixture((4000,))
    planner = training_planner(configured_by_shards("fixed", 100, 8), dataset)
    first, second = ([piece.make().indices for piece in planner.plan(epoch).pieces] for epoch in (0, 1))
    assert [len(piece) for piece in first] == [800] * 5
    # Each piece looks like the whole: its mean is that of eight shards of forty.
    for piece in first:
        assert abs(piece.mean() - 2000) < 3 * 4000 / np.sqrt(12 * 8)
    assert {tuple(np.sort(piece)) for piece in first} == {tuple(np.sort(piece)) for piece in second}
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_a_curriculum_and_shards_exclude_each_other():
    config = configured("fixed", CURRICULUM)
    config = config.model_copy(update={"batching": config.batching.model_copy(update={"shard_size": 4})})
    with pytest.raises(UserError, match="shard_size: a curriculum orders examples by difficulty"):
        training_planner(config, Mixture((40,)))
