"""The effect of training: the evaluation before the first step, next to a later one, with intervals where known.

A run that begins pretrained is evaluated at step 0 (``training.validation.at_start``). The interval of a difference
comes from the scores of single examples that evaluations keep (``vaak.core.summaries``): both are of the same ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaak.config.metrics import is_fraction
from vaak.core.significance import compute_mean, paired_bootstrap
from vaak.core.storage.files import warn_unread
from vaak.core.summaries import MOST_SCORES, SUMMARY
from vaak.engine.metrics_file import iterate_evaluations

NUM_REPORT_SAMPLES = 2000
MOST_NAMED = 6
"""Metrics that a line names."""
LARGEST_SUMMARY = 1_000_000
"""Bytes of a summary that is read."""


@dataclass(frozen=True)
class Change:
    """A metric before the first step, and by how much a later one differs; ``interval`` is that of 95 %."""

    name: str
    before: float
    difference: float
    interval: tuple[float, float] | None

    @property
    def cells(self) -> tuple[str, str]:
        """The metric before, and the difference with its interval, as people read them."""
        scale, unit = (100, " points") if is_fraction(self.name) else (1, "")
        before = f"{100 * self.before:.2f} %" if is_fraction(self.name) else f"{self.before:.5g}"
        difference = f"{scale * self.difference:+.4g}{unit}"
        if self.interval is None:
            return before, difference
        low, high = (f"{scale * limit:+.4g}" for limit in self.interval)
        return before, f"{difference} ({low} to {high})"


def explain_lacking_intervals(changes: Sequence[Change]) -> str:
    """Return a line on metrics whose differences have no interval; empty if all have one."""
    lacking = [one.name for one in changes if one.interval is None]
    if not lacking:
        return ""
    named = ", ".join(lacking[:MOST_NAMED]) + (f" and {len(lacking) - MOST_NAMED} more" * (len(lacking) > MOST_NAMED))
    which = "these" if len(lacking) > 1 else "it"
    return f"no interval of the difference: {named} (no scores of single examples are kept of {which})"


def compare_with_start(run: Path, step: int) -> list[Change]:
    """Return how the metrics of a step's evaluation differ from those before the first step."""
    if step <= 0:
        return []
    by_step = {record["step"]: record for record in iterate_evaluations(run) if record["step"] in (0, step)}
    before, after = by_step.get(0, {}), by_step.get(step, {})
    known = dict(_intervals(run, step))
    both = [name for name, value in after.items() if _is_metric(value) and _is_metric(before.get(name))]
    return [Change(name, before[name], after[name] - before[name], known.get(name)) for name in both]


def _is_metric(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _intervals(run: Path, step: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the interval of each metric of which both evaluations kept the scores of the same examples."""
    for folder in sorted(run.glob(f"pictures/*{SUMMARY}")):
        prefix = folder.name.removesuffix(SUMMARY)
        first, last = (_read_summary(run, folder / f"step-{at:08d}.json") for at in (0, step))
        of_tasks = first.get("tasks")
        pairs: list[tuple[str, Any, Any]] = [(prefix, first, last)]
        if isinstance(of_tasks, dict):
            others = last.get("tasks")
            others = others if isinstance(others, dict) else {}
            pairs = [(f"{prefix}{name}/", one, others.get(name)) for name, one in of_tasks.items()]
        for name, one, other in pairs:
            before, after = _scores(one), _scores(other)
            if before is None or after is None or before[0] != after[0] or len(before[1]) != len(after[1]):
                continue
            figure = before[0][0]
            statistics = {figure: compute_mean} | ({"perplexity": _compute_perplexity} if figure == "loss" else {})
            for own, statistic in statistics.items():
                found = paired_bootstrap(after[1], before[1], statistic, NUM_REPORT_SAMPLES).interval
                if found is not None and np.isfinite(found).all():
                    yield f"{name}{own}", found


def _compute_perplexity(sums: np.ndarray) -> np.ndarray:
    """Return the statistic of scores whose mean is a loss in nats."""
    found: np.ndarray = np.exp(np.minimum(compute_mean(sums), 700.0))  # exp overflows above 709
    return found


def _read_summary(run: Path, path: Path) -> Mapping[str, Any]:
    """Return a summary in the run's own folder; an empty one where there is none, or it isn't one."""
    try:
        if not path.resolve().is_relative_to(run.resolve()) or path.stat().st_size > LARGEST_SUMMARY:
            return {}
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RuntimeError) as error:
        warn_unread(path, error)
        return {}
    return found if isinstance(found, dict) else {}


def _scores(summary: Any) -> tuple[tuple[str, str], np.ndarray] | None:
    """The metric and the hash of what it was found by, and sums ``(example, 2)``; None if there are none."""
    about = summary.get("scores") if isinstance(summary, dict) else None
    if not isinstance(about, dict) or not isinstance(about.get("sums"), list):
        return None
    try:
        sums = np.array(about["sums"], np.float64)
    except (ValueError, TypeError):
        return None
    if sums.ndim != 2 or sums.shape[1] != 2 or not 1 < len(sums) <= MOST_SCORES or not np.isfinite(sums).all():
        return None
    return (str(about.get("figure"))[:40], str(about.get("of"))), sums
