"""What evaluations show besides figures: the confusion matrix, the calibration, tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vaak.core.errors import optional_import

NAMED = 40
"""The most classes whose names fit on the axes."""


def confusion_png(counts: np.ndarray, names: Sequence[str]) -> bytes:
    """The fraction of each class's texts by predicted class, of counts ``(class, predicted class)``."""
    figure = _figure((1.2 + 0.28 * min(len(names), 40) + 2, 1 + 0.28 * min(len(names), 40) + 1))
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    if len(names) <= 12:
        for row, column in np.argwhere(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:.0f}", ha="center", va="center", color=colour)
    axes.set(xlabel="predicted", ylabel="class")
    figure.colorbar(image, ax=axes, label="fraction of the class")
    return _png(figure)


def reliability_png(bins: np.ndarray) -> bytes:
    """Accuracy over confidence, of decisions, summed confidence and right ones in each bin ``(bin, 3)``."""
    figure = _figure((4.5, 4.5))
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    counts, confidence, hits = bins[bins[:, 0] > 0].T
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="calibrated")
    axes.plot(confidence / counts, hits / counts, marker="o", label="model")
    axes.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()
    below.bar((np.arange(len(bins)) + 0.5) / len(bins), bins[:, 0], width=0.9 / len(bins), color="0.5")
    below.set(xlabel="confidence", ylabel="decisions")
    return _png(figure)


def csv_of(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV, real numbers with six digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([f"{value:.6f}" if isinstance(value, float) else value for value in row] for row in rows)
    return text.getvalue()


def _figure(size: tuple[float, float]) -> Any:
    with optional_import("drawing needs matplotlib", "plot"):
        from matplotlib.figure import Figure
    return Figure(figsize=size, layout="constrained")


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()
