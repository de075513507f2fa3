"""A run's records over its steps, read in one pass: curves, evaluations, and numbers that weren't finite.

A run may have logged hundreds of megabytes. A curve keeps the lowest, the highest, the first and the last value of
some thousand stretches of equally many points, which grow as the run does: so memory depends on the number of curves.

    points    1 2 3 4 5 6 7 8 9 ...          up to EXACT points are kept
    stretches [1 2] [3 4] [5 6] [7 8]        then the lowest and the highest of each stretch of 2
              [1 2 3 4] [5 6 7 8]            of 4, of 8, ..., whenever there are more than STRETCHES
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vaak.config.metrics import is_fraction, split_part
from vaak.engine.metrics_file import iterate_history, read_history

LARGEST_STEP = 1 << 53
"""Beyond it, JavaScript's numbers aren't whole."""
EXACT, STRETCHES = 4096, 2048
MOST_EVENTS = 500
OF_EVERY_RECORD = ("kind", "step", "epoch", "clock", "scheduled")


class LongCurve:
    """Values by step, of any number of points; None if a value isn't finite."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        """Points since the last stretch."""
        self.width = 1
        """Points in a stretch."""
        self.lowest, self.highest = _no_points(), _no_points()
        """Step and value of each stretch's extremes, (2, stretches); the value is NaN where none is finite."""
        self.first: tuple[int, float] | None = None

    def add(self, step: int, value: float | None) -> None:
        """Add a point. A damaged or edited log may have a record twice: the later value of a step counts."""
        number = math.nan if value is None else value
        if self.steps and self.steps[-1] == step:
            self.values[-1] = number
            return
        self.steps.append(step)
        self.values.append(number)
        if len(self.steps) > max(EXACT, 4 * self.width):
            self._fold()

    def matches(self, other: LongCurve) -> bool:
        """Return whether another curve has the same points."""
        return self.thin(EXACT) == other.thin(EXACT)

    def thin(self, most: int) -> tuple[list[int], list[float | None]]:
        """At most ``most`` points: the lowest and the highest of each stretch, so that peaks stay."""
        if self.width == 1:
            # Nothing was folded yet.
            return _thin(self.steps.tolist(), [None if math.isnan(one) else one for one in self.values], most)
        assert self.first is not None
        rest = _extremes(np.array(self.steps)[None], np.array(self.values)[None])
        lowest, highest = (np.hstack(pair) for pair in zip((self.lowest, self.highest), rest, strict=True))
        ends = {self.first[0]: self.first[1], self.steps[-1]: self.values[-1]}
        count, points = lowest.shape[1], dict(ends)
        stretches = max(1, (most - 2) // 2)
        for begin, end in pairwise(round(number * count / stretches) for number in range(stretches + 1)):
            for values, find in ((lowest[:, begin:end], np.nanargmin), (highest[:, begin:end], np.nanargmax)):
                if not np.isnan(values[1]).all():
                    step, value = values[:, find(values[1])]
                    points[int(step)] = float(value)
        steps = sorted(points)
        return steps, [None if math.isnan(points[step]) else points[step] for step in steps]

    def _fold(self) -> None:
        """Move points into stretches, an even number of them; the newest point stays, as its value may be replaced."""
        self.first = self.first or (self.steps[0], self.values[0])
        if self.width == 1:
            self.width = 2
        count = (len(self.steps) - 1) // (2 * self.width) * 2 * self.width
        shape = (-1, self.width)
        new = _extremes(np.array(self.steps[:count]).reshape(shape), np.array(self.values[:count]).reshape(shape))
        self.lowest, self.highest = np.hstack((self.lowest, new[0])), np.hstack((self.highest, new[1]))
        del self.steps[:count], self.values[:count]
        while self.lowest.shape[1] > STRETCHES:
            self.width *= 2
            self.lowest = _extremes(*self.lowest.reshape(2, -1, 2))[0]
            self.highest = _extremes(*self.highest.reshape(2, -1, 2))[1]


def _no_points() -> np.ndarray:
    return np.empty((2, 0))


def _extremes(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Step and value (2, stretch) of the lowest and of the highest value in each row of (stretch, point)."""
    missing, rows = np.isnan(values), np.arange(len(values))
    places = np.where(missing, math.inf, values).argmin(1), np.where(missing, -math.inf, values).argmax(1)
    lowest, highest = (np.stack((steps[rows, place].astype(float), values[rows, place])) for place in places)
    return lowest, highest


def _thin(steps: list[int], values: list[float | None], most: int) -> tuple[list[int], list[float | None]]:
    count = len(steps)
    if count <= most:
        return steps, values
    stretches = (most - 2) // 2
    kept = {0, count - 1}
    # Pairs with their places: min and max give the place along with the value.
    for first, last in pairwise(round(number * count / stretches) for number in range(stretches + 1)):
        there = [(value, place) for place in range(first, last) if (value := values[place]) is not None]
        if there:
            kept |= {min(there)[1], max(there)[1]}
    places = sorted(kept)
    return [steps[place] for place in places], [values[place] for place in places]


class History:
    """The records of a run.

    ``curves`` are by chart and label, ``evaluations`` the step and the metrics of each, ``not_finite`` the newest steps
    at which something wasn't a number, with what, and ``last_step`` the largest that was logged.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.curves: dict[str, dict[str, LongCurve]] = {}
        self.evaluations: list[tuple[int, dict[str, float | None]]] = []
        self.not_finite: deque[tuple[int, str]] = deque(maxlen=MOST_EVENTS)
        self.last_step, self.skipped = 0, 0.0
        for record in records:
            self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        if not 0 <= step < LARGEST_STEP:
            return
        if step < self.last_step:
            raise OutOfOrderError
        self.last_step = step
        if record["kind"] == "evaluation":
            self.evaluations.append((step, dict(iterate_numbers(record))))
        elif record["kind"] == "step":
            self._note_not_finite(record)
        for panel, label, value in _points(record):
            curves = self.curves.setdefault(panel, {})
            if label not in curves:
                curves[label] = LongCurve()
            curves[label].add(step, value)

    def _note_not_finite(self, record: Mapping[str, Any]) -> None:
        skipped = to_number(record.get("non_finite_steps")) or 0.0
        if skipped > self.skipped:
            text = f"{skipped - self.skipped:.0f} steps skipped, {skipped:.0f} so far"
            self.not_finite.append((record["step"], text))
        if isinstance(record.get("loss"), float) and to_number(record["loss"]) is None:
            self.not_finite.append((record["step"], f"the loss is {record['loss']}"))
        self.skipped = skipped


class OutOfOrderError(Exception):
    """A record is of an earlier step than the one before it, as in a damaged or edited log."""


def summarize_history(run: Path) -> History:
    """Summarize the records in a run's folder."""
    try:
        return History(iterate_history(run))
    except OutOfOrderError:
        return History(sorted(read_history(run), key=lambda record: record["step"]))


def to_number(value: Any) -> float | None:
    """Return a value as a finite float; None if it isn't one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def iterate_numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield the figures of a record; None for one that isn't finite."""
    for name, value in record.items():
        if name not in OF_EVERY_RECORD and isinstance(value, int | float) and not isinstance(value, bool):
            yield str(name), to_number(value)


MEMORY = {"process_memory_gib": "process", "device_memory_gib": "device"}
PROCESSORS = {"cpu_percent": "processor (100 is one core)", "device_utilisation_percent": "device"}


def _points(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Yield the chart, the label and the value of each metric of a record."""
    kind = record["kind"]
    if kind == "evaluation":
        for name, value in iterate_numbers(record):
            panel, part = split_part(name)
            percent = 100 if value is not None and is_fraction(name) else 1
            if name == "val_loss":
                yield "loss", "valid", value
            else:
                yield panel, part or name, None if value is None else percent * value
    elif kind == "learning_rates":
        yield from (("learning rate", name, value) for name, value in iterate_numbers(record))
    elif kind == "step":
        yield from _points_of_training(record)
    clock = record.get("clock") if kind in ("step", "system") else None
    for name, value in clock.items() if isinstance(clock, dict) else ():
        yield from _points_of_clock(kind, str(name), to_number(value))


def _points_of_clock(kind: str, name: str, value: float | None) -> Iterator[tuple[str, str, float | None]]:
    if kind == "step" and name.endswith("_per_second"):
        yield "throughput", name.removesuffix("_per_second"), value
    elif kind == "step" and name == "gap_ms":
        yield "gap between batches", "waiting for data", value
    elif name in MEMORY:
        yield "memory", MEMORY[name], value
    elif name == "memory_pressure":
        yield "memory pressure", "pressure", None if value is None else 100 * value
    elif name in PROCESSORS:
        yield "processors", PROCESSORS[name], value


def _points_of_training(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    for name, value in iterate_numbers(record):
        if name in ("loss", "smoothed_loss"):
            yield "loss", {"loss": "train", "smoothed_loss": "train, smoothed"}[name], value
        elif name == "learning_rate":
            yield "learning rate", "learning rate", value
        elif name.partition("/")[0] == "gradient_norm":
            yield "gradient norm", name.partition("/")[2] or "gradient norm", value
        elif name == "loss_scale":
            yield "loss scale", "loss scale", value
        elif name not in ("overflows", "non_finite_steps") and not name.startswith("smoothed_"):
            yield "parts of the loss", name, value
