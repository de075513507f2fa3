"""Samples keep the proportions of groups, and grow with their size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vaak.data.plan import sample_size, stratified_sample


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 3))
def test_each_group_has_its_proportion_to_within_one(groups: list[int], size: int, seed: int):
    names = [f"utterance {number}" for number in range(len(groups))]
    array = np.array(groups)
    chosen = stratified_sample(names, array, size, seed)
    assert len(chosen) == len(set(chosen.tolist())) == min(size, len(groups))
    assert (np.diff(chosen) > 0).all()
    for group in set(groups):
        exact = groups.count(group) * len(chosen) / len(groups)
        assert abs(int((array[chosen] == group).sum()) - exact) < 1
    # Names decide, and not the order in which they come.
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = stratified_sample([names[place] for place in order], array[order], size, seed)
    assert set(order[shuffled].tolist()) == set(chosen.tolist())


def test_a_larger_sample_has_the_smaller_and_another_seed_another():
    names, groups = [str(number) for number in range(200)], np.arange(200) % 4 == 0
    small, large = (set(stratified_sample(names, groups, size, 42).tolist()) for size in (20, 60))
    assert small < large
    assert small != set(stratified_sample(names, groups, 20, 43).tolist())


def test_percentages_of_the_original():
    assert [sample_size(20_000, percent, None) for percent in (0.5, 1.5, 10)] == [100, 300, 2000]
