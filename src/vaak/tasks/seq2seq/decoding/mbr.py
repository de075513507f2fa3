"""Of several translations of a text, the one most similar to all of them: minimum Bayes risk, with chrF.

The most probable text may be a poor one that ends too soon or repeats itself; the one most similar to the model's
other outputs seldom is. The similarity of two texts is sacrebleu's chrF of one as the translation and the other as its
reference.

Sources: Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding for Statistical Machine Translation"; Eikema and Aziz 2022,
"Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation"; Popović 2015, "chrF".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

ORDERS = range(1, 7)
"""Lengths of the runs of characters that chrF counts."""

RECALL_WEIGHT = 2.0
"""chrF's beta: recall counts so much more than precision."""


def expected_chrf(texts: Sequence[str]) -> np.ndarray:
    """The mean chrF, 0 to 1, of each text where any of the texts, itself among them, may be the reference: ``(text,)``.

    >>> expected_chrf(["a cat sat", "a cat sat", "one dog"]).argmax()
    np.int64(0)
    """
    precision, recall, orders = (np.zeros((len(texts), len(texts))) for _ in range(3))
    for order in ORDERS:
        counts = _counts(texts, order)
        matches = np.stack([np.minimum(own, counts).sum(1) for own in counts])
        lengths = counts.sum(1)
        filled = lengths > 0
        counted = filled[:, None] & filled[None]
        precision += np.where(counted, matches / np.maximum(lengths, 1)[:, None], 0)
        recall += np.where(counted, matches / np.maximum(lengths, 1)[None], 0)
        orders += counted
    precision, recall = (total / np.maximum(orders, 1) for total in (precision, recall))
    weight = RECALL_WEIGHT**2
    below = weight * precision + recall
    return np.asarray(((1 + weight) * precision * recall / np.where(below > 0, below, 1)).mean(1))


def _counts(texts: Sequence[str], order: int) -> np.ndarray:
    """Counts of character n-grams of this order in each text, without spaces: ``(text, run)``."""
    written = ("".join(text.split()) for text in texts)
    found = [Counter(text[start : start + order] for start in range(len(text) - order + 1)) for text in written]
    columns = {run: column for column, run in enumerate(dict.fromkeys(run for runs in found for run in runs))}
    counts = np.zeros((len(texts), len(columns)), dtype=np.int64)
    for row, runs in zip(counts, found, strict=True):
        row[[columns[run] for run in runs]] = list(runs.values())
    return counts
