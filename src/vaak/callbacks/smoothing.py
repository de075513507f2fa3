"""Losses smoothed over steps."""

from __future__ import annotations

import math


class Smoothed:
    """Exponential averages by name, corrected for having begun at zero; the past weighs ``decay`` in each step.

    Source: Kingma and Ba 2015, section 3 (the bias correction). A value that isn't finite is ignored: it would stay in
    the average for ever.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.sums: dict[str, list[float]] = {}
        """Name to the weighted sum of its values, and the sum of the weights."""

    def add(self, name: str, value: float) -> None:
        """Take the value of a step in."""
        if not math.isfinite(value):
            return
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] = self.decay * entry[0] + (1 - self.decay) * value
        entry[1] = self.decay * entry[1] + (1 - self.decay)

    def means(self) -> dict[str, float]:
        """The averages.

        >>> smoothed = Smoothed(0.5)
        >>> for value in (4.0, 1.0):
        ...     smoothed.add("loss", value)
        >>> smoothed.means()
        {'loss': 2.0}
        """
        return {name: total / weight for name, (total, weight) in self.sums.items()}
