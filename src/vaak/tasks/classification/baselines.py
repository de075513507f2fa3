"""Classifiers without a network: what a trained one has to beat.

most frequent class       the commonest class of training, for every text
TF-IDF + linear SVM       words and pairs of words, weighted by tf-idf with logarithmic counts; a linear support vector
                          machine for each class against the others, C = 1

Their scores are no probabilities, so there is neither a loss nor a calibration. Sources: Salton and Buckley 1988,
"Term-Weighting Approaches in Automatic Text Retrieval"; Joachims 1998, "Text Categorization with Support Vector
Machines"; Fan et al. 2008, "LIBLINEAR".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.errors import optional_import
from vaak.core.task import Meters
from vaak.tasks.classification.data import TextDataset
from vaak.tasks.classification.prepare import Classes, Stores
from vaak.text.word_dictionary import words

FIGURES = ("accuracy", "micro_f1", "macro_f1", "weighted_f1")
ROWS = 256


class Scores(nn.Module):
    """Gives the scores ``(text, class)`` that it has, as many rows as it is asked for, one after another."""

    def __init__(self, scores: np.ndarray) -> None:
        super().__init__()
        self.scores, self.place = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float64)), 0

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        found = self.scores[self.place : self.place + len(inputs)]
        self.place += len(inputs)
        return found


def figures_of(scores: np.ndarray, dataset: TextDataset, meters: Meters) -> dict[str, float]:
    """The figures of a dataset that scores ``(text, class)`` give, by the meters of a model."""
    model, rng, size = Scores(scores), np.random.default_rng(0), len(dataset.lengths)
    for start in range(0, size, ROWS):
        rows = [[dataset.example(index, rng)] for index in range(start, min(start + ROWS, size))]
        meters.update(model, dataset.collate(rows))
    results = meters.results(meters.sums())
    return {name: value for name, value in results.items() if name.partition("/")[0] in FIGURES}


def baseline_scores(
    train: Stores, evaluated: Sequence[str], classes: Classes, multi_label: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Each baseline's name, and its scores ``(text, class)`` of the classes of all columns, one after another."""
    names = [name for column in classes.values() for name in column]
    decisions = train.targets if multi_label else _one_hot(train.targets, classes)
    frequent = np.tile(decisions.mean(0) - (0.5 if multi_label else 0.0), (len(evaluated), 1))
    yield "most frequent class", frequent
    texts = [row.text for row in train.texts]
    yield "TF-IDF + linear SVM", _svm_scores(texts, decisions, evaluated, len(names))


def _one_hot(targets: np.ndarray, classes: Classes) -> np.ndarray:
    """``(text, class)`` of the classes of all columns, of targets ``(text, column)``."""
    columns = [np.eye(len(names))[targets[:, place]] for place, names in enumerate(classes.values())]
    return np.concatenate(columns, axis=1)


def _svm_scores(texts: Sequence[str], decisions: np.ndarray, evaluated: Sequence[str], num_classes: int) -> np.ndarray:
    """The margin of each class against all others."""
    with optional_import("the baseline of a classifier requires scikit-learn", "study"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.svm import LinearSVC
    vectorizer = TfidfVectorizer(tokenizer=words, token_pattern=None, ngram_range=(1, 2), sublinear_tf=True)
    known, asked = vectorizer.fit_transform(texts), vectorizer.transform(evaluated)
    scores = np.empty((len(evaluated), num_classes))
    for place in range(num_classes):
        has = decisions[:, place] > 0
        if has.all() or not has.any():  # with several labels a text, all texts may have one
            scores[:, place] = 1.0 if has.all() else -1.0
        else:
            scores[:, place] = LinearSVC(random_state=0).fit(known, has).decision_function(asked)
    return scores
