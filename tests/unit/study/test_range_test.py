"""The range test's rates, its stop, and what it suggests for curves whose answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_curves import curve_of
from quick_cases import mostly_slow
from vaak.core.errors import UserError
from vaak.report.charts import draw_range_test
from vaak.report.tables import short_rate
from vaak.study.lr_range import RateRange


@given(
    start=st.floats(1e-9, 1e-2),
    growth=st.floats(1.5, 1e8),
    num_iter=st.integers(10, 300),
    spacing=st.sampled_from(["exponential", "linear"]),
)
def test_rates_grow_from_the_first_to_the_last(start, growth, num_iter, spacing):
    rates = RateRange(start, start * growth, num_iter, spacing)
    found = [rates.rate(number) for number in range(num_iter)]
    assert found[0] == pytest.approx(start)
    assert found[-1] == pytest.approx(start * growth)
    steps = np.diff(np.log(found) if spacing == "exponential" else found)
    assert np.allclose(steps, steps[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"start_lr": 0.0}, "must be above 0 and grow"),
        ({"start_lr": 1.0}, "must be above 0 and grow"),
        ({"end_lr": math.inf}, "must be above 0 and grow"),
        ({"num_iter": 9}, "at least 10 steps, not 9"),
        ({"spacing": "square"}, "not 'square'"),
    ],
)
def test_what_is_no_range_is_refused(values, complaint):
    with pytest.raises(UserError, match=complaint):
        RateRange(**values)


@given(st.integers(20, 80), st.floats(0.0, 0.02), st.integers(0, 2**16))
def test_the_suggestion_is_where_a_slope_is_steepest(middle, noise, seed):
    """A loss that falls as a logistic function of the rate's logarithm is steepest in its middle."""
    draws = np.random.default_rng(seed)
    losses = [1 + 2 / (1 + math.exp((number - middle) / 4)) + noise * draws.normal() for number in range(100)]
    suggestion = curve_of(losses).suggestion()
    assert suggestion is not None
    assert abs(10 * (math.log10(suggestion) + 5) - middle) <= 3


def test_smoothing_has_no_lag_and_keeps_a_constant():
    assert curve_of([2.0] * 30).smoothed == pytest.approx([2.0] * 30)
    straight = curve_of([100.0 - number for number in range(60)]).smoothed
    assert straight[20:40] == pytest.approx([100.0 - number for number in range(20, 40)])


@given(st.floats(-1e6, 1e6), st.integers(10, 60))
def test_a_constant_and_a_rising_loss_suggest_nothing(level, steps):
    assert curve_of([level] * steps).suggestion() is None
    assert curve_of([level + abs(level) * number / 20 for number in range(20)]).suggestion() is None


def test_noise_alone_hardly_ever_suggests_anything():
    draws = np.random.default_rng(0)
    found = [curve_of(3 + 0.1 * draws.normal(size=100)).suggestion() for _ in range(200)]
    assert sum(rate is not None for rate in found) <= 20


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_it_and_is_left_out(bad):
    curve = curve_of([1.0, 0.9, bad, 0.5])
    assert (curve.losses, curve.diverged) == ([1.0, 0.9], True)
    json.loads(json.dumps(curve.as_json(), allow_nan=False))


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=60))
def test_it_ends_where_the_average_is_far_above_the_best(losses):
    curve = curve_of(losses)
    average, best = 0.0, math.inf
    for number, loss in enumerate(curve.losses):
        average = 0.9 * average + 0.1 * loss
        corrected = average / (1 - 0.9 ** (number + 1))
        best = min(best, corrected)
        ends = corrected > best + 3 * abs(best)
        assert ends == (curve.diverged and number == len(curve.losses) - 1)
    assert curve.diverged == (len(curve.losses) < len(losses)) or len(curve.losses) == len(losses)


def test_a_negative_loss_may_rise_a_little():
    assert not curve_of([-1.0, -1.2, -1.1, -1.0]).diverged
    assert curve_of([-1.0, -1.2, 30.0]).diverged


@pytest.mark.parametrize("losses", mostly_slow([[], [1.0], [5.0 - number / 30 for number in range(60)]], []))
def test_every_curve_can_be_drawn(losses, tmp_path):
    draw_range_test(curve_of(losses).as_json(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'vaak\[plot\]'"):
        draw_range_test(curve_of([1.0]).as_json())


def test_a_picture_that_cannot_be_written_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match="can't be written"):
        draw_range_test(curve_of([1.0]).as_json(), tmp_path / "nowhere" / "curve.png")


@given(st.floats(1e-9, 1e3))
def test_a_rate_is_written_in_two_digits(rate):
    assert float(short_rate(rate)) == pytest.approx(rate, rel=0.051)
