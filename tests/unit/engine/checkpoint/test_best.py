"""The best value and its step; a number that is none is never the best."""

from __future__ import annotations

from typing import Any

import pytest

from vaak.config.training import CheckpointConfig
from vaak.core.errors import UserError
from vaak.core.metrics import improves
from vaak.engine.state import Best

NAN = float("nan")


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("min", [3, 2, 2, 4], (2, 2)),  # the first of equals
        ("max", [3, 2, 5, 5], (5, 3)),
        ("min", [NAN, 3, NAN], (3, 2)),
        ("min", [NAN, NAN], (None, None)),
        ("max", [float("-inf"), 0], (0, 2)),
    ],
)
def test_the_best_is_the_first_of_the_best(mode: Any, values: list[float], expected: tuple[float | None, int | None]):
    best = Best(CheckpointConfig(metric="score", mode=mode))
    for step, value in enumerate(values, 1):
        best.observe({"score": value, "other": 0.0}, step)
    assert (best.value, best.step) == expected
    other = Best(CheckpointConfig(metric="score", mode=mode))
    other.load_state_dict(best.state_dict())
    assert (other.value, other.step) == expected


def test_improvement_is_more_than_the_least_that_counts():
    assert not improves(1.0, 1.5, "min", 0.5)
    assert improves(0.99, 1.5, "min", 0.5)
    assert not improves(2.0, 1.5, "max", 0.5)


def test_another_metric_begins_anew():
    best, other = Best(CheckpointConfig(metric="val_loss")), Best(CheckpointConfig(metric="val_accuracy", mode="max"))
    best.observe({"val_loss": 1.0}, 7)
    other.load_state_dict(best.state_dict())
    assert other.value is None


def test_a_metric_that_is_not_there_is_an_error_with_those_that_are():
    with pytest.raises(UserError, match="metric is val_wer, but evaluations give val_loss, val_bits"):
        Best(CheckpointConfig(metric="val_wer")).observe({"val_loss": 1.0, "val_bits": 1.0}, 1)
