"""Pictures of what a study found. matplotlib is an extra, imported when a picture is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.core.errors import UserError, optional_import
from vaak.study.certainty import certainty_of
from vaak.study.lr_range import Curve


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
