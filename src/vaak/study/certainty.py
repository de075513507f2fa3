"""How sure the suggestion of a range test is: what else its curve suggests, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaak.study.lr_range import CLEAR_FALL, FEWEST, WINDOW, Curve

OTHER_WINDOWS = (WINDOW / 2, 2 * WINDOW)
BARELY = 0.05  # of the whole fall: where it begins
MUCH_NOISE = 0.2  # of the whole fall
FAR_APART = 4.0  # times


@dataclass(frozen=True)
class Certainty:
    """What speaks for a suggestion and against it.

    ``alternatives`` are what the curve suggests with less and with more smoothing, and what its odd and even steps
    alone do; None where one of them finds no clear fall. ``suggestion`` is the curve's where all of them find one: of
    curves that are nothing but noise, one in twenty seems to fall, but one in a thousand does however one looks at
    it. ``falling`` is the range of rates in which the loss falls.
    """

    alternatives: tuple[float | None, ...]
    suggestion: float | None
    falling: tuple[float, float] | None
    doubts: tuple[str, ...]

    @property
    def between(self) -> tuple[float, float] | None:
        """The lowest and the highest of the alternatives."""
        found = [rate for rate in self.alternatives if rate is not None]
        return (min(found), max(found)) if found else None


def certainty_of(curve: Curve) -> Certainty:
    """How sure the suggestion of a curve is; all is empty where there is none."""
    suggestion = curve.suggestion()
    if suggestion is None:
        return Certainty((), None, None, ())
    halves = [Curve(curve.rates[first::2], curve.losses[first::2]) for first in (0, 1)]
    alternatives = [curve.suggestion(window) for window in OTHER_WINDOWS]
    alternatives += [half.suggestion(WINDOW / 2) for half in halves if len(half.losses) >= FEWEST]
    sure = None if None in alternatives else suggestion
    return Certainty(tuple(alternatives), sure, _falling(curve), tuple(_doubts(curve, suggestion, alternatives)))


def _falling(curve: Curve) -> tuple[float, float]:
    """From the rate at which the smoothed loss has begun to fall for good, to that of its lowest point."""
    losses = np.array(curve.smoothed)
    lowest = int(np.argmin(losses))
    highest = float(losses[: lowest + 1].max())
    still_high = losses[: lowest + 1] >= highest - BARELY * (highest - losses[lowest])
    return curve.rates[int(np.flatnonzero(still_high)[-1])], curve.rates[lowest]


def _doubts(curve: Curve, suggestion: float, alternatives: list[float | None]) -> list[str]:
    losses = np.array(curve.smoothed)
    lowest = int(np.argmin(losses))
    fall = float(losses[: lowest + 1].max() - losses[lowest])
    noise = float(np.std(np.array(curve.losses)[: lowest + 1] - losses[: lowest + 1]))
    doubts = []
    if noise > MUCH_NOISE * fall:
        doubts.append(
            f"the curve is noisy: single steps scatter by {noise / fall:.0%} of the whole fall; take more steps "
            "(--num-iter) or a larger batch"
        )
    if not curve.diverged and lowest >= len(losses) - 1 - WINDOW:
        doubts.append("the loss still falls at the end of the range; raise --end-lr")
    found = [rate for rate in alternatives if rate is not None]
    if len(found) < len(alternatives):
        doubts.append(
            f"{len(alternatives) - len(found)} of {len(alternatives)} other ways to look at the curve (more or less "
            f"smoothing, every other step) find no fall of {CLEAR_FALL:g} times its noise; take more steps (--num-iter)"
        )
    apart = max([suggestion, *found]) / min([suggestion, *found])
    if apart > FAR_APART:
        doubts.append(f"the suggestions are {apart:.0f} times apart; take more steps (--num-iter) or a larger batch")
    return doubts
