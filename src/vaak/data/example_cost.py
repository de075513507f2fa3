"""Measure the cost of making an example on a few: which part takes most, and so how many processes help."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from vaak.core.costs import collect_costs
from vaak.core.random_keys import Purpose
from vaak.core.task import Dataset
from vaak.data.loader import Address, MicrobatchReader

MOST_MEASURED = 16
MEASURED_SECONDS = 0.3
REST = "features and the rest"


@dataclass(frozen=True)
class ExampleCost:
    """Mean seconds of an example, and of its parts, by their names; ``number`` were measured."""

    seconds: float
    parts: dict[str, float]
    number: int

    def __str__(self) -> str:
        """Return the milliseconds, the part that takes most first.

        >>> str(ExampleCost(0.1824, {"codec": 0.165, "reading": 0.0074, "features and the rest": 0.01}, 3))
        '182.4 ms (codec 165.0, features and the rest 10.0, reading 7.4)'
        """
        parts = sorted(self.parts.items(), key=lambda part: -part[1])
        listed = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in parts)
        return f"{1000 * self.seconds:.1f} ms ({listed})" if self.parts else f"{1000 * self.seconds:.1f} ms"


def measure_examples(dataset: Dataset, seed: int) -> ExampleCost | None:
    """Make some examples, from all over the dataset, for a third of a second at most; None if none can be made.

    The first one isn't counted where there is time for others: it imports what reads audio.
    """
    reader = MicrobatchReader(dataset, (Purpose.DATA,), seed, skip_bad=True)
    count = len(dataset.lengths)
    taken: list[tuple[float, dict[str, float]]] = []
    end = time.perf_counter() + MEASURED_SECONDS
    for index in np.linspace(0, count - 1, min(count, MOST_MEASURED + 1)).astype(int).tolist():
        with collect_costs() as parts:
            begin = time.perf_counter()
            try:
                found = reader[Address(0, 0, 0, [[index]])]
            # A user's reader may raise anything; training says what, at the example that it comes to.
            except Exception:
                continue
            seconds = time.perf_counter() - begin
        if found.batch is not None:
            taken.append((seconds, parts))
        if time.perf_counter() > end:
            break
    counted = taken[1:] or taken
    if not counted:
        return None
    mean = sum(seconds for seconds, _ in counted) / len(counted)
    names = {name for _, parts in counted for name in parts}
    means = {name: sum(parts.get(name, 0.0) for _, parts in counted) / len(counted) for name in sorted(names)}
    rest = {REST: max(0.0, mean - sum(means.values()))} if means else {}
    return ExampleCost(mean, means | rest, len(counted))
