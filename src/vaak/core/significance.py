"""Paired tests of two systems, on the same examples, seeds or folds. All are two-sided.

Sources: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation" (paired bootstrap); Noreen
1989, "Computer-Intensive Methods for Testing Hypotheses" (approximate randomisation); McNemar 1947; Nadeau and Bengio
2003, "Inference for the Generalization Error", section 4 (corrected resampled t-test); Holm 1979, "A Simple
Sequentially Rejective Multiple Test Procedure".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaak.core.errors import UserError, optional_import

CONFIDENCE = 0.95
NUM_BOOTSTRAP_SAMPLES = 10_000
SAMPLES_AT_ONCE = 100

Statistic = Callable[[np.ndarray], np.ndarray]
"""The figures ``(sample,)`` of sums over examples ``(sample, sum)``."""
Scores = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Test:
    """The result of a test: ``p_value`` is the chance of such a difference, or a greater one, between equals.

    ``interval`` is that of the difference at 95 %, where the test gives one. It unpacks as SciPy's results do:

    >>> statistic, p_value = ttest_rel([1.0, 2.0, 4.0], [1.0, 1.0, 2.0])
    >>> round(statistic, 3), round(p_value, 3)
    (1.732, 0.225)
    """

    name: str
    p_value: float
    statistic: float
    interval: tuple[float, float] | None = None

    def __iter__(self) -> Iterator[float]:
        return iter((self.statistic, self.p_value))


def compute_mean(sums: np.ndarray) -> np.ndarray:
    """Return the statistic of plain scores, a sum and a count of each."""
    means: np.ndarray = sums[:, 0] / sums[:, 1]
    return means


def of_scores(scores: Scores) -> np.ndarray:
    """Return the sums ``(example, 2)`` of which ``compute_mean`` gives the mean.

    >>> compute_mean(of_scores([1.0, 3.0]).sum(0, keepdims=True))
    array([2.])
    """
    return np.stack([np.asarray(scores, np.float64), np.ones(len(scores))], 1)


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, statistic: Statistic, num_samples: int = NUM_BOOTSTRAP_SAMPLES, seed: int = 0
) -> Test:
    """Resamples examples, the same for both systems; the interval of the difference is that of percentiles.

    first, second
        Sums of each example ``(example, sum)``, in the same order.
    statistic
        Makes a system's figures of sums over examples.
    num_samples, seed
        How many times examples are drawn, and with which seed.

    The p-value is of the differences around their mean, as if there were none: of Koehn's one-sided count only the
    sign would matter.
    """
    rng, number = np.random.default_rng(seed), len(first)
    found: list[np.ndarray] = []
    for size in _sizes(num_samples):
        drawn = rng.multinomial(number, np.full(number, 1 / number), size)
        found.append(statistic(drawn @ first) - statistic(drawn @ second))
    differences, observed = np.concatenate(found), compute_difference(first, second, statistic)
    if not np.isnan(differences).all():
        # A draw that has none of what is counted has no value.
        differences = differences[~np.isnan(differences)]
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    beyond = np.abs(differences - observed) >= abs(observed) - _rounding(observed)
    return Test("paired bootstrap", _share(beyond), observed, (float(low), float(high)))


def approximate_randomisation(
    first: np.ndarray, second: np.ndarray, statistic: Statistic, num_samples: int = NUM_BOOTSTRAP_SAMPLES, seed: int = 0
) -> Test:
    """Swap the two systems' results in a random half of the examples, as between equal systems.

    ``first``, ``second``, ``statistic``, ``num_samples`` and ``seed`` are those of ``paired_bootstrap``. With so few
    examples that there are fewer ways to swap than ``num_samples``, each way is taken once, and the test is exact.
    """
    observed, number = compute_difference(first, second, statistic), len(first)
    rng, change, found = np.random.default_rng(seed), second - first, list[np.ndarray]()
    exact = number < 63 and 2**number <= num_samples
    for size in _sizes(2**number if exact else num_samples):
        if exact:
            done = sum(map(len, found))
            swapped = (np.arange(done, done + size)[:, None] >> np.arange(number)) & 1
        else:
            swapped = rng.integers(0, 2, (size, number))
        moved = swapped @ change
        found.append(statistic(first.sum(0) + moved) - statistic(second.sum(0) - moved))
    beyond = np.abs(np.concatenate(found)) >= abs(observed) - _rounding(observed)
    name = "exact randomisation" if exact else "approximate randomisation"
    return Test(name, float(beyond.mean()) if exact else _share(beyond), observed)


def mcnemar(first: Scores, second: Scores) -> Test:
    """Exact test of examples that only one of two systems got right; 1 is right and 0 is wrong."""
    won = int(np.sum(np.asarray(first) > np.asarray(second)))
    lost = int(np.sum(np.asarray(first) < np.asarray(second)))
    p_value = scipy_stats().binomtest(won, won + lost).pvalue if won + lost else 1.0
    return Test("McNemar", float(p_value), float(won - lost))


def ttest_rel(first: Scores, second: Scores) -> Test:
    """Student's paired t-test, for independent pairs of scores: as ``scipy.stats.ttest_rel``, but 1 for equal lists."""
    return _t_test("paired t-test", _differences(first, second), 1 / len(first))


def corrected_t_test(first: Scores, second: Scores, test_share: float) -> Test:
    """Return the t-test of Nadeau and Bengio for scores of folds, or of repeated random splits.

    Training sets of folds overlap, so their scores aren't independent and the plain t-test finds too many differences:
    the variance of the mean is taken as ``(1/k + n_test/n_train)`` times that of the differences.

    ``test_share`` is the share of the examples that a fold tests on: 1/k for k-fold cross-validation.
    """
    if not 0 < test_share < 1:
        raise UserError(f"the share of a fold is {test_share}; expected more than 0 and less than 1")
    inflated = 1 / len(first) + test_share / (1 - test_share)
    return _t_test("corrected t-test", _differences(first, second), inflated)


def wilcoxon(first: Scores, second: Scores) -> Test:
    """Wilcoxon's signed-rank test; pairs without a difference are left out."""
    differences = _differences(first, second)
    if not np.any(differences):
        return Test("Wilcoxon", 1.0, 0.0)
    found = scipy_stats().wilcoxon(differences)
    return Test("Wilcoxon", float(found.pvalue), float(found.statistic))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for how many there are.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def effect_size(first: Scores, second: Scores, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Cohen's d of pairs (mean over deviation of the differences), and its bootstrap interval.

    (0, (0, 0)) for equal scores; infinite where all pairs differ by the same.
    """
    differences, rng = _differences(first, second), np.random.default_rng(seed)
    drawn = rng.integers(len(differences), size=(NUM_BOOTSTRAP_SAMPLES // 10, len(differences)))
    low, high = np.quantile(_d(differences[drawn]), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="nearest")
    return float(_d(differences[None])[0]), (float(low), float(high))


def compute_difference(first: np.ndarray, second: np.ndarray, statistic: Statistic) -> float:
    """Return the first system's figure over all examples, minus the second's."""
    return float((statistic(first.sum(0)[None]) - statistic(second.sum(0)[None]))[0])


def _d(differences: np.ndarray) -> np.ndarray:
    """Mean over deviation of each row."""
    means = differences.mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes: np.ndarray = np.where(means == 0.0, 0.0, means / differences.std(1, ddof=1))
    return sizes


def _differences(first: Scores, second: Scores) -> np.ndarray:
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            f"paired tests require the same number of scores, at least two; there are {len(first)} and {len(second)}"
        )
    return np.asarray(first, np.float64) - np.asarray(second, np.float64)


def _t_test(name: str, differences: np.ndarray, inflated: float) -> Test:
    """Return a t-test of a mean whose variance is ``inflated`` times that of the differences."""
    student, mean = scipy_stats().t(len(differences) - 1), float(differences.mean())
    error = float(np.sqrt(inflated * differences.var(ddof=1)))
    if error == 0.0:
        return Test(name, 0.0 if mean else 1.0, mean * np.inf if mean else 0.0, (mean, mean))
    reach = float(student.ppf((1 + CONFIDENCE) / 2)) * error
    return Test(name, float(2 * student.sf(abs(mean / error))), mean / error, (mean - reach, mean + reach))


def _sizes(total: int) -> list[int]:
    """Pieces of at most ``SAMPLES_AT_ONCE``."""
    return [min(SAMPLES_AT_ONCE, total - done) for done in range(0, total, SAMPLES_AT_ONCE)]


def _share(beyond: np.ndarray) -> float:
    """Return the share of samples ``beyond``, counting the observation as one, so that a p-value is never 0."""
    return float((beyond.sum() + 1) / (len(beyond) + 1))


def _rounding(observed: float) -> float:
    """Sums in another order may differ by this much."""
    return 1e-9 * max(1.0, abs(observed))


def scipy_stats() -> Any:
    """Return the package's tests. Raises UserError if it is missing."""
    with optional_import("this test needs SciPy", "study"):
        from scipy import stats
    return stats
