"""Systems next to one another: metrics, their difference with its interval, results of paired tests.

A run's metrics are taken apart by example: the contribution of each to the sums of the run's own meters.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.core.names import require_known
from vaak.core.significance import (
    Test,
    approximate_randomisation,
    compute_mean,
    corrected_t_test,
    effect_size,
    holm,
    mcnemar,
    of_scores,
    paired_bootstrap,
    ttest_rel,
    wilcoxon,
)
from vaak.core.storage.dialects import GivenDialect
from vaak.core.storage.tables import Table, TableRow, is_table
from vaak.core.storage.text_lines import read_text_lines
from vaak.core.task import Meters, Task
from vaak.runs.evaluate import evaluate_run
from vaak.runs.open_run import OpenedRun

log = logging.getLogger("vaak")

MODEL = ("weights",)
"""Keys of a protocol that belong to a system, and not to how it was evaluated."""


@dataclass(frozen=True)
class Comparison:
    """A system against the first one; ``difference`` is its metric minus the first one's.

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
class ComparisonReport:
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


def compare_runs(systems: Sequence[Examples], metric: str | None = None) -> ComparisonReport:
    """Runs that were evaluated on the same examples, by a metric (default: that of the first run's best checkpoint).

    Raises UserError if protocols or examples differ, or a run doesn't have the metric.
    """
    first, metric = systems[0], metric or systems[0].metric
    for system in systems:
        require_known([metric], sorted(system.figures), f"{system.run} has no metric", error=UserError)
    names = first.select_names(metric)
    comparisons = []
    for other in systems[1:]:
        _require_same(first, other)
        comparisons.append(_examples_compared(first, other, names, metric))
    protocol = {name: value for name, value in first.protocol.items() if name not in MODEL}
    return ComparisonReport(metric, str(first.run), first.figures[metric], _corrected(comparisons), protocol)


def compare_scores(
    systems: dict[str, list[float]], test_share: float | None = None, metric: str = "mean"
) -> ComparisonReport:
    """Plain scores by name, in the same order for all; with ``test_share``, those of a cross-validation's folds.

    ``test_share`` is the share of the examples in a fold; ``metric`` is what the scores are.

    Raises UserError if there aren't as many scores of each system.
    """
    (baseline, first), *others = systems.items()
    comparisons = []
    for name, scores in others:
        sums, ours = of_scores(scores), of_scores(first)
        if test_share is not None:
            # The first test's p-value is the one that is corrected for several comparisons, and shown.
            tests = [corrected_t_test(scores, first, test_share), ttest_rel(scores, first)]
        else:
            tests = [approximate_randomisation(sums, ours, compute_mean)] if len(scores) == len(first) else []
            tests += [ttest_rel(scores, first), wilcoxon(scores, first), paired_bootstrap(sums, ours, compute_mean)]
        difference = float(np.mean(scores) - np.mean(first))
        interval = next(test.interval for test in tests if test.interval is not None)
        effect, around = effect_size(scores, first)
        value = float(np.mean(scores))
        comparisons.append(
            Comparison(name, value, difference, interval, tests[0].p_value, tuple(tests), effect, around, len(scores))
        )
    protocol = {"scores": "independent pairs" if test_share is None else "folds"}
    return ComparisonReport(metric, baseline, float(np.mean(first)), _corrected(comparisons), protocol)


def read_scores(path: Path) -> list[float]:
    """Return a JSON list of numbers, or one number a line (of a table: the first column, below its header).

    A decimal comma is understood where cells are separated by semicolons, or where each number has one. Raises
    DataError naming the line and the column that have none.
    """
    if path.suffix == ".json":
        try:
            values = json.loads("\n".join(read_text_lines(path)))
        except ValueError as error:
            raise DataError(f"{path}: no valid JSON: {error}") from error
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise DataError(f"{path}: expected a list of numbers, like [0.85, 0.87]")
        scores = [float(value) for value in values]
    else:
        scores = _scores_in_table(path)
    if not np.isfinite(scores).all():
        raise DataError(f"{path}: not all scores are finite")
    return scores


DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
HEADER_TEXT = re.compile(r"[^\W\d_]")
"""How the name of a column begins; a first cell that begins otherwise should be a number."""


def _scores_in_table(path: Path) -> list[float]:
    table = Table(path)
    has_header = (
        bool(table.names) and HEADER_TEXT.match(table.names[0]) is not None and _number_in(table.names[0]) is None
    )
    if not has_header:
        table = Table(path, has_header=False, given=GivenDialect(table.dialect.delimiter))
    rows: list[TableRow] = []
    for row in table.rows():
        if row.problem is not None:
            raise row.problem
        rows.append(row)
    # Two columns of digits without a header are numbers that were cut at their decimal comma: 0,85.
    if not has_header and rows and all(len(row.cells) == 2 and _are_digits(row.cells) for row in rows):
        rows = [_joined_by_comma(path, table, row) for row in rows]
    elif table.width > 1:
        name = f" ({table.names[0]})" if has_header else ""
        log.warning("%s: reads column 1%s of %d columns", path, name, table.width)
    cells = [row.cells[0].strip() for row in rows]
    # 1,234 may be a thousand as well as a fraction: where all look like that, commas aren't decimal.
    commas = bool(cells) and all(map(DECIMAL_COMMA.fullmatch, cells)) and not all(map(THOUSANDS.fullmatch, cells))
    commas = commas or (table.dialect.delimiter == ";" and not any("." in cell for cell in cells))
    column = f"column 1 ({table.names[0]})" if has_header else "column 1"
    scores = []
    for row, cell in zip(rows, cells, strict=True):
        value = _number_in(cell.replace(",", ".") if commas else cell)
        if value is None:
            advice = "; if its comma is a decimal comma, write a point" if DECIMAL_COMMA.fullmatch(cell) else ""
            raise DataError(f"{row.where}: {column}: expected a number, found {cell!r}{advice}")
        scores.append(value)
    return scores


def _are_digits(cells: Sequence[str]) -> bool:
    return DECIMAL_COMMA.fullmatch(",".join(cells)) is not None


def _joined_by_comma(path: Path, table: Table, row: TableRow) -> TableRow:
    """A line like ``0,85``, which is a number in a list, and two cells in a table. Raises DataError in a table."""
    whole = ",".join(row.cells)
    if table.dialect.delimiter == "," and not is_table(path):
        return row._replace(cells=[whole])
    if table.dialect.delimiter == ",":
        raise DataError(
            f"{row.where}: {whole} may be one number or two columns; write a decimal point, or a header above it"
        )
    return row


def _number_in(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _examples_compared(first: Examples, other: Examples, names: Sequence[str], metric: str) -> Comparison:
    keys = sorted({*first.keys, *other.keys})
    theirs, ours = other.table(names, keys), first.table(names, keys)

    def figures(sums: np.ndarray) -> np.ndarray:
        return first.figure(metric, sums, keys)

    tests = [approximate_randomisation(theirs, ours, figures), paired_bootstrap(theirs, ours, figures)]
    single_theirs, single_ours = figures(theirs), figures(ours)
    # A single example may have no metric, such as the WER of an empty reference.
    known = np.isfinite(single_theirs) & np.isfinite(single_ours)
    pair = single_theirs[known].tolist(), single_ours[known].tolist()
    if len(pair[0]) > 1:
        tests += [mcnemar(*pair)] if {*pair[0], *pair[1]} <= {0.0, 1.0} else [ttest_rel(*pair), wilcoxon(*pair)]
        effect, around = effect_size(*pair)
    else:
        effect, around = np.nan, (np.nan, np.nan)
    interval = tests[1].interval
    assert interval is not None
    value, difference = other.figures[metric], other.figures[metric] - first.figures[metric]
    found = (value, difference, interval, tests[0].p_value, tuple(tests), effect, around, len(names))
    return Comparison(str(other.run), *found)


def _corrected(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    corrected = holm([one.p_value for one in comparisons])
    return tuple(replace(one, p_value=value) for one, value in zip(comparisons, corrected, strict=True))


def _require_same(first: Examples, other: Examples) -> None:
    """Raises UserError if metrics of two runs can't be compared."""
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
                f"{name} isn't the same in {first.run} and {other.run}: it counts {_format_counts(counts)} and "
                f"{_format_counts(other.counts[name])}; the data, or their tokenizers, differ"
            )
        if first.contents[name] != other.contents[name]:
            raise UserError(
                f"{name} isn't the same in {first.run} and {other.run}: its content or labels differ; name the same "
                "data for both, like data.corpus.test=…"
            )


def _format_counts(counts: dict[str, float]) -> str:
    return ", ".join(f"{unit} {value:g}" for unit, value in counts.items())


FOLDER_PARTS = re.compile(r"[^\s:]*/")
AS_READ = "position"
"""The unit that counts how a model reads an example, which another may read otherwise."""


class ByExample(Meters):
    """Shows other meters one row at a time, and keeps by how much their sums grow, and what the row counts and is."""

    def __init__(self, meters: Meters, task: Task, split: str) -> None:
        self.protocol, self.meters = meters.protocol, meters
        self.rows: dict[str, dict[str, float]] = {}
        self.counts: dict[str, dict[str, float]] = {}
        self.contents: dict[str, list[str]] = {}
        self._dataset = task.dataset(split)

    def expect_rehearsal(self) -> None:
        self.meters.expect_rehearsal()

    def update(self, model: nn.Module, batch: Batch) -> None:
        for row in batch.split(batch.num_rows):
            before = dict(self.meters.sums())
            self.meters.update(model, row)
            # without folders, which two runs may have elsewhere; numbered where there are several of a name
            name = FOLDER_PARTS.sub("", ", ".join(map(self._dataset.describe, row.indices[0])))
            others = sum(there == name or there.startswith(f"{name} #") for there in self.rows)
            name = f"{name} #{others + 1}" if others else name
            self.rows[name] = {key: value - before.get(key, 0.0) for key, value in self.meters.sums().items()}
            self.counts[name] = {unit: number for unit, number in row.totals().items() if unit != AS_READ}
            self.contents[name] = [self._dataset.get_content(index) for index in row.indices[0]]

    def sums(self) -> dict[str, float]:
        return self.meters.sums()

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return self.meters.results(sums)


@dataclass(frozen=True)
class Examples:
    """The examples of a run's split by name, with their sums, counts and contents; ``meters`` make metrics of sums.

    ``metric`` is the one that the run chose its best checkpoint by.
    """

    run: Path
    figures: dict[str, float]
    protocol: dict[str, Any]
    metric: str
    meters: Meters
    rows: dict[str, dict[str, float]] = field(repr=False)
    counts: dict[str, dict[str, float]] = field(repr=False)
    contents: dict[str, list[str]] = field(repr=False)

    @property
    def keys(self) -> list[str]:
        """The names of the sums."""
        return sorted({key for sums in self.rows.values() for key in sums})

    def select_names(self, metric: str) -> list[str]:
        """The examples that a metric is of: those that count TASK/unit where it is TASK/metric, otherwise all."""
        task = f"{metric.rpartition('/')[0]}/"
        own = [name for name, counts in self.counts.items() if any(unit.startswith(task) for unit in counts)]
        return sorted(own or self.rows)

    def table(self, names: Sequence[str], keys: Sequence[str]) -> np.ndarray:
        """Sums of examples ``(example, sum)``."""
        return np.array([[self.rows[name].get(key, 0.0) for key in keys] for name in names])

    def figure(self, metric: str, sums: np.ndarray, keys: Sequence[str]) -> np.ndarray:
        """Return a metric ``(sample,)`` of sums ``(sample, sum)``; not a number where they give none."""
        found: list[float] = []
        for row in sums:
            try:
                found.append(self.meters.results(dict(zip(keys, row.tolist(), strict=True))).get(metric, np.nan))
            except ZeroDivisionError:
                found.append(np.nan)
        return np.array(found)


def evaluate_examples(
    run: Path, files: Sequence[Path], overrides: Sequence[str], split: str, device: str = "auto", weights: str = "auto"
) -> Examples:
    """Evaluates the ``split`` of a run as ``evaluate_run`` does, and keeps every example's sums.

    ``files``, ``overrides``, ``device`` and ``weights`` are those of ``evaluate_run``.

    Raises UserError if there are fewer than two examples.
    """
    made: list[ByExample] = []
    metric = ""

    def watched(opened: OpenedRun, split: str, meters: Meters) -> Meters:
        nonlocal metric
        metric = opened.experiment.training.checkpoint.metric
        # Made once more where memory ran out and the evaluation began again: the last one counts.
        made.append(ByExample(meters, opened.task, split))
        return made[-1]

    report = evaluate_run(run, files, overrides, [split], device, weights, watched=watched)
    seen = made[-1]
    rows, prefix = seen.rows, f"{'val' if split == 'valid' else split}_"
    if len(rows) < 2:
        raise UserError(f"{run}: {split} has {len(rows)} examples; a comparison requires at least two")
    metrics = {name.removeprefix(prefix): value for name, value in report["metrics"].items()}
    metric = metric.removeprefix("val_")
    return Examples(run, metrics, report["protocol"][split], metric, seen.meters, rows, seen.counts, seen.contents)
