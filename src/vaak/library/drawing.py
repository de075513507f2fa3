"""A picture of a run. matplotlib is an extra, imported when a picture is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaak.core.errors import optional_import
from vaak.engine.metrics_file import read_records
from vaak.study.drawing import saved

MOST_PANELS = 9
RATE = "learning_rate"
NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}


def read_history(directory: Path) -> list[dict[str, Any]]:
    """The records of a run's ``metrics.jsonl`` in their order, numbers that JSON can't hold as floats."""
    path = directory / "metrics.jsonl"
    return [
        {name: NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in record.items()}
        for record in (read_records(path) if path.exists() else [])
    ]


def draw_history(records: Sequence[dict[str, Any]], title: str, path: Path | None = None) -> Any:
    """A matplotlib figure: the losses of training and evaluation, the figures of evaluations, the learning rate.

    Written to ``path`` where one is given. Raises UserError where matplotlib is missing, or the file can't be written.
    """
    with optional_import("drawing needs matplotlib", "plot"):
        from matplotlib.figure import Figure
    panels = _panels(records)
    columns = min(3, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(4.5 * columns, 3.2 * rows), layout="constrained")
    figure.suptitle(title)
    for place, (name, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, place)
        for label, (steps, values) in curves.items():
            axes.plot(steps, values, marker="." if len(steps) < 40 else None, label=label)
        axes.set(title=name, xlabel="step")
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend()
    return saved(figure, path)


Curve = tuple[list[int], list[float]]


def _panels(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """Return what is drawn: the panels by name, each with its curves by label."""
    panels: dict[str, dict[str, Curve]] = {"loss": {}}
    for record in records:
        if record["kind"] == "step":
            shown = {("loss", "train"): record.get("loss"), (RATE, RATE): record.get(RATE)}
        elif record["kind"] == "evaluation":
            shown = {_place(name): value for name, value in record.items() if isinstance(value, float)}
        else:
            continue
        for (panel, label), value in shown.items():
            if value is not None:
                steps, values = panels.setdefault(panel, {}).setdefault(label, ([], []))
                steps.append(record["step"])
                values.append(value)
    drawn = {name: curves for name, curves in panels.items() if curves}
    return dict(list(drawn.items())[:MOST_PANELS])


def _place(name: str) -> tuple[str, str]:
    """The panel and the label of a figure; parts of one (``val_wer/GROUP``) share its panel.

    >>> _place("val_loss"), _place("val_wer/hi")
    (('loss', 'valid'), ('val_wer', 'hi'))
    """
    panel, _, part = name.partition("/")
    return ("loss", "valid") if name == "val_loss" else (panel, part or name)
