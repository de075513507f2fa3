"""The learning-rate range test: the rate grows from step to step, and the loss says which rates train, and how surely.

    loss ┤───────╮            too small: nothing happens
         │        ╲           the loss falls fastest: the suggestion
         │         ╲    ╱     too large: it rises again; at 4 times the best the test stops
         └──────────┴──┴── lr (logarithmic)

Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3.
Differs: rates grow exponentially, and the curve is smoothed by a window that looks to both sides; a running
average would lag, and suggest too high a rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from vaak.core.errors import UserError
from vaak.report.tables import short_rate

# Standard deviation of the smoothing window, in steps.
WINDOW = 3.0
# Weight of the past in the running average that decides when to stop.
PAST = 0.9
# Steps without which a curve says nothing.
FEWEST_STEPS = 10
# In standard deviations of the noise: one in twenty curves of noise alone falls as far.
CLEAR_FALL = 1.5


@dataclass(frozen=True)
class RateRange:
    """Rates from ``start_lr`` to ``end_lr`` in ``num_iter`` steps; growing by a factor, or ``linear``ly.

    Raises UserError for an invalid range.
    """

    start_lr: float = 1e-7
    end_lr: float = 1.0
    num_iter: int = 100
    spacing: Literal["exponential", "linear"] = "exponential"

    def __post_init__(self) -> None:
        if not 0 < self.start_lr < self.end_lr < math.inf:
            raise UserError(
                f"learning rates must be above 0 and grow, not go from {self.start_lr:g} to {self.end_lr:g}; "
                "give other values of --start-lr and --end-lr"
            )
        if self.num_iter < FEWEST_STEPS:
            raise UserError(f"a range test needs at least {FEWEST_STEPS} steps, not {self.num_iter}; raise --num-iter")
        if self.spacing not in ("exponential", "linear"):
            raise UserError(f"spacing must be exponential or linear, not {self.spacing!r}")

    def rate(self, number: int) -> float:
        """Return the rate of step ``number``, counted from 0.

        >>> [f"{RateRange(1e-3, 10.0, 11).rate(number):g}" for number in (0, 5, 10)]
        ['0.001', '0.1', '10']
        """
        part = number / (self.num_iter - 1)
        if self.spacing == "linear":
            return self.start_lr + part * (self.end_lr - self.start_lr)
        rate: float = self.start_lr * (self.end_lr / self.start_lr) ** part
        return rate


@dataclass
class Curve:
    """The loss of each step before it was taken, by the rate it was taken with; and when to stop."""

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    diverged: bool = False
    _average: float = field(default=0.0, repr=False)
    _best: float = field(default=math.inf, repr=False)

    def add(self, rate: float, loss: float) -> bool:
        """Record a step; return whether to continue.

        It is over where the loss, as a bias-corrected running average, is 4 times the best so far (for a negative best:
        as far above it), or where it isn't finite; such a loss is ignored.
        """
        if not math.isfinite(loss):
            self.diverged = True
            return False
        self.rates.append(rate)
        self.losses.append(float(loss))
        self._average = PAST * self._average + (1 - PAST) * loss
        smoothed = self._average / (1 - PAST ** len(self.losses))
        self._best = min(self._best, smoothed)
        self.diverged = bool(smoothed > self._best + 3 * abs(self._best))
        return not self.diverged

    @property
    def smoothed(self) -> list[float]:
        """The losses as means over a window of a few steps to both sides (a Gaussian's), cut off at the ends."""
        return self._smoothed_by(WINDOW)

    def suggestion(self, window: float = WINDOW) -> float | None:
        """The rate at which the smoothed loss falls fastest over the logarithm of the rate, before its lowest point.

        None if the loss never fell by more than its own noise, or where there are too few steps to say. ``window``
        is the standard deviation of the smoothing window, in steps.
        """
        losses = np.array(self._smoothed_by(window))
        if len(losses) < FEWEST_STEPS:
            return None
        until_lowest = slice(int(np.argmin(losses)) + 1)
        falling, rates = losses[until_lowest], np.array(self.rates)[until_lowest]
        before = np.array(self.losses)[until_lowest]
        noise = np.std(before - falling) + 1e-9 * abs(falling[-1])
        if (
            len(falling) < FEWEST_STEPS // 2
            or np.mean(before[: 1 + len(before) // 4]) - falling[-1] <= CLEAR_FALL * noise
        ):
            return None
        return float(rates[np.argmin(np.gradient(falling, np.log(rates)))])

    def _smoothed_by(self, window: float) -> list[float]:
        losses, numbers = np.array(self.losses), np.arange(len(self.losses))
        weights = np.exp(-0.5 * ((numbers[:, None] - numbers) / window) ** 2)
        return list(map(float, weights @ losses / weights.sum(1))) if len(losses) else []

    def as_json(self) -> dict[str, Any]:
        """Return the curve, its suggestion, and how sure that is."""
        curve = {"diverged": self.diverged, "lr": self.rates, "loss": self.losses, "smoothed": self.smoothed}
        return curve | asdict(assess_certainty(self))


OTHER_WINDOWS = (WINDOW / 2, 2 * WINDOW)
BARELY = 0.05  # of the whole fall: where it begins
MUCH_NOISE = 0.2  # of the whole fall
FAR_APART = 4.0  # times


@dataclass(frozen=True)
class Certainty:
    """The evidence for a suggestion and against it.

    ``alternatives`` are what the curve suggests with less and with more smoothing, and what its odd and even steps
    alone do; None if one of them finds no clear fall. ``suggestion`` is the curve's where all of them find one: of
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

    def lines(self) -> Iterator[str]:
        """Yield the evidence for the suggestion, a line each; doubts begin with ``warning``."""
        if self.falling is not None:
            yield f"the loss falls from {' to '.join(map(short_rate, self.falling))}"
        if self.between is not None:
            lowest, highest = map(short_rate, self.between)
            found = lowest if lowest == highest else f"{lowest} to {highest}"
            yield f"more and less smoothing, and every other step alone, suggest {found}"
        yield from (f"warning: {doubt}" for doubt in self.doubts)


def assess_certainty(curve: Curve) -> Certainty:
    """Return how sure the suggestion of a curve is; all is empty if there is none."""
    suggestion = curve.suggestion()
    if suggestion is None:
        return Certainty((), None, None, ())
    # Every other step has half the steps, and so half the window.
    halves = [Curve(curve.rates[first::2], curve.losses[first::2]) for first in (0, 1)]
    alternatives = [curve.suggestion(window) for window in OTHER_WINDOWS]
    alternatives += [half.suggestion(WINDOW / 2) for half in halves if len(half.losses) >= FEWEST_STEPS]
    sure = None if None in alternatives else suggestion
    # the rates from which the smoothed loss falls for good, and of its lowest point
    losses = np.array(curve.smoothed)
    lowest = int(np.argmin(losses))
    highest = float(losses[: lowest + 1].max())
    still_high = losses[: lowest + 1] >= highest - BARELY * (highest - losses[lowest])
    falling = curve.rates[int(np.flatnonzero(still_high)[-1])], curve.rates[lowest]
    fall = float(highest - losses[lowest])
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
    return Certainty(tuple(alternatives), sure, falling, tuple(doubts))
