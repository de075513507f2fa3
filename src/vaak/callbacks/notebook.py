"""The display of a run in a notebook while it trains: its progress and its curves, redrawn in place.

Jupyter, Colab and editors show it alike: it is HTML without scripts, and stays in the notebook when it is saved.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from vaak.core.console import format_time
from vaak.engine.metrics_file import Record

WIDTH, HEIGHT, MARGIN = 640, 200, 52
MOST_POINTS = 300
"""A curve with more points is thinned: more would be less than two pixels apart."""
COLOURS = {"train": "#3b8ede", "val_loss": "#e6702e"}
"""They can be told apart on light and dark pages, and by most who are colour-blind."""


def in_notebook() -> bool:
    """Return whether this is the program of a notebook, which shows HTML; IPython on a terminal doesn't."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class NotebookProgress:
    """The display of a run, which ``update`` redraws; ``history`` are records of the run before it was resumed."""

    def __init__(self, step: int, total_steps: int, evaluated: str, history: Iterable[Record]) -> None:
        from IPython.display import display

        self.step, self.first_step, self.total_steps, self.begun = step, step, total_steps, time.monotonic()
        self.fields = {"loss": "", "epoch": "", "rate": "", "evaluated": evaluated}
        self.curves: dict[str, list[tuple[int, float]]] = {name: [] for name in COLOURS}
        for record in history:
            self.add(record)
        self.handle: Any = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def add(self, record: Record) -> None:
        """Append a point of a curve, where a record has one."""
        value = record.get({"step": "loss", "evaluation": "val_loss"}.get(record["kind"], ""))
        if isinstance(value, float):
            self.curves["train" if record["kind"] == "step" else "val_loss"].append((record["step"], value))

    def update(self, task: int, *, completed: int, **fields: str) -> None:
        """Show the number of ``completed`` steps; ``fields`` are those of a progress bar (``task`` is always 0)."""
        self.step, self.fields = completed, {**self.fields, **fields}
        self.handle.update(self)

    def _repr_html_(self) -> str:
        said = [f"step {self.step:,}/{self.total_steps:,}"]
        said += [f"loss {value}" if name == "loss" else value for name, value in self.fields.items() if value]
        gone, done = time.monotonic() - self.begun, self.step - self.first_step
        left = f", {format_time(gone / done * (self.total_steps - self.step))} left" if done > 0 else ""
        said.append(f"{format_time(gone)} elapsed{left}")
        return (
            f'<div style="max-width: {WIDTH}px; font: 13px sans-serif">'
            f'<progress max="{self.total_steps}" value="{self.step}" style="width: 100%"></progress>'
            f"<div>{escape('  ·  '.join(said))}</div>{curves_svg(self.curves)}</div>"
        )


def curves_svg(curves: dict[str, list[tuple[int, float]]]) -> str:
    """Return curves of ``(step, value)`` as SVG, with the ends of both axes; nothing if there is nothing to draw."""
    shown = {name: finite for name, points in curves.items() if (finite := _thinned(points))}
    points = [point for one in shown.values() for point in one]
    if len(points) < 2:
        return ""
    steps, values = zip(*points, strict=True)
    first, last, low, high = min(steps), max(steps), min(values), max(values)

    def place(step: int, value: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - MARGIN - 10) * (step - first) / max(last - first, 1)
        return x, 10 + (HEIGHT - 40) * ((high - value) / (high - low) if high > low else 0.5)

    drawn = []
    for number, (name, found) in enumerate(shown.items()):
        placed, style = [place(*point) for point in found], f'stroke="{COLOURS[name]}" fill="none" stroke-width="1.5"'
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        drawn.append(f'<polyline points="{line}" {style}/>')
        if len(placed) < MOST_POINTS / 10:
            # A single point draws no line.
            drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" {style}/>' for x, y in placed]
        drawn.append(_text(WIDTH - 10, 22 + 16 * number, "end", name, COLOURS[name]))
    drawn += [_text(MARGIN - 6, 14, "end", f"{high:.4g}"), _text(MARGIN - 6, HEIGHT - 27, "end", f"{low:.4g}")]
    drawn += [_text(MARGIN, HEIGHT - 8, "start", f"{first:,}"), _text(WIDTH - 10, HEIGHT - 8, "end", f"step {last:,}")]
    label = f"training loss {shown['train'][-1][1]:.4g} at step {last:,}" if "train" in shown else "validation loss"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _text(x: float, y: float, anchor: str, text: str, colour: str = "currentColor") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="12">{escape(text)}</text>'


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return finite points, evenly thinned to as many as can be seen, the first and the last among them."""
    finite = [point for point in points if abs(point[1]) < float("inf")]
    every = max(1, -(-(len(finite) - 1) // (MOST_POINTS - 2)))
    return finite[: len(finite) - 1 : every] + finite[-1:]
