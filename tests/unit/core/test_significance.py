"""Paired tests against SciPy's, by enumeration, and by how often they err."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vaak.core.errors import UserError
from vaak.core.significance import (
    approximate_randomisation,
    compute_mean,
    corrected_t_test,
    effect_size,
    holm,
    mcnemar,
    of_scores,
    paired_bootstrap,
    ttest_rel,
    wilcoxon,
)

KIT = [0.85, 0.87, 0.86, 0.88, 0.85], [0.82, 0.84, 0.85, 0.85, 0.81]
scores = st.lists(st.floats(-5, 5, allow_nan=False).map(lambda value: round(value, 3)), min_size=2, max_size=9)


@given(first=scores, seed=st.integers(0, 100))
def test_t_test_and_wilcoxon_are_scipys(first: list[float], seed: int):
    second = np.random.default_rng(seed).normal(size=len(first)).tolist()
    theirs = stats.ttest_rel(first, second)
    ours = ttest_rel(first, second)
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=1e-12)
    assert ours.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)), abs=1e-9)
    assert wilcoxon(first, second).p_value == stats.wilcoxon(first, second).pvalue


def test_a_result_unpacks_as_scipys():
    t_stat, p_value = ttest_rel(*KIT)
    assert (t_stat, p_value) == pytest.approx(tuple(stats.ttest_rel(*KIT)))
    for first, second in (([1.0, 2.0], [0.5, 1.5]), ([0.5, 1.5], [1.0, 2.0])):
        with pytest.warns(RuntimeWarning):
            theirs = tuple(stats.ttest_rel(first, second))
        assert tuple(ttest_rel(first, second)) == theirs == (math.copysign(math.inf, first[0] - second[0]), 0.0)


def test_the_correction_is_that_of_nadeau_and_bengio():
    first, second = (np.array(scores) for scores in KIT)
    differences = first - second
    expected = differences.mean() / math.sqrt((1 / 5 + 1 / 4) * differences.var(ddof=1))
    found = corrected_t_test(*KIT, test_share=1 / 5)
    assert found.statistic == pytest.approx(expected)
    assert found.p_value == pytest.approx(2 * stats.t(4).sf(expected))
    assert found.p_value > ttest_rel(*KIT).p_value


def test_mcnemar_counts_what_only_one_got_right():
    first, second = [1] * 30 + [0] * 12 + [1] * 4 + [0] * 3, [1] * 30 + [1] * 12 + [0] * 4 + [0] * 3
    assert mcnemar(first, second).p_value == pytest.approx(2 * sum(math.comb(16, n) for n in range(5)) / 2**16)
    assert mcnemar(first, first).p_value == 1.0


def test_few_examples_are_swapped_in_every_way():
    """Errors over words: a ratio of sums, so no mean of examples gives it."""
    first = np.array([[3, 10], [0, 4], [2, 2], [1, 9], [5, 12]], np.float64)
    second = np.array([[1, 10], [1, 4], [1, 2], [0, 9], [2, 12]], np.float64)
    observed = first[:, 0].sum() / 37 - second[:, 0].sum() / 37
    beyond = 0
    for swapped in itertools.product((False, True), repeat=5):
        ways = np.array(swapped)[:, None]
        ours, theirs = np.where(ways, second, first).sum(0), np.where(ways, first, second).sum(0)
        beyond += abs(ours[0] / ours[1] - theirs[0] / theirs[1]) >= abs(observed) - 1e-12
    found = approximate_randomisation(first, second, compute_mean)
    assert found.statistic == pytest.approx(observed)
    assert found.p_value == beyond / 32


def test_equal_figures_count_as_equal_however_their_sums_are_rounded():
    tenths, every = np.array([3, 0, 2, -5, 2]), np.array(list(itertools.product((1, -1), repeat=5)))
    expected = (abs(every @ tenths) >= abs(tenths.sum())).mean()
    scores = (0.1 * tenths).tolist()
    assert (abs((every * scores).mean(1)) >= abs(np.mean(scores))).mean() < expected, "rounding would decide"
    assert approximate_randomisation(of_scores(scores), of_scores([0.0] * 5), compute_mean).p_value == expected


def test_random_swaps_come_near_to_all_of_them():
    rng = np.random.default_rng(0)
    first, second = (of_scores(rng.normal(shift, 1, 13).tolist()) for shift in (0.6, 0.0))
    exact = approximate_randomisation(first, second, compute_mean, num_samples=2**13)
    near = approximate_randomisation(first, second, compute_mean, num_samples=8000)
    assert (exact.name, near.name) == ("exact randomisation", "approximate randomisation")
    assert near.p_value == pytest.approx(exact.p_value, abs=0.02)


def test_the_bootstrap_has_the_interval_of_a_large_sample():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.1, 1, 400), rng.normal(0.0, 1, 400)
    found = paired_bootstrap(of_scores(first.tolist()), of_scores(second.tolist()), compute_mean)
    exact = ttest_rel(first.tolist(), second.tolist())
    assert found.interval == pytest.approx(exact.interval, abs=0.01)
    assert found.p_value == pytest.approx(exact.p_value, abs=0.02)


@pytest.mark.slow
def test_equals_are_found_different_as_often_as_alpha_says():
    """200 experiments a test: more than 10 % of them would be over three deviations too many."""
    rng, wrong = np.random.default_rng(2), np.zeros(4)
    for _ in range(200):
        first, second = rng.binomial(20, rng.beta(2, 10, 100), (2, 100)).astype(np.float64)
        sums = of_scores(first.tolist()), of_scores(second.tolist())
        found = (
            approximate_randomisation(*sums, compute_mean, 200),
            paired_bootstrap(*sums, compute_mean, 200),
            ttest_rel(first.tolist(), second.tolist()),
            wilcoxon(first.tolist(), second.tolist()),
        )
        wrong += [test.p_value <= 0.05 for test in found]
    assert (wrong / 200 <= 0.10).all()
    assert (wrong > 0).all(), "a test that never errs finds nothing either"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_corrected_p_values_are_never_smaller_and_keep_their_order(p_values: list[float]):
    corrected = holm(p_values)
    assert all(value <= more <= 1 for value, more in zip(p_values, corrected, strict=True))
    assert [corrected[index] for index in np.argsort(p_values, kind="stable")] == sorted(corrected)
    assert min(corrected) == pytest.approx(min(1.0, len(p_values) * min(p_values)))


def test_the_effect_size_is_mean_over_deviation():
    differences = np.subtract(*KIT)
    size, (low, high) = effect_size(*KIT)
    assert size == pytest.approx(differences.mean() / differences.std(ddof=1))
    assert low <= size <= high
    drawn = stats.bootstrap(
        (np.random.default_rng(1).normal(0.5, 1, 200),),
        lambda rows, axis: rows.mean(axis) / rows.std(axis, ddof=1),
        method="percentile",
        n_resamples=4000,
        rng=2,
    ).confidence_interval
    _, ours = effect_size(np.random.default_rng(1).normal(0.5, 1, 200).tolist(), [0.0] * 200)
    assert ours == pytest.approx(tuple(drawn), abs=0.04)  # the width is 0.3
    assert effect_size([1.0, 2.0], [1.0, 2.0]) == (0.0, (0.0, 0.0))


def test_scores_that_are_no_pairs_are_refused():
    with pytest.raises(UserError, match="there are 2 and 3"):
        ttest_rel([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="share of a fold is 1"):
        corrected_t_test([1.0, 2.0], [1.0, 3.0], 1)
