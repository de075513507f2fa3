"""Smoothed losses: the formula, what never gets in, and the same bits after a resume."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.callbacks.step_log import Smoothed

losses = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(st.floats(0.0, 0.999), losses)
def test_it_is_the_weighted_mean_whose_weights_fall_by_the_decay(decay: float, values: list[float]):
    smoothed = Smoothed(decay)
    for value in values:
        smoothed.add("loss", value)
    weights = [decay**age for age in reversed(range(len(values)))]
    expected = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
    assert smoothed.means()["loss"] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(losses)
def test_a_loss_that_stays_is_its_own_average_from_the_first_step_on(values: list[float]):
    smoothed = Smoothed(0.98)
    for _ in values:
        smoothed.add("loss", values[0])
        assert smoothed.means()["loss"] == pytest.approx(values[0], rel=1e-9)


@given(losses, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_no_number_leaves_no_trace(values: list[float], odd: float):
    clean, dirty = Smoothed(0.9), Smoothed(0.9)
    for value in values:
        clean.add("loss", value)
        dirty.add("loss", value)
        dirty.add("loss", odd)
    assert clean.sums == dirty.sums
