"""How sure a suggestion is: a clean curve leaves no doubt, and each kind of bad curve is named with its remedy."""

from __future__ import annotations

import json
import math

import numpy as np

from lr_curves import curve_of
from vaak.report.tables import learning_rate_lines
from vaak.study.lr_finder import write_curve
from vaak.study.lr_range import assess_certainty


def falling(steps: int = 100, noise: float = 0.0, middle: int = 50) -> list[float]:
    """A loss that falls as a logistic function of the step."""
    draws = np.random.default_rng(0)
    return [1 + 2 / (1 + math.exp((number - middle) / 4)) + noise * draws.normal() for number in range(steps)]


def with_an_explosion(losses: list[float]) -> list[float]:
    return [*losses, *(losses[-1] * 1.5**number for number in range(1, 30))]


def test_a_clean_curve_leaves_no_doubt():
    curve = curve_of(with_an_explosion(falling()))
    certainty = assess_certainty(curve)
    assert certainty.doubts == ()
    assert len(certainty.alternatives) == 4
    assert certainty.between is not None
    assert certainty.between[1] / certainty.between[0] < 2
    suggestion = curve.suggestion()
    assert certainty.falling is not None
    assert suggestion is not None
    assert 10 ** ((50 - 14) / 10 - 5) < certainty.falling[0] < suggestion < certainty.falling[1]


def test_noise_and_an_early_end_are_doubts():
    noisy = assess_certainty(curve_of(with_an_explosion(falling(noise=0.6))))
    assert any("noisy" in doubt and "--num-iter" in doubt for doubt in noisy.doubts)
    (short,) = assess_certainty(curve_of(falling(steps=52))).doubts
    assert short == "the loss still falls at the end of the range; raise --end-lr"


def test_alternatives_far_apart_are_a_doubt():
    """A sharp fall and a long one: little smoothing takes the first, much the second."""
    losses = [5.0] * 20 + [4.0] * 40 + [4 - 0.08 * number for number in range(30)] + [1.6] * 10
    certainty = assess_certainty(curve_of(with_an_explosion(losses)))
    assert any("times apart" in doubt for doubt in certainty.doubts), certainty


def test_no_suggestion_has_nothing_to_be_sure_of():
    certainty = assess_certainty(curve_of([1.0] * 30))
    assert certainty.suggestion is None
    assert (certainty.alternatives, certainty.falling, certainty.doubts) == ((), None, ())
    assert list(certainty.lines()) == []


def test_what_is_seen_in_noise_is_no_suggestion():
    draws = np.random.default_rng(0)
    curves = [curve_of(3 + 0.1 * draws.normal(size=100)) for _ in range(300)]
    seen = [curve for curve in curves if curve.suggestion() is not None]
    assert len(seen) > 5  # single looks are fooled
    assert sum(assess_certainty(curve).suggestion is not None for curve in seen) <= 1  # of 300
    slopes = [curve_of(with_an_explosion(falling(noise=0.2, middle=middle))) for middle in range(30, 70)]
    assert all(assess_certainty(curve).suggestion == curve.suggestion() is not None for curve in slopes)


def test_the_table_has_every_point_and_marks_the_suggestion():
    curve = curve_of(falling())
    lines = list(learning_rate_lines(curve.as_json()))
    assert len(lines) == 1 + len(curve.losses)
    assert [float(line.split()[1]) for line in lines[1:]] == [float(f"{rate:.2e}") for rate in curve.rates]
    (marked,) = [line for line in lines if "suggestion" in line]
    assert float(marked.split()[1]) == float(f"{curve.suggestion():.2e}")
    assert lines[1].count("#") > lines[-1].count("#")
    assert max(map(len, lines)) < 80
    assert list(learning_rate_lines(curve_of([]).as_json())) == []


def test_the_file_says_how_sure_it_is(tmp_path):
    write_curve(curve_of(falling(steps=52)), tmp_path)
    content = json.loads((tmp_path / "lr-range.json").read_text())
    assert len(content["alternatives"]) == 4
    assert content["doubts"] == ["the loss still falls at the end of the range; raise --end-lr"]
    assert content["falling"][0] < content["falling"][1]
