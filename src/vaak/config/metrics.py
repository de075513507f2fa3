"""Metrics by name: how their values are shown to people, and which values are better.

Each task declares its own: Vaak's as METRICS of their folders, so that nothing else is imported for a name; others in
their spec (``TaskSpec.own_metrics``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from vaak.config.tasks import TASKS_PACKAGE, built_in, load_name, specs_from_outside
from vaak.core.metrics import Metric


def find_metric(name: str) -> Metric | None:
    """Return the declared metric of a name, which may begin with a split, and be of a part, or of one task of several.

    >>> [find_metric(name).name for name in ("val_accuracy", "val_wer/hi", "val_rules/accuracy", "val_expert_wer/0")]
    ['accuracy', 'wer', 'accuracy', 'expert_wer']
    >>> find_metric("val_rules/unheard_of") is None
    True
    """
    return _among(name, built_in_metrics()) or _among(name, _by_name(one.own_metrics for one in specs_from_outside()))


def _among(name: str, declared: Mapping[str, Metric]) -> Metric | None:
    """Return the declared metric whose name is the longest that a name ends with."""
    whole, _, part = name.partition("/")
    words = whole.split("_")
    ends = ("_".join(words[first:]) for first in range(len(words)))
    return next((declared[end] for end in (*ends, part.partition("/")[0]) if end in declared), None)


def split_part(name: str) -> tuple[str, str]:
    """Return a metric's name and the part of the data that it is of; the part is empty if it is of all.

    A task of several comes first in a name, and its metrics are whole.

    >>> split_part("val_wer"), split_part("val_wer/hi"), split_part("val_unheard_of/hi")
    (('val_wer', ''), ('val_wer', 'hi'), ('val_unheard_of', 'hi'))
    >>> split_part("val_rules/accuracy"), split_part("val_rules/accuracy/number")
    (('val_rules/accuracy', ''), ('val_rules/accuracy', 'number'))
    """
    whole, _, rest = name.partition("/")
    own, _, part = rest.partition("/")
    if own and find_metric(whole) is None and find_metric(own) is not None:
        return f"{whole}/{own}", part
    return whole, rest


@cache
def built_in_metrics() -> dict[str, Metric]:
    """Return the metrics of Vaak's tasks, and the loss that all have, by their names."""
    declared = (load_name(f"{TASKS_PACKAGE}.{task}:METRICS") for task in sorted(built_in()))
    return _by_name([(Metric("loss"),), *declared])


def _by_name(declared: Iterable[Iterable[Metric]]) -> dict[str, Metric]:
    return {metric.name: metric for metrics in declared for metric in metrics}


def is_fraction(name: str) -> bool:
    """Return whether a metric is read as percent.

    >>> is_fraction("val_accuracy/number"), is_fraction("val_rules/accuracy"), is_fraction("val_rules/loss")
    (True, True, False)
    """
    metric = find_metric(name)
    return metric is not None and metric.percent


def get_unit(name: str) -> str:
    """Return the unit that a metric is shown in; empty if it has none, or it isn't declared.

    >>> get_unit("val_mcd_db"), get_unit("val_accuracy/number"), get_unit("val_loss")
    ('dB', '%', '')
    """
    metric = find_metric(name)
    return "" if metric is None else "%" if metric.percent else metric.unit


def add_unit(title: str, unit: str) -> str:
    """Return a title with the unit of the values below it, unless its words have it already.

    >>> add_unit("val_accuracy", "%"), add_unit("val_mcd_db", "dB"), add_unit("val_bits_per_byte", "bits")
    ('val_accuracy, %', 'val_mcd_db', 'val_bits_per_byte')
    """
    has_unit = not unit or unit.lower() in re.split(r"\W|_", title.lower())
    return title if has_unit else f"{title}, {unit}"


def find_repeats(evaluations: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the metrics that say, in every evaluation, the same as the one they are declared the ``same_as``.

    >>> sorted(find_repeats([{"val_accuracy": 0.5, "val_micro_f1": 0.5, "val_macro_f1": 0.5}]))
    ['val_micro_f1']
    >>> find_repeats([{"val_accuracy": 0.5, "val_micro_f1": 0.5}, {"val_accuracy": 0.5, "val_micro_f1": 0.6}])
    set()
    """
    found = set()
    for name in {name: None for metrics in evaluations for name in metrics}:
        metric = find_metric(name)
        if metric is None or not metric.same_as:
            continue
        other = re.sub(rf"{metric.name}(?=/|$)", metric.same_as, name, count=1)
        if all(_is_same(metrics.get(name), metrics.get(other)) for metrics in evaluations):
            found.add(name)
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two metrics are equal, but for rounding; or both aren't there."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return math.isclose(one, other, rel_tol=1e-9) if numbers else one is other


def get_chance_level(name: str) -> float | None:
    """Return a metric's value by guessing, also of a split or a part; None if it depends on the data.

    >>> get_chance_level("val_pairs_accuracy"), get_chance_level("pairs_accuracy/gender"), get_chance_level("val_loss")
    (0.5, 0.5, None)
    """
    metric = find_metric(name)
    return None if metric is None else metric.chance


def chance_in_words(name: str) -> str:
    """Return the value of a metric that guessing reaches, for people to read; empty if it isn't known."""
    chance = get_chance_level(name)
    return "" if chance is None else in_words(name, chance)


def in_words(name: str, value: float) -> str:
    """Return a metric's value as people read it: fractions in percent, all else with four decimals and its unit.

    >>> in_words("val_accuracy", 0.0264), in_words("val_mcd_db", 6.5), in_words("val_loss", 5.765)
    ('2.64 %', '6.5000 dB', '5.7650')
    >>> in_words("val_hallucinated_words", 1200.0)
    '1,200'
    """
    unit, metric = get_unit(name), find_metric(name)
    if metric is not None and metric.is_whole and math.isfinite(value):
        return f"{value:,.0f}"
    return f"{100 * value:.2f} %" if unit == "%" else f"{value:.4f} {unit}".rstrip()


def describe_counts(metrics: Mapping[str, Any]) -> list[str]:
    """Return a line for each split's number of things that says in how many others they were found.

    >>> describe_counts({"val_wer": 0.25, "val_hallucinated_words": 12.0, "val_without_speech": 40.0})
    ['val_hallucinated_words: hallucinated words: 12 in 40 recordings without speech']
    """
    lines = []
    for name, value in metrics.items():
        metric = find_metric(name)
        if metric is None or not metric.among:
            continue
        other = name.removesuffix(metric.name) + metric.among
        among = find_metric(other)
        if among is not None and other in metrics:
            found, number = in_words(name, value), in_words(other, metrics[other])
            lines.append(f"{name}: {metric.title}: {found} in {number} {among.title}")
    return lines


def percents(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics, those that people read as percent in percent.

    >>> percents({"test_loss": 2.0, "test_wer": 0.25})
    {'test_wer': 25.0}
    """
    return {name: round(100 * value, 2) for name, value in metrics.items() if is_fraction(name)}
