"""How often each test of ``vaak compare`` finds a difference: between equals (at 0.05), and where there is one.

    python benchmarks/comparison.py

Examples: 200 utterances of 5 to 30 words, each word wrong with the utterance's own probability; equals have the same
probabilities, the better system 2 points less. The tests compare word error rates.

Folds: two learners of equal quality (nearest class mean, each on its own half of the features) are trained and tested
in a 10-fold cross-validation of 100 examples, once and ten times, as in Nadeau and Bengio 2003, section 5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from vaak.core.significance import (
    Test,
    approximate_randomisation,
    compute_mean,
    corrected_t_test,
    paired_bootstrap,
    ttest_rel,
    wilcoxon,
)

ALPHA = 0.05
FOLDS = 10
REPEATS = 10


def word_errors(rng: np.random.Generator, better: float) -> tuple[np.ndarray, np.ndarray]:
    """Errors and words of the utterances of two systems; the second is ``better`` by that share of the words."""
    words = rng.integers(5, 31, 200)
    hard = rng.beta(2, 10, 200)
    wrong = [rng.binomial(words, np.clip(hard - less, 0, 1)) for less in (0.0, better)]
    first, second = (np.stack([errors, words], 1).astype(np.float64) for errors in wrong)
    return first, second


def fold_scores(rng: np.random.Generator, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """The accuracies of two equal learners on each fold of each division of the same examples."""
    classes = rng.integers(0, 2, 100)
    features = rng.standard_normal((100, 2, 5)) + 0.4 * (2 * classes[:, None, None] - 1)
    scores = np.zeros((2, repeats * FOLDS))
    divisions = [rng.permutation(100) % FOLDS for _ in range(repeats)]
    for place in range(repeats * FOLDS):
        fold, number = divisions[place // FOLDS], place % FOLDS
        train, test = fold != number, fold == number
        for learner in range(2):
            own = features[:, learner]
            means = [own[train & (classes == label)].mean(0) for label in (0, 1)]
            distances = [np.square(own[test] - mean).sum(1) for mean in means]
            scores[learner, place] = np.mean((distances[1] < distances[0]) == classes[test])
    return scores[0], scores[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=5000)
    parser.add_argument("--samples", type=int, default=1000, help="of each bootstrap and randomisation")
    options = parser.parse_args()
    rng = np.random.default_rng(0)

    def of_rates(test: Callable[[np.ndarray, np.ndarray], Test]) -> Callable[[np.ndarray, np.ndarray], Test]:
        return lambda first, second: test(first[:, 0] / first[:, 1], second[:, 0] / second[:, 1])

    tests: dict[str, Callable[[np.ndarray, np.ndarray], Test]] = {
        "approximate randomisation": lambda a, b: approximate_randomisation(a, b, compute_mean, options.samples),
        "paired bootstrap": lambda a, b: paired_bootstrap(a, b, compute_mean, options.samples),
        "paired t-test of utterances": of_rates(ttest_rel),
        "Wilcoxon of utterances": of_rates(wilcoxon),
    }
    for better in (0.0, 0.02):
        found = dict.fromkeys(tests, 0)
        for _ in range(options.experiments):
            first, second = word_errors(rng, better)
            for name, test in tests.items():
                found[name] += test(first, second).p_value <= ALPHA
        print(f"{'equals' if not better else f'{100 * better:g} points apart'}, {options.experiments} experiments")
        for name, number in found.items():
            print(f"  {name:<28} {100 * number / options.experiments:5.1f} %")
    for repeats in (1, REPEATS):
        plain = corrected = 0
        for _ in range(options.experiments):
            first, second = fold_scores(rng, repeats)
            plain += ttest_rel(first, second).p_value <= ALPHA
            corrected += corrected_t_test(first, second, 1 / FOLDS).p_value <= ALPHA
        print(f"equals in {FOLDS} folds, {repeats} time(s), {options.experiments} experiments")
        print(f"  {'paired t-test':<28} {100 * plain / options.experiments:5.1f} %")
        print(f"  {'corrected t-test':<28} {100 * corrected / options.experiments:5.1f} %")


if __name__ == "__main__":
    main()
