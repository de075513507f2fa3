"""Curves of range tests, made of losses."""

from __future__ import annotations

from collections.abc import Iterable

from vaak.study.lr_range import Curve, RateRange


def curve_of(losses: Iterable[float], rates: RateRange | None = None) -> Curve:
    """The curve of these losses, as far as the test runs; ten steps to a factor of ten."""
    curve = Curve()
    for number, loss in enumerate(losses):
        if not curve.add(rates.rate(number) if rates else 10.0 ** (number / 10 - 5), loss):
            break
    return curve
