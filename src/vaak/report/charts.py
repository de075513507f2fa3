"""Charts of metrics: a run's history, a range test, differences of systems, the trials of a sweep, a classifier.

``draw_…`` returns a matplotlib figure, and writes it where a path is given, in the kind that its ending says;
``…_png`` gives the bytes of a PNG. UserError is raised where matplotlib is missing or the file can't be written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from vaak.config.metrics import add_unit, find_repeats, get_unit, is_fraction, split_part
from vaak.core.errors import UserError, optional_import
from vaak.core.storage.links import require_no_link
from vaak.engine.metrics_file import iterate_history
from vaak.report.history import LongCurve
from vaak.report.tables import short_rate, shown_losses

MOST_PANELS, MOST_LABELLED = 9, 6
"""Panels of a picture; curves of a panel whose legend is in it."""
MOST_POINTS = 4000
"""The points of a curve that are drawn; of more, the lowest and the highest of each stretch."""
MOST_MARKED = 40
"""The points of a curve that are marked one by one."""
LEARNING_RATE = "learning_rate"


def make_figure(width: float, height: float, layout: Any = "constrained") -> Any:
    """Return an empty figure of a size in inches. Raises UserError if matplotlib is missing."""
    with optional_import("drawing requires matplotlib", "plot"):
        from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows as a picture, also where pyplot isn't used."""

        def _repr_png_(self) -> bytes:
            return render_png(self)

    return Shown(figsize=(width, height), layout=layout)


def saved(figure: Any, path: Path | None) -> Any:
    """Return the figure, written to a file if there is a path. Raises UserError if it can't be written."""
    try:
        if path is not None:
            require_no_link(path)
            figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be written: {error}") from error
    return figure


def render_png(figure: Any, dpi: int = 100) -> bytes:
    """Return the figure as a PNG; signs that the font lacks are boxes."""
    content = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(content, format="png", dpi=dpi)
    return content.getvalue()


Points = tuple[Sequence[int], Sequence[float | None]]


def draw_histories(histories: Mapping[str, Iterable[Mapping[str, Any]]], title: str, path: Path | None = None) -> Any:
    """Draw the records of runs, by their names, in the same panels; groups only where there is one run."""
    panels: dict[str, dict[str, Points]] = {"loss": {}}
    for run, records in histories.items():
        for (panel, label), points in _collect_curves(records).items():
            if len(histories) == 1:
                panels.setdefault(panel, {})[label] = points
            elif label == panel or panel == "loss":
                panels.setdefault(panel, {})[f"{run}: {label}" if panel == "loss" else run] = points
    drawn = [(name, curves) for name, curves in panels.items() if curves][:MOST_PANELS]
    columns = min(3, max(1, len(drawn)))
    rows = [drawn[first : first + columns] for first in range(0, max(1, len(drawn)), columns)]
    below = [
        max([0, *(math.ceil(len(curves) / 2) for _, curves in row if len(curves) > MOST_LABELLED)]) for row in rows
    ]
    heights = [3.2 + 0.16 * lines for lines in below]  # inches
    figure = make_figure(4.5 * columns, sum(heights))
    figure.suptitle(title)
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    for number, (name, curves) in enumerate(drawn):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        for place, (label, (steps, values)) in enumerate(curves.items()):
            # The ten colours come again after ten curves, then with another dash.
            marker, dash = "." if len(steps) < MOST_MARKED else None, ("-", "--", ":")[place // 10 % 3]
            axes.plot(steps, values, linestyle=dash, marker=marker, label=label)
        axes.set(title=add_unit(name, get_unit(name)), xlabel="step")
        axes.grid(alpha=0.3)
        if len(curves) > MOST_LABELLED:
            # Within the panel it would hide the curves.
            about = {"bbox_to_anchor": (0.5, -0.16), "loc": "upper center", "ncols": 2, "fontsize": "x-small"}
            axes.legend(**about)
        elif len(curves) > 1:
            axes.legend()
    return saved(figure, path)


def draw_runs(runs: Sequence[Path], path: Path, inner: str = "") -> None:
    """Draw the histories of runs together; of each that has a run at the relative path ``inner``, that run's.

    Raises UserError if a folder has no history.
    """
    histories = {}
    folders = [run.resolve().name for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        directory = next((place for place in (run, run / inner) if (place / "metrics.jsonl").is_file()), None)
        if directory is None:
            raise UserError(f"{run} has no metrics.jsonl: it is not a run, or it hasn't been trained")
        # a path may be longer than a panel is wide
        histories[folder if folders.count(folder) == 1 else str(run)] = iterate_history(directory)
    draw_histories(histories, shorten(", ".join(histories), 100, placeholder=" …"), path)


def _collect_curves(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Points]:
    """Steps and values of each curve of a history, by its panel and its label; fractions in percent."""
    found: dict[tuple[str, str], LongCurve] = {}
    names: dict[tuple[str, str], str] = {}
    evaluations = []
    for record in records:
        shown: dict[tuple[str, str], Any] = {}
        if record["kind"] == "step":
            shown = {("loss", "train"): record.get("loss"), (LEARNING_RATE, LEARNING_RATE): record.get(LEARNING_RATE)}
        elif record["kind"] == "evaluation":
            metrics = {name: value for name, value in record.items() if isinstance(value, float)}
            evaluations.append(metrics)
            names |= {_choose_panel(name): name for name in metrics}
            shown = {
                _choose_panel(name): 100 * value if is_fraction(name) else value for name, value in metrics.items()
            }
        for place, value in shown.items():
            if value is not None:
                found.setdefault(place, LongCurve()).add(record["step"], value)
    repeated = find_repeats(evaluations)
    return {place: one.thin(MOST_POINTS) for place, one in found.items() if names.get(place) not in repeated}


def _choose_panel(name: str) -> tuple[str, str]:
    """Return the panel and the label of a metric; parts of one (``val_wer/GROUP``) share its panel.

    >>> _choose_panel("val_loss"), _choose_panel("val_wer/hi")
    (('loss', 'valid'), ('val_wer', 'hi'))
    """
    panel, part = split_part(name)
    return ("loss", "valid") if name == "val_loss" else (panel, part or name)


def draw_range_test(found: Mapping[str, Any], path: Path | None = None) -> Any:
    """Draw loss over learning rate with the suggestion, from the content of ``lr-range.json``."""
    figure = make_figure(7, 4.5)
    axes = figure.subplots()
    axes.plot(found["lr"], found["loss"], ".", color="0.7", label="loss")
    axes.plot(found["lr"], found["smoothed"], color="tab:blue", label="smoothed")
    suggestion = found["suggestion"]
    if found["falling"] is not None:
        axes.axvspan(*found["falling"], color="tab:green", alpha=0.1, label="the loss falls")
    for number, rate in enumerate(sorted({rate for rate in found["alternatives"] if rate is not None})):
        label = None if number else "other smoothings, every other step"
        axes.axvline(rate, color="tab:red", alpha=0.4, linestyle=":", label=label)
    if suggestion is not None:
        height = found["smoothed"][found["lr"].index(suggestion)]
        axes.plot([suggestion], [height], "o", color="tab:red", label=f"suggestion {short_rate(suggestion)}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title="Learning-rate range test")
    if found["loss"]:
        axes.set_ylim(*shown_losses(found["smoothed"]))
    axes.grid(alpha=0.3)
    axes.legend()
    return saved(figure, path)


def draw_differences(report: Mapping[str, Any], path: Path | None = None) -> Any:
    """Draw each system's difference from the first with its interval, from the output of ``vaak compare --json``."""
    metric, comparisons = report["metric"], report["comparisons"]
    scale, unit = (100, ", percentage points") if is_fraction(metric) else (1, "")
    figure = make_figure(7, 1.6 + 0.5 * len(comparisons))
    axes = figure.subplots()
    for number, one in enumerate(comparisons):
        difference = one["difference"]
        low, high = (scale * (limit - difference) for limit in one["interval"])
        # A bootstrap's interval may leave out the difference itself, and matplotlib refuses negative errors.
        around = [[max(0.0, -low)], [max(0.0, high)]]
        axes.errorbar(scale * difference, number, xerr=around, fmt="o", capsize=4, color="tab:blue")
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set_yticks(range(len(comparisons)), [f"{one['name']}\np {one['p_value']:.3g}" for one in comparisons])
    axes.set_ylim(-0.6, len(comparisons) - 0.4)
    axes.invert_yaxis()
    axes.set_xlabel(f"difference in {metric} from {report['baseline']}{unit}, 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return saved(figure, path)


def draw_trials(columns: Mapping[str, Sequence[Any]], mode: str, path: Path | None = None) -> Any:
    """Draw every trial of a sweep as a line through its options and, in the last of the columns, its metric.

    The brighter, the better: by ``mode`` the highest metric (``max``) or the lowest.
    """
    figure = make_figure(2.2 + 1.9 * len(columns), 5)
    # After make_figure, which raises UserError where matplotlib is missing.
    from matplotlib import colormaps

    scales = [_parallel_axis(values) for values in columns.values()]
    axes = figure.subplots()
    for heights in zip(*(heights for heights, _ in scales), strict=True):
        shade = heights[-1] if mode == "max" else 1 - heights[-1]
        axes.plot(range(len(columns)), heights, color=colormaps["viridis"](shade), alpha=0.8)
    for number, (_, labels) in enumerate(scales):
        axes.axvline(number, color="0.7", linewidth=1)
        for height, label in labels:
            axes.annotate(label, (number, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xticks(range(len(columns)), [name.replace("training.", "").replace(".", ".\n") for name in columns])
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(columns) - 0.5)
    axes.set_title(f"{len(scales[-1][0])} trials; the brighter, the better")
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    return saved(figure, path)


def _parallel_axis(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return each value's height between 0 and 1, and the labels of the axis: all choices, or the ends of a range."""
    if all(isinstance(value, str) for value in values):
        choices = sorted(set(values), key=_as_number)
        heights = {value: number / max(1, len(choices) - 1) for number, value in enumerate(choices)}
        return [heights[value] for value in values], [(height, value) for value, height in heights.items()]
    low, high = min(values), max(values)
    log = low > 0 and high / low > 50
    spread = [math.log(value) if log else float(value) for value in (low, high, *values)]
    width = spread[1] - spread[0] or 1.0
    ends = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")] if high > low else [(0.0, f"{low:.4g}")]
    return [(value - spread[0]) / width for value in spread[2:]], ends


def _as_number(text: str) -> tuple[float, str]:
    """Numbers in their order, then words."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def draw_importance(shares: Mapping[str, float], metric: str, path: Path | None = None) -> Any:
    """Draw how much of the variance of a sweep's ``metric`` each option explains, the most at the top."""
    names = list(shares)[::-1]
    figure = make_figure(7, 1.4 + 0.4 * len(names))
    axes = figure.subplots()
    axes.barh(names, [shares[name] for name in names], color="tab:blue")
    axes.set_xlabel(f"share of the variance of {metric} that it explains")
    axes.set_xlim(0, 1)
    return saved(figure, path)


MOST_NAMED, MOST_COUNTED = 40, 12
"""The classes of a confusion matrix whose names fit on the axes, and whose counts fit into the cells."""


def confusion_png(counts: np.ndarray, names: Sequence[str]) -> bytes:
    """Return a PNG of each class's shares by predicted class; ``counts`` are ``(class, predicted class)``."""
    side = max(1.5, 0.28 * min(len(names), MOST_NAMED))
    # The left margin holds names and labels.
    left_inches = 0.6 + (0.09 * max(map(len, names)) if len(names) <= MOST_NAMED else 0.3)
    width, height = left_inches + side + 1.2, left_inches + side + 0.2
    # Without a layout, which would draw everything several times to find the margins.
    figure = make_figure(width, height, layout=None)
    axes = figure.add_axes((left_inches / width, left_inches / height, side / width, side / height))
    colours = figure.add_axes((1 - 1.05 / width, left_inches / height, 0.2 / width, side / height))
    if len(names) <= MOST_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted", ylabel="class")
    written = np.argwhere(counts) if len(names) <= MOST_COUNTED else ()
    draw_shares(axes, counts, written, "fraction of the class", colours)
    return render_png(figure)


def draw_shares(
    axes: Any, counts: np.ndarray, written: Iterable[Sequence[int]], label: str, colours: Any = None
) -> None:
    """Draw counts ``(row, column)`` as shares of their row; those in the cells ``written`` are written into them.

    The scale is drawn in the axes ``colours`` if given, else it takes space from ``axes``.
    """
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.figure.colorbar(image, ax=axes, cax=colours, label=label)
    for row, column in written:
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{counts[row, column]:.0f}", ha="center", va="center", color=colour)


def reliability_png(bins: np.ndarray) -> bytes:
    """Return a PNG of accuracy over confidence; ``bins`` ``(bin, 3)`` are decisions, summed confidence, right ones."""
    figure = make_figure(4.5, 4.5, layout=None)
    margins = {"left": 0.13, "right": 0.96, "bottom": 0.11, "top": 0.98, "hspace": 0.08}
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1), gridspec_kw=margins)
    counts, confidence, hits = bins[bins[:, 0] > 0].T
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="calibrated")
    axes.plot(confidence / counts, hits / counts, marker="o", label="model")
    axes.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()
    below.bar((np.arange(len(bins)) + 0.5) / len(bins), bins[:, 0], width=0.9 / len(bins), color="0.5")
    below.set(xlabel="confidence", ylabel="decisions")
    return render_png(figure)
