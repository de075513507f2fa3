"""Cuts are written down before they act, and the number of chunks follows from them and the place alone."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vaak.engine.state import ChunkRule, ChunkRules


def test_a_cut_holds_for_its_microbatches_in_its_step_and_for_all_after(tmp_path: Path):
    chunk_rules = ChunkRules(tmp_path, 0)
    chunk_rules.add(ChunkRule(5, 2, (1, 3)), "out of memory")
    assert [chunk_rules.count(4, 1, 9), chunk_rules.count(5, 1, 9), chunk_rules.count(5, 3, 9)] == [1, 2, 2]
    assert [chunk_rules.count(5, 0, 9), chunk_rules.count(6, 0, 9)] == [1, 2]


def test_a_cut_holds_for_what_is_at_least_as_large_as_the_one_that_failed(tmp_path: Path):
    chunk_rules = ChunkRules(tmp_path, 0)
    chunk_rules.add(ChunkRule(5, 4, (1,), padded_size=100.0), "out of memory")
    chunk_rules.add(ChunkRule(7, 2, (0,), padded_size=50.0), "out of memory")
    assert [chunk_rules.count(5, 1, padded_size) for padded_size in (99.0, 100.0, 101.0)] == [1, 4, 4]
    assert [chunk_rules.count(8, 0, padded_size) for padded_size in (49.0, 50.0, 99.0, 100.0)] == [1, 2, 2, 4]


def test_a_cut_of_a_later_objective_leaves_the_earlier_ones_of_its_step_whole(tmp_path: Path):
    chunk_rules = ChunkRules(tmp_path, 0)
    chunk_rules.add(ChunkRule(5, 2, objective=1), "out of memory")
    assert [chunk_rules.count(5, 0, 9, objective) for objective in (0, 1, 2)] == [1, 2, 2]
    assert [chunk_rules.count(6, 0, 9, objective) for objective in (0, 1, 2)] == [2, 2, 2]


def test_a_cut_of_all_holds_from_its_step_on(tmp_path: Path):
    chunk_rules = ChunkRules(tmp_path, 0)
    chunk_rules.add(ChunkRule(5, 4), "memory is short")
    assert [chunk_rules.count(4, 9, 9), chunk_rules.count(5, 9, 9), chunk_rules.count(5, -1, 9)] == [1, 4, 4]


def test_evaluation_is_cut_apart_from_training_split_by_split_on_its_rank(tmp_path: Path):
    chunk_rules, other = ChunkRules(tmp_path, 1), ChunkRules(tmp_path, 0)
    chunk_rules.divide_evaluation(10, "valid", 2, "out of memory")
    assert [chunk_rules.count_for_evaluation(step, "valid") for step in (9, 10, 20)] == [1, 2, 2]
    assert chunk_rules.count_for_evaluation(20, "pairs") == chunk_rules.count(20, 0, 9) == 1
    assert ChunkRules(tmp_path, 0).count_for_evaluation(20, "valid") == other.count_for_evaluation(20, "valid") == 1


RULES = st.lists(
    st.builds(
        ChunkRule,
        step=st.integers(0, 9),
        num_chunks=st.sampled_from([2, 4, 8]),
        numbers=st.none() | st.lists(st.integers(0, 3), max_size=3).map(tuple),
        split=st.none() | st.just("valid"),
        rank=st.integers(0, 1),
        padded_size=st.sampled_from([0.0, 5.0, 8.0]),
        objective=st.integers(0, 1),
    ),
    max_size=6,
)


@given(rules=RULES)
def test_a_resumed_run_is_divided_as_before_whatever_rank_wrote_it(tmp_path_factory, rules: list[ChunkRule]):
    folder = tmp_path_factory.mktemp("splits")
    before = [ChunkRules(folder, rank) for rank in (0, 1)]
    for rule in rules:
        before[rule.rank].add(rule, "out of memory")
    for chunk_rules in before:  # as ranks agree
        chunk_rules.load_state_dict(before[1 - chunk_rules.rank].state_dict())
    again = ChunkRules(folder, 0)
    elsewhere = ChunkRules(folder / "elsewhere", 0) if (folder / "elsewhere").mkdir() is None else None
    assert elsewhere is not None
    elsewhere.load_state_dict(before[0].state_dict())
    for step in range(11):
        for place in itertools.product(range(4), (4.0, 6.0, 8.0), (0, 1)):
            expected = before[0].count(step, *place)
            assert before[1].count(step, *place) == again.count(step, *place) == expected
            assert elsewhere.count(step, *place) == expected
        assert again.count_for_evaluation(step, "valid") == before[0].count_for_evaluation(step, "valid")


@given(known=RULES, told=RULES)
def test_what_another_rank_had_to_cut_is_cut_here_too(tmp_path_factory, known: list[ChunkRule], told: list[ChunkRule]):
    """Also where nothing is added, because what is known covers it."""
    chunk_rules = ChunkRules(tmp_path_factory.mktemp("splits"), 0)
    for rule in known:
        chunk_rules.add(rule, "out of memory")
    for rule in told:
        chunk_rules.adopt(rule, "out of memory on rank 1")
    for rule in told:
        for step in range(11):
            for place in itertools.product(range(4), (4.0, 6.0, 8.0), (0, 1)):
                assert not rule.applies(step, *place) or chunk_rules.count(step, *place) >= rule.num_chunks
