"""Speakers of windows matched without embeddings: by the frames that two windows have in common.

There are never more speakers than in one window, because nothing distinguishes one who left from one who came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def agreed(windows: Sequence[tuple[int, np.ndarray]], speech: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The column ``(speaker,)`` of each window's speakers.

    A window is its first frame and probabilities ``(frames, speakers)``; ``speech`` is the number of frames that
    each speaks. Each is matched with the one before, so that their probabilities differ least (squared). Those without
    common speech are matched by the amount of their speech: this assumes the fewest people.
    """
    from scipy.optimize import linear_sum_assignment

    spoken = np.zeros(max((len(frames) for frames in speech), default=0))
    columns: list[np.ndarray] = []
    for number, (first, probabilities) in enumerate(windows):
        together = np.zeros((len(spoken), probabilities.shape[1]))
        if columns:
            before, earlier = windows[number - 1]
            length = max(0, min(before + len(earlier) - first, len(probabilities)))
            earlier = earlier[first - before :][:length]
            together[columns[-1]] = earlier.T @ probabilities[:length]
        likeness = together + 1e-3 * np.minimum(spoken[:, None], speech[number])
        places, speakers = linear_sum_assignment(likeness, maximize=True)
        columns.append(places[np.argsort(speakers)])
        spoken[columns[-1]] += speech[number]
    return columns


def at_most(probabilities: np.ndarray, most: int, threshold: float) -> np.ndarray:
    """The columns of ``(frames, speakers)`` that speak, joined until there are ``most``.

    The one who speaks least joins the one with whom it speaks least at the same time; the more probable of both counts.
    """
    probabilities = probabilities[:, (probabilities >= threshold).any(0)]
    while probabilities.shape[1] > most:
        joins = int(probabilities.sum(0).argmin())
        left = probabilities[:, joins]
        probabilities = np.delete(probabilities, joins, axis=1)
        place = int((left @ probabilities).argmin())
        probabilities[:, place] = np.maximum(probabilities[:, place], left)
    return probabilities
