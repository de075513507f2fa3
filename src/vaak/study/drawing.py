"""The curve of a range test as a picture and as lines for a terminal; ``saved`` writes any study's picture.

matplotlib is an extra, imported when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError, optional_import
from vaak.study.lr_range import Certainty, Curve, certainty_of


def draw_curve(curve: Curve, path: Path | None = None) -> Any:
    """A matplotlib figure of loss over learning rate with the suggestion in it, written to ``path`` where one is given.

    The kind of file follows from its ending. Raises UserError where matplotlib is missing or the file can't be written.
    """
    with optional_import("drawing needs matplotlib", "plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.rates, curve.losses, ".", color="0.7", label="loss")
    axes.plot(curve.rates, curve.smoothed, color="tab:blue", label="smoothed")
    certainty = certainty_of(curve)
    suggestion = certainty.suggestion
    if certainty.falling is not None:
        axes.axvspan(*certainty.falling, color="tab:green", alpha=0.1, label="the loss falls")
    for number, rate in enumerate(sorted({rate for rate in certainty.alternatives if rate is not None})):
        label = None if number else "other smoothings, every other step"
        axes.axvline(rate, color="tab:red", alpha=0.4, linestyle=":", label=label)
    if suggestion is not None:
        height = curve.smoothed[curve.rates.index(suggestion)]
        axes.plot([suggestion], [height], "o", color="tab:red", label=f"suggestion {short(suggestion)}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title="Learning-rate range test")
    if curve.losses:
        axes.set_ylim(*shown_range(curve))
    axes.grid(alpha=0.3)
    axes.legend()
    return saved(figure, path)


def saved(figure: Any, path: Path | None) -> Any:
    """The figure, written to a file if there is a path. Raises UserError where it can't be written."""
    try:
        if path is not None:
            figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be written: {error}") from error
    return figure


def shown_range(curve: Curve) -> tuple[float, float]:
    """The losses to show: the last of a test that diverged would flatten all that matters."""
    low, high = min(curve.smoothed), max(curve.smoothed[: max(1, len(curve.smoothed) // 2)])
    margin = 0.25 * (high - low) or 1.0
    return low - margin, high + 2 * margin


def short(rate: float) -> str:
    """A rate in two digits, as it is written in YAML.

    >>> short(0.00299), short(0.1)
    ('3e-3', '1e-1')
    """
    digits, _, exponent = f"{rate:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


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
    """Return what is known of a suggestion, a line each; those of doubts begin with ``warning``."""
    if certainty.falling is not None:
        yield f"the loss falls from {' to '.join(map(short, certainty.falling))}"
    if certainty.between is not None:
        lowest, highest = map(short, certainty.between)
        found = lowest if lowest == highest else f"{lowest} to {highest}"
        yield f"more and less smoothing, and every other step alone, suggest {found}"
    yield from (f"warning: {doubt}" for doubt in certainty.doubts)
