"""Which tokens of which document are in a sequence, and which of them are scored.

A document of T tokens to predict is cut into windows of at most ``size`` targets that begin ``stride`` apart. Each
token is scored once, in the first window that contains it, so after the first window it has at least size - stride
tokens of context::

    targets   0 . . . . . . . 8 . . .        size 8, stride 4
    window 0  [ scored          ]
    window 1          [ context | scored ]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Windows:
    """Windows of all documents, in order: arrays of ``(window,)``."""

    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    scored_from: np.ndarray


def cut_windows(num_targets: np.ndarray, size: int, stride: int) -> Windows:
    """The windows of documents with these numbers of targets; a document without targets has none.

    >>> windows = cut_windows(np.array([12, 3]), size=8, stride=4)
    >>> windows.documents.tolist(), windows.starts.tolist(), windows.sizes.tolist(), windows.scored_from.tolist()
    ([0, 0, 1], [0, 4, 0], [8, 8, 3], [0, 4, 0])
    """
    num_targets = np.asarray(num_targets, dtype=np.int64)
    counts = np.where(num_targets > 0, 1 + -(-np.maximum(num_targets - size, 0) // stride), 0)
    documents = np.repeat(np.arange(len(num_targets)), counts)
    within = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = within * stride
    sizes = np.minimum(num_targets[documents] - starts, size)
    scored_from = np.where(within > 0, size - stride, 0)
    return Windows(documents, starts, sizes, scored_from)
