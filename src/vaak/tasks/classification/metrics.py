"""Metrics of a classifier: counts over the whole set, divided once, with their pictures; classifiers without a network.

loss           cross-entropy, in nats per text; with several label columns their weighted sum, with multi_label the mean
               over the labels
accuracy       texts whose class is right / texts; with multi_label, texts all of whose labels are right
micro_f1       F1 of all decisions together; of single labels it is the accuracy
macro_f1       mean of the F1 of the classes that occur or are predicted, as scikit-learn has it; the others have none
               (with multi_label it counts 0 for them)
weighted_f1    the same, weighted by how often the classes occur
ece            expected calibration error: the mean difference of confidence and accuracy in 15 equal bins of
               confidence, weighted by their texts; with multi_label, of the probabilities of all labels

With several label columns each metric is their mean, but for those whose loss has the weight 0; NAME/COLUMN is a
column's own. Out of scope: auroc is the probability that a text of a class has more confidence than one of none (a tie
counts half); fpr95 the fraction of the others that pass where 95 % of the former do. Baselines, without loss or
calibration, as their scores aren't probabilities: the commonest class of training; TF-IDF of words and pairs of words
with a linear support vector machine for each class against the others, C = 1; and where the model begins with a
pretrained one, the mean of its vectors for the tokens of a text, with a logistic regression likewise. Sources: Guo et
al. 2017, "On Calibration of Modern Neural Networks" (ECE); Hendrycks and Gimpel 2017, "A Baseline for Detecting
Misclassified and Out-of-Distribution Examples"; Salton and Buckley 1988, "Term-Weighting Approaches in Automatic Text
Retrieval"; Joachims 1998, "Text Categorization with Support Vector Machines"; Fan et al. 2008, "LIBLINEAR". Differs:
confidences are compared in 4,000 bins.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.batch import Batch
from vaak.core.errors import optional_import
from vaak.core.summaries import LONGEST_TEXT, ExampleLog, make_summary
from vaak.core.task import Meters
from vaak.report.charts import MOST_NAMED, confusion_png, reliability_png
from vaak.report.tables import csv_text
from vaak.tasks.classification.data import Classes, LabelStores, TextDataset
from vaak.tasks.classification.pretrained import Pretrained
from vaak.text.word_dictionary import words

Sums = defaultdict[str, float]
BINS = 15
SCOPE_BINS, SCOPE_RANGE = 4000, 20.0
CLASS_COLUMNS = ("class", "precision", "recall", "f1", "texts", "predicted")
DECIMALS = 6


@dataclass(frozen=True)
class ClassMetrics:
    """Counts of one class, with the rates computed from them."""

    name: str
    right: float
    predicted: float
    occurs: float

    @property
    def precision(self) -> float:
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.occurs if self.occurs else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.predicted + self.occurs) if self.predicted + self.occurs else 0.0


def f1_scores(classes: list[ClassMetrics]) -> dict[str, float]:
    """Micro, macro and weighted F1; macro is the mean over the classes that occur or are predicted.

    >>> f1_scores([ClassMetrics("a", 1, 2, 2), ClassMetrics("b", 1, 1, 1)])
    {'macro_f1': 0.75, 'micro_f1': 0.6666666666666666, 'weighted_f1': 0.6666666666666666}
    """
    present = [one for one in classes if one.predicted + one.occurs]
    occurs = sum(one.occurs for one in classes)
    both = sum(one.predicted + one.occurs for one in classes)
    return {
        "macro_f1": sum(one.f1 for one in present) / len(present) if present else 0.0,
        "micro_f1": 2 * sum(one.right for one in classes) / both if both else 0.0,
        "weighted_f1": sum(one.f1 * one.occurs for one in classes) / occurs if occurs else 0.0,
    }


class Predictions(NamedTuple):
    """The predictions for the texts of a batch in one label column.

    ``true`` and ``predicted`` are ``(text, class)``; ``confidences``, and which are ``right``, are of each text or,
    with several labels, ``(text, class)``; ``loss`` is their sum.
    """

    true: Tensor
    predicted: Tensor
    confidences: Tensor
    right: Tensor
    loss: float


def decide_labels(scores: Tensor, targets: Tensor, multi_label: bool) -> Predictions:
    """Return the decisions that scores ``(text, class)`` make, for targets ``(text,)`` or ``(text, class)``."""
    if multi_label:
        loss = F.binary_cross_entropy_with_logits(scores, targets.double(), reduction="none").mean(1).sum()
        probabilities, true = scores.sigmoid(), targets > 0.5
        predicted = probabilities > 0.5
        return Predictions(true, predicted, probabilities, true, float(loss))
    confidences, chosen = scores.softmax(-1).max(-1)
    true, predicted = (F.one_hot(one, scores.shape[1]) > 0 for one in (targets, chosen))
    loss = F.cross_entropy(scores, targets, reduction="sum")
    return Predictions(true, predicted, confidences, chosen == targets, float(loss))


class ClassMeters(Meters):
    """Metrics of decisions for texts, with a table of the classes, the confusion matrix and the calibration."""

    def __init__(
        self,
        protocol: dict[str, str],
        classes: Classes,
        multi_label: bool,
        weights: Sequence[float] = (),
        get_text: Callable[[int], str] | None = None,
    ) -> None:
        """``weights`` are those of the label columns' losses; none: all 1. ``get_text`` gives an example's text."""
        self.protocol, self.classes, self.multi_label, self._get_text = protocol, classes, multi_label, get_text
        self.weights = tuple(weights) or (1.0,) * len(classes)
        self.totals: Sums = defaultdict(float)
        self.rows: list[tuple[int, list[str]]] = []
        self.confusions = [np.zeros((len(names), len(names)), dtype=np.int64) for names in classes.values()]

    def update(self, model: nn.Module, batch: Batch) -> None:
        logits = model(batch["inputs"], batch["mask"])
        both = (logits.to(torch.promote_types(logits.dtype, torch.float32)), batch["targets"])
        # One copy of both, so a GPU is waited for once.
        found = torch.cat((both[0], both[1].to(both[0])), 1).cpu()
        logits, answers = found[:, : logits.shape[1]].double(), found[:, logits.shape[1] :].to(both[1].dtype)
        targets = targets_by_column(answers, self.classes, self.multi_label)
        columns = [
            decide_labels(scores, targets[column], self.multi_label)
            for column, scores in by_column(logits, self.classes).items()
        ]
        self.totals["texts"] += batch.num_rows
        for place, column in enumerate(columns):
            self._count(place, column)
        labels = [self._name_labels(names, one) for names, one in zip(self.classes.values(), columns, strict=True)]
        indices = [row[0] for row in batch.indices] if batch.indices else range(batch.num_rows)
        for index, *row in zip(indices, *labels, strict=True):
            self.rows.append((index, [text for column in row for text in column]))

    def _count(self, place: int, found: Predictions) -> None:
        """Add the decisions in the label column at ``place``."""
        counts = {"right": found.true & found.predicted, "predicted": found.predicted, "occurs": found.true}
        for key, decisions in counts.items():
            for number, count in enumerate(decisions.sum(0).tolist()):
                self.totals[f"{key}\t{place}\t{number}"] += count
        self.totals[f"exact\t{place}"] += int((found.true == found.predicted).all(1).sum())
        self.totals["loss"] += self.weights[place] * found.loss
        self.confusions[place] += (found.true.T.long() @ found.predicted.long()).numpy()
        confidences, right = found.confidences.flatten(), found.right.flatten()
        # Bins include their upper edge and not their lower one, as in the definition of the calibration error.
        bins = (confidences * BINS).ceil().long().clamp(1, BINS) - 1
        for number in bins.unique().tolist():
            here = bins == number
            sums = {"n": here.sum(), "confidence": confidences[here].sum(), "hit": right[here].sum()}
            for key, value in sums.items():
                self.totals[f"{key}\t{place}\t{number}"] += float(value)

    def _name_labels(self, names: Sequence[str], found: Predictions) -> list[tuple[str, str, str]]:
        """Return the true labels, the predicted ones, and the least confidence of a decision, of each text."""
        sure = found.confidences
        if self.multi_label:
            sure = torch.where(found.predicted, sure, 1 - sure).amin(1)
        sides = [
            ["|".join(name for name, one in zip(names, row, strict=True) if one) for row in side.tolist()]
            for side in (found.true, found.predicted)
        ]
        return list(zip(*sides, (f"{value:.6f}" for value in sure.tolist()), strict=True))

    def sums(self) -> dict[str, float]:
        return dict(self.totals)

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        columns = {
            column: {
                "accuracy": sums[f"exact\t{index}"] / sums["texts"],
                **f1_scores(self._metrics(index, sums)),
                "ece": ece(get_bins(index, sums)),
            }
            for index, column in enumerate(self.classes)
        }
        names = next(iter(columns.values()))
        # A column whose loss has no weight isn't learned, and would only blur the mean.
        learned = [one for one, weight in zip(columns.values(), self.weights, strict=True) if weight]
        mean = {name: sum(one[name] for one in learned) / len(learned) for name in names}
        own = {f"{name}/{column}": value for column, one in columns.items() for name, value in one.items()}
        return {"loss": sums["loss"] / sums["texts"], **mean, **(own if len(columns) > 1 else {})}

    def _metrics(self, place: int, sums: dict[str, float]) -> list[ClassMetrics]:
        names, keys = list(self.classes.values())[place], ("right", "predicted", "occurs")
        return [
            ClassMetrics(name, *(sums.get(f"{key}\t{place}\t{number}", 0.0) for key in keys))
            for number, name in enumerate(names)
        ]

    def _endings(self) -> dict[str, str]:
        """Return the endings of files' names, by label column."""
        return {column: f"_{column}" if len(self.classes) > 1 else "" for column in self.classes}

    def seen(self) -> dict[str, list[Any]]:
        log, width = ExampleLog("accuracy"), 3
        for index, row in self.rows:
            columns = [row[start : start + width] for start in range(0, len(row), width)]
            learned = [one for one, weight in zip(columns, self.weights, strict=True) if weight]
            # Of a text with several columns only the wrong ones are shown, if there are any.
            wrong = [one for one in learned if one[0] != one[1]]
            about = {
                "class": ", ".join(true for true, *_ in wrong or learned),
                "predicted": ", ".join(predicted for _, predicted, _ in wrong or learned),
                "confidence": max(float(sure) for *_, sure in wrong or learned),
            }
            right = (len(learned) - len(wrong), len(learned))
            log.add(index, len(wrong), right, "\n".join(true for true, *_ in columns), about)
        counts = [
            [place, *pair, int(one[*pair])]
            for place, one in enumerate(self.confusions)
            for pair in np.argwhere(one).tolist()
        ]
        return {**log.seen(), "confusions": [] if self.multi_label else counts}

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        found = make_summary("accuracy", seen)
        for one in found.get("examples", ()):
            one["text"] = "" if self._get_text is None else self._get_text(one["index"])[:LONGEST_TEXT]
        confusions = {}
        for place, (column, names) in enumerate(self.classes.items()):
            own = [row[1:] for row in seen.get("confusions", ()) if row[0] == place]
            if own and len(names) <= MOST_NAMED:
                counts = np.zeros((len(names), len(names)), np.int64)
                np.add.at(counts, tuple(np.array(own).T[:2]), np.array(own)[:, 2])
                confusions[column] = {"classes": list(names), "counts": counts.tolist()}
        calibration = {column: get_bins(place, sums).round(4).tolist() for place, column in enumerate(self.classes)}
        return {**found, "confusions": confusions, "calibration": calibration}

    def pictures(self) -> dict[str, bytes]:
        """Return the confusion matrix, of single labels, and the reliability of each label column."""
        found = {}
        for index, (column, end) in enumerate(self._endings().items()):
            if not self.multi_label:
                found[f"confusion{end}"] = confusion_png(self.confusions[index], self.classes[column])
            found[f"reliability{end}"] = reliability_png(get_bins(index, self.sums()))
        return found

    def tables(self) -> dict[str, str]:
        found = {}
        for place, end in enumerate(self._endings().values()):
            rows = [
                (one.name, one.precision, one.recall, one.f1, int(one.occurs), int(one.predicted))
                for one in self._metrics(place, self.sums())
            ]
            found[f"classes{end}"] = csv_text(CLASS_COLUMNS, rows, DECIMALS)
        heads = [(column, f"predicted_{column}", f"confidence{end}") for column, end in self._endings().items()]
        rows_in_order = [(index, *row) for index, row in sorted(self.rows, key=lambda one: one[0])]
        found["predictions"] = csv_text(("index", *(name for head in heads for name in head)), rows_in_order, DECIMALS)
        return found


class ScopeMeters(Meters):
    """How well the confidence tells texts of no class from the others: their histograms."""

    def __init__(self, protocol: dict[str, str], classes: Classes, weights: Sequence[float] = ()) -> None:
        """``weights`` are those of the label columns' losses; a column that isn't learned has no confidence."""
        self.protocol, self.classes = protocol, classes
        self.weights = tuple(weights) or (1.0,) * len(classes)
        self.totals: Sums = defaultdict(float)

    def update(self, model: nn.Module, batch: Batch) -> None:
        logits = by_column(model(batch["inputs"], batch["mask"]).double().cpu(), self.classes)
        learned = [scores for scores, weight in zip(logits.values(), self.weights, strict=True) if weight]
        confidence = torch.stack([scores.softmax(-1).amax(-1) for scores in learned]).amin(0)
        odds = torch.logit(confidence, eps=1e-12).clamp(-SCOPE_RANGE, SCOPE_RANGE)
        bins = ((odds + SCOPE_RANGE) / (2 * SCOPE_RANGE) * (SCOPE_BINS - 1)).long().tolist()
        inside = (batch["targets"][:, 0] >= 0).tolist()
        for one, number in zip(inside, bins, strict=True):
            self.totals[f"{one}\t{number}"] += 1

    def sums(self) -> dict[str, float]:
        return dict(self.totals)

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        counts = np.zeros((2, SCOPE_BINS))
        for key, value in sums.items():
            inside, number = key.split("\t")
            counts[int(inside == "True"), int(number)] = value
        # A sample, or a single text, may have texts of one kind alone: then there is nothing to tell apart.
        if not counts.any(1).all():
            return {"auroc": math.nan, "fpr95": math.nan}
        outside, inside_counts = counts / counts.sum(1, keepdims=True)
        below = np.cumsum(outside) - outside
        auroc = float((inside_counts * (below + outside / 2)).sum())
        passing = np.cumsum(inside_counts[::-1])
        # The margin is for rounding: a sum of shares may end just below the 0.95 that it is.
        first = int(np.searchsorted(passing, 0.95 - 1e-12))
        return {"auroc": auroc, "fpr95": float(outside[::-1][: first + 1].sum())}


def by_column(logits: Tensor, classes: Classes) -> dict[str, Tensor]:
    """Return the scores of each label column, from those of all classes ``(row, class)``."""
    parts = logits.split([len(names) for names in classes.values()], dim=-1)
    return dict(zip(classes, parts, strict=True))


def targets_by_column(targets: Tensor, classes: Classes, multi_label: bool) -> dict[str, Tensor]:
    """The targets of each label column, ``(row,)``, of those of all ``(row, column)``; or ``(row, class)`` each."""
    if multi_label:
        return by_column(targets, classes)
    return dict(zip(classes, targets.unbind(1), strict=True))


def get_bins(place: int, sums: dict[str, float]) -> np.ndarray:
    """Return each bin's number of decisions, summed confidence and number of hits, ``(15, 3)``."""
    names = ("n", "confidence", "hit")
    return np.array([[sums.get(f"{name}\t{place}\t{number}", 0.0) for name in names] for number in range(BINS)])


def ece(bins: np.ndarray) -> float:
    """Return the expected calibration error of bins ``(bin, 3)``."""
    counts, confidence, hits = bins.T
    return float(np.abs(confidence - hits).sum() / counts.sum()) if counts.sum() else math.nan


FIGURES = ("accuracy", "micro_f1", "macro_f1", "weighted_f1")
MOST_ROWS_SEEN = 256
EMBEDDING_BASELINE = "embeddings + logistic regression"
EMBEDDED_AT_ONCE = 32


class Scores(nn.Module):
    """Returns its scores ``(text, class)`` in order, as many rows at each call as the call asks for."""

    def __init__(self, scores: np.ndarray) -> None:
        super().__init__()
        self.scores, self.place = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float64)), 0

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        found = self.scores[self.place : self.place + len(inputs)]
        self.place += len(inputs)
        return found


def compute_metrics(scores: np.ndarray, dataset: TextDataset, meters: Meters) -> dict[str, float]:
    """Return the metrics of a dataset that scores ``(text, class)`` give, by the meters of a model."""
    model, rng, size = Scores(scores), np.random.default_rng(0), len(dataset.lengths)
    for start in range(0, size, MOST_ROWS_SEEN):
        rows = [[dataset.example(index, rng)] for index in range(start, min(start + MOST_ROWS_SEEN, size))]
        meters.update(model, dataset.collate(rows))
    results = meters.results(meters.sums())
    return {name: value for name, value in results.items() if name.partition("/")[0] in FIGURES}


def baseline_scores(
    train: LabelStores,
    evaluated: Sequence[str],
    classes: Classes,
    multi_label: bool,
    embeddings: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each baseline's name, and its scores ``(text, class)`` of the classes of all columns, one after another.

    ``embeddings`` ``(text, width)`` are those of a pretrained model for the texts of training and the evaluated ones.
    """
    decisions = train.targets
    if not multi_label:  # (text, column) to (text, class)
        one_hot = [np.eye(len(of_column))[decisions[:, index]] for index, of_column in enumerate(classes.values())]
        decisions = np.concatenate(one_hot, axis=1)
    # With several labels, a class is decided where its score is above 0: here, where more than half of the texts have
    # it.
    frequent = np.tile(decisions.mean(0) - (0.5 if multi_label else 0.0), (len(evaluated), 1))
    yield "most frequent class", frequent
    with optional_import("the baseline of a classifier requires scikit-learn", "study"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC
    vectorizer = TfidfVectorizer(tokenizer=words, token_pattern=None, ngram_range=(1, 2), sublinear_tf=True)
    known, asked = vectorizer.fit_transform([row.text for row in train.texts]), vectorizer.transform(evaluated)
    yield "TF-IDF + linear SVM", _score_each_class(LinearSVC(random_state=0), known, asked, decisions)
    if embeddings is not None:
        yield EMBEDDING_BASELINE, _score_each_class(LogisticRegression(max_iter=1000), *embeddings, decisions)


@torch.inference_mode()
def embed_texts(base: Pretrained, dataset: TextDataset) -> np.ndarray:
    """Return the mean of a pretrained model's vectors for the tokens of each text, ``(text, width)``, in order."""
    base.eval()
    device, rng = next(base.parameters()).device, np.random.default_rng(0)
    found = np.empty((len(dataset.lengths), base.width), np.float32)
    by_length = np.argsort(dataset.lengths, kind="stable")
    for start in range(0, len(by_length), EMBEDDED_AT_ONCE):
        indices = by_length[start : start + EMBEDDED_AT_ONCE]
        batch = dataset.collate([[dataset.example(int(index), rng)] for index in indices])
        mask = batch["mask"].to(device)
        hidden = base.hidden(batch["inputs"].to(device), mask).float()
        means = hidden.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)
        found[indices] = means.cpu().numpy()
    return found


def _score_each_class(model: Any, known: Any, asked: Any, decisions: np.ndarray) -> np.ndarray:
    """Return the margins ``(text, class)`` of each class against all others, by a linear model of scikit-learn."""
    margins = np.empty((asked.shape[0], decisions.shape[1]))
    for index in range(decisions.shape[1]):
        has = decisions[:, index] > 0
        if has.all() or not has.any():
            # With several labels for each text, all texts may have one.
            margins[:, index] = 1.0 if has.all() else -1.0
        else:
            margins[:, index] = model.fit(known, has).decision_function(asked)
    return margins
