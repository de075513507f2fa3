"""A comparison as a picture: each system's difference from the first, with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.callbacks.console.figures import is_fraction
from vaak.core.errors import optional_import
from vaak.study.comparison.compare import Report
from vaak.study.drawing import saved


def draw_report(report: Report, path: Path | None = None) -> Any:
    """A matplotlib figure, written to ``path`` where one is given.

    Raises UserError where matplotlib is missing or the file can't be written.
    """
    with optional_import("drawing needs matplotlib", "plot"):
        from matplotlib.figure import Figure
    scale, unit = (100, ", percentage points") if is_fraction(report.metric) else (1, "")
    figure = Figure(figsize=(7, 1.6 + 0.5 * len(report.comparisons)), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(report.comparisons):
        low, high = (scale * (limit - one.difference) for limit in one.interval)
        axes.errorbar(
            scale * one.difference,
            place,
            xerr=[[max(0.0, -low)], [max(0.0, high)]],
            fmt="o",
            capsize=4,
            color="tab:blue",
        )
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set_yticks(range(len(report.comparisons)), [f"{one.name}\np {one.p_value:.3g}" for one in report.comparisons])
    axes.set_ylim(-0.6, len(report.comparisons) - 0.4)
    axes.invert_yaxis()
    axes.set_xlabel(f"difference in {report.metric} from {report.baseline}{unit}, 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return saved(figure, path)
