"""Weights of classes in the loss, ``training.loss.main: {type: cross_entropy, weight: …}``, and what divides it.

    loss = sum of  weight of the text's class x its cross-entropy  /  sum of the weights

Both sums are over the whole step, all microbatches and ranks, as those of ``torch.nn.CrossEntropyLoss(weight)`` are
over a batch. ``balanced``: the weight of a class is  texts / (classes x its texts),  counted in the training split.
Source: King and Zeng 2001, "Logistic Regression in Rare Events Data"; the formula is scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from vaak.core.errors import UserError
from vaak.tasks.classification.prepare import Classes

KEY = "training.loss.main.weight"
ClassWeights = Mapping[str, np.ndarray]
"""The weight of each class, by label column."""


def class_weights(given: str | Sequence[float], targets: np.ndarray, classes: Classes) -> ClassWeights:
    """The weights of the classes of each column, for ``targets`` ``(text, column)`` of the training split.

    Raises UserError where a list has not one for each class.
    """
    if isinstance(given, str):
        return {
            column: balanced(np.bincount(targets[:, place], minlength=len(names)))
            for place, (column, names) in enumerate(classes.items())
        }
    for column, names in classes.items():
        if len(given) != len(names):
            some = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise UserError(f"{KEY} has {len(given)} numbers; {column} has {len(names)} classes, in this order: {some}")
    return {column: np.array(given, dtype=np.float64) for column in classes}


def balanced(counts: np.ndarray) -> np.ndarray:
    """Weights by which each class has the same share of the loss, of how many texts it has.

    >>> balanced(np.array([6, 2])).tolist()
    [0.6666666666666666, 2.0]
    """
    found: np.ndarray = counts.sum() / (len(counts) * counts)
    return found


def unit_of(column: str) -> str:
    """The unit that a weighted loss of a column is a sum of."""
    return f"class weight of {column}"


def weights_of_rows(weights: ClassWeights, targets: np.ndarray) -> dict[str, Tensor]:
    """How much of its unit each row has, of ``targets`` ``(row, column)``; what has no class has none."""
    return {
        unit_of(column): torch.from_numpy(np.where(targets[:, place] < 0, 0.0, weight[targets[:, place]]))
        for place, (column, weight) in enumerate(weights.items())
    }
