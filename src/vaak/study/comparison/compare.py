"""Systems next to one another: figures, their difference with its interval, and what tests say of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import DataError, UserError
from vaak.study.comparison.examples import Examples
from vaak.study.comparison.significance import (
    Test,
    approximate_randomisation,
    corrected_t_test,
    effect_size,
    holm,
    mcnemar,
    mean_of,
    of_scores,
    paired_bootstrap,
    ttest_rel,
    wilcoxon,
)

MODEL = ("weights",)
"""What of a protocol belongs to a system, and not to how it was evaluated."""


@dataclass(frozen=True)
class Comparison:
    """A system against the first one; ``difference`` is its figure minus the first one's.

    ``p_value`` is that of the first test, corrected (Holm) for the number of systems. ``effect`` is Cohen's d of pairs.
    """

    name: str
    figure: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    tests: tuple[Test, ...]
    effect: float
    effect_interval: tuple[float, float]
    pairs: int


@dataclass(frozen=True)
class Report:
    """Every system against the first; ``protocol`` is theirs."""

    metric: str
    baseline: str
    figure: float
    comparisons: tuple[Comparison, ...]
    protocol: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values; null for an effect, or a statistic, that has no finite size, which JSON can't say."""
        comparisons = [asdict(one) for one in self.comparisons]
        for one in comparisons:
            if not np.isfinite([one["effect"], *one["effect_interval"]]).all():
                one |= {"effect": None, "effect_interval": None}
            for test in one["tests"]:
                test["statistic"] = test["statistic"] if np.isfinite(test["statistic"]) else None
        return asdict(self) | {"comparisons": comparisons}


def compare_runs(systems: Sequence[Examples], metric: str | None = None) -> Report:
    """Runs that were evaluated on the same examples, by a metric (default: that of the first run's best checkpoint).

    Raises UserError where protocols or examples differ, or a run doesn't have the metric.
    """
    first, metric = systems[0], metric or systems[0].metric
    for system in systems:
        if metric not in system.figures:
            raise UserError(f"{system.run} has no figure {metric}; there are {', '.join(sorted(system.figures))}")
    names = first.names_of(metric)
    comparisons = []
    for other in systems[1:]:
        _demand_same(first, other)
        comparisons.append(_examples_compared(first, other, names, metric))
    protocol = {name: value for name, value in first.protocol.items() if name not in MODEL}
    return Report(metric, str(first.run), first.figures[metric], _corrected(comparisons), protocol)


def compare_scores(systems: dict[str, list[float]], test_share: float | None = None, metric: str = "mean") -> Report:
    """Plain scores by name, in the same order for all; with ``test_share``, those of a cross-validation's folds.

    ``test_share`` is the share of the examples in a fold; ``metric`` is what the scores are.

    Raises UserError where there aren't as many scores of each system.
    """
    (baseline, first), *others = systems.items()
    comparisons = []
    for name, scores in others:
        sums, ours = of_scores(scores), of_scores(first)
        if test_share is not None:
            tests = [corrected_t_test(scores, first, test_share), ttest_rel(scores, first)]
        else:
            tests = [approximate_randomisation(sums, ours, mean_of)] if len(scores) == len(first) else []
            tests += [ttest_rel(scores, first), wilcoxon(scores, first), paired_bootstrap(sums, ours, mean_of)]
        difference = float(np.mean(scores) - np.mean(first))
        interval = next(test.interval for test in tests if test.interval is not None)
        effect, around = effect_size(scores, first)
        figure = float(np.mean(scores))
        comparisons.append(
            Comparison(name, figure, difference, interval, tests[0].p_value, tuple(tests), effect, around, len(scores))
        )
    protocol = {"scores": "independent pairs" if test_share is None else "folds"}
    return Report(metric, baseline, float(np.mean(first)), _corrected(comparisons), protocol)


def read_scores(path: Path) -> list[float]:
    """A JSON list of numbers, or one number a line (of a CSV: the first column, below its header).

    Raises DataError naming the line that has none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read as text: {error}") from error
    if path.suffix == ".json":
        try:
            values = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}: no valid JSON: {error}") from error
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise DataError(f"{path}: expected a list of numbers, like [0.85, 0.87]")
        return [float(value) for value in values]
    scores: list[float] = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        try:
            scores += [float(row[0])] if row else []
        except ValueError as error:
            if number > 1:
                raise DataError(f"{path}:{number}: expected a number, found {row[0]!r}") from error
    if not np.isfinite(scores).all():
        raise DataError(f"{path}: not all scores are finite")
    return scores


def _examples_compared(first: Examples, other: Examples, names: Sequence[str], metric: str) -> Comparison:
    keys = sorted({*first.keys, *other.keys})
    theirs, ours = other.table(names, keys), first.table(names, keys)

    def figures(sums: np.ndarray) -> np.ndarray:
        return first.figure(metric, sums, keys)

    tests = [approximate_randomisation(theirs, ours, figures), paired_bootstrap(theirs, ours, figures)]
    single_theirs, single_ours = figures(theirs), figures(ours)
    known = np.isfinite(single_theirs) & np.isfinite(single_ours)
    pair = single_theirs[known].tolist(), single_ours[known].tolist()
    if len(pair[0]) > 1:
        tests += [mcnemar(*pair)] if {*pair[0], *pair[1]} <= {0.0, 1.0} else [ttest_rel(*pair), wilcoxon(*pair)]
        effect, around = effect_size(*pair)
    else:
        effect, around = np.nan, (np.nan, np.nan)
    interval = tests[1].interval
    assert interval is not None
    figure, difference = other.figures[metric], other.figures[metric] - first.figures[metric]
    found = (figure, difference, interval, tests[0].p_value, tuple(tests), effect, around, len(names))
    return Comparison(str(other.run), *found)


def _corrected(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    corrected = holm([one.p_value for one in comparisons])
    return tuple(replace(one, p_value=value) for one, value in zip(comparisons, corrected, strict=True))


def _demand_same(first: Examples, other: Examples) -> None:
    """Raises UserError where figures of two runs can't be compared."""
    for name in sorted((first.protocol.keys() | other.protocol.keys()) - set(MODEL)):
        ours, theirs = first.protocol.get(name), other.protocol.get(name)
        if ours != theirs:
            raise UserError(
                f"{first.run} and {other.run} were evaluated by different protocols: {name} is {ours} and {theirs}; "
                f"give both the same by an override, like data.…=…"
            )
    apart = sorted(first.rows.keys() ^ other.rows.keys())
    if apart:
        where = first.run if apart[0] in first.rows else other.run
        raise UserError(
            f"{first.run} and {other.run} have different examples: {len(apart)} are in one only, like {apart[0]} of "
            f"{where}; name the same data for both, like datasets=…"
        )
    for name, counts in first.counts.items():
        if counts != other.counts[name]:
            raise UserError(
                f"{name} isn't the same in {first.run} and {other.run}: it counts {_shown(counts)} and "
                f"{_shown(other.counts[name])}; the data, or their tokenizers, differ"
            )
        if first.contents[name] != other.contents[name]:
            raise UserError(
                f"{name} isn't the same in {first.run} and {other.run}: its content or labels differ; name the same "
                "data for both, like data.corpus.test=…"
            )


def _shown(counts: dict[str, float]) -> str:
    return ", ".join(f"{unit} {value:g}" for unit, value in counts.items())
