"""Elements of a report's page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import vaak.report
from vaak.report.curves import Curve, Event, Panel
from vaak.report.html import render_charts


def test_numbers_in_a_shaded_table_can_be_read_light_and_dark():
    """The contrast of WCAG 2.1 between text and the darkest cell is 4.5 at least."""
    css = (Path(vaak.report.__file__).parent / "assets/report.css").read_text(encoding="utf-8")
    (deepest,) = map(float, re.findall(r"\.heat .*\n.*calc\(([.\d]+) \* var\(--share", css))
    colours = {name: re.findall(rf"--{name}: #(\w+)", css) for name in ("accent", "bg", "fg")}
    assert {name: len(found) for name, found in colours.items()} == {"accent": 2, "bg": 2, "fg": 2}

    def read_colour(digits: str) -> np.ndarray:
        whole = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        return np.array([int(part, 16) / 255 for part in re.findall("..", whole)])

    def luminance(colour: np.ndarray) -> float:
        linear = np.where(colour <= 0.03928, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for mode in range(2):
        accent, ground, text = (read_colour(found[mode]) for found in colours.values())
        low, high = sorted((luminance(text), luminance(deepest * accent + (1 - deepest) * ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_run_of_one_step_has_no_hints_on_charts_that_are_not_there():
    happened = [Event(2, "checkpoint", "checkpoint (best)")]
    short = Panel("loss", "", [Curve("loss", [1, 2], [2.0, 1.0])])
    long = Panel("loss", "", [Curve("loss", [1, 2, 3], [2.0, 1.5, 1.0])])
    assert (short.is_table, long.is_table) == (True, False)
    said = {panel.is_table: "".join(map(str, render_charts([panel], happened, 0))) for panel in (short, long)}
    for hint in ("Hover to read values", "Events on the time axis"):
        assert (hint in said[True], hint in said[False]) == (False, True)
