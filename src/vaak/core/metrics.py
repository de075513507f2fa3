"""The definition of a metric, and the direction in which it improves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A metric as the task that computes it declares it, once; ``name`` is without the split.

    percent
        Whether it is a fraction, read as percent (an error rate may be above 1).
    higher
        Whether more of it is better; None if neither is.
    chance
        What a guess has, where that doesn't depend on the data.
    unit
        The unit of its values, such as ``ms``; a percentage needs none.
    errors
        What an error rate counts, such as ``words``.
    title
        How a table calls it; empty: by its name.
    grouped_by
        What its groups are, such as ``speakers``.
    counts
        The key of an evaluation's summary (``vaak.core.summaries``) that has what it is counted from.
    is_whole
        Whether it is a number of things, shown without decimals.
    among
        For a number of things, the metric that says in how many others they were found.
    same_as
        The metric that it equals in most uses: where it does throughout a run, people are shown only that one.
    """

    name: str
    percent: bool = False
    higher: bool | None = False
    chance: float | None = None
    unit: str = ""
    errors: str = ""
    title: str = ""
    grouped_by: str = "group"
    counts: str = ""
    is_whole: bool = False
    among: str = ""
    same_as: str = ""


def percent(rate: float | None) -> float | None:
    """Return a rate in percent, as the tables have it.

    >>> percent(0.12346), percent(None)
    (12.35, None)
    """
    return None if rate is None else round(100 * rate, 2)


def improves(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Return whether ``value`` is better than ``best`` by more than ``min_delta``; any number is better than nothing.

    NaN never is.

    >>> improves(1.0, None, "min"), improves(1.0, 1.0, "min"), improves(2.0, 1.0, "max", min_delta=0.5)
    (True, False, True)
    """
    if value != value:
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta
