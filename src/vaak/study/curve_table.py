"""The curve of a range test as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from vaak.study.certainty import Certainty, certainty_of
from vaak.study.drawing import short, shown_range
from vaak.study.lr_range import Curve

BAR = 24


def table(curve: Curve) -> Iterator[str]:
    """A line for each step: its learning rate, its loss, and the smoothed loss as a number and as a bar."""
    if not curve.losses:
        return
    suggestion, (low, high) = certainty_of(curve).suggestion, shown_range(curve)
    yield f"{'step':>4}  {'lr':>8}  {'loss':>9}  {'smoothed':>9}"
    for step, (rate, loss, smoothed) in enumerate(zip(curve.rates, curve.losses, curve.smoothed, strict=True), 1):
        part = min(1.0, max(0.0, (smoothed - low) / (high - low)))
        mark = "  < suggestion" if rate == suggestion else ""
        bar = f"{'#' * round(BAR * part):<{BAR}}{mark}"
        yield f"{step:>4}  {rate:>8.2e}  {loss:>9.4g}  {smoothed:>9.4g}  {bar}".rstrip()


def in_words(certainty: Certainty) -> Iterator[str]:
    """What is known of a suggestion, a line each; those of doubts begin with ``warning``."""
    if certainty.falling is not None:
        yield f"the loss falls from {' to '.join(map(short, certainty.falling))}"
    if certainty.between is not None:
        lowest, highest = map(short, certainty.between)
        found = lowest if lowest == highest else f"{lowest} to {highest}"
        yield f"more and less smoothing, and every other step alone, suggest {found}"
    yield from (f"warning: {doubt}" for doubt in certainty.doubts)
