"""Early stopping against a table made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toy import ToyTask, toy_trainer
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.core.errors import UserError

NAN = float("nan")


def stopped_after(values: list[float], callback: EarlyStoppingCallback, scheduled: bool = True) -> int | None:
    """The number of the evaluation after which it asks to stop."""
    reasons: list[str] = []
    trainer = SimpleNamespace(scheduled_evaluation=scheduled, request_stop=reasons.append)
    for number, value in enumerate(values, 1):
        callback.on_evaluate_end(trainer, {callback.metric: value})
        if reasons:
            return number
    return None


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([3, 2, 1, 0], {"patience": 1}, None),
        ([3, 4], {"patience": 1}, 2),
        ([3, 3], {"patience": 1}, 2),  # equal is not an improvement
        ([3, 4, 2, 3, 3], {"patience": 2}, 5),  # counted from the last improvement
        ([3, 2.95, 2.9, 2.5], {"patience": 2, "min_delta": 0.2}, 3),
        ([3, 2.9, 2.7, 2.6], {"patience": 2, "min_delta": 0.2}, None),  # from the best, not from the one before
        ([1, 2, 1.5, 1.5], {"patience": 2, "mode": "max"}, 4),
        ([NAN, NAN], {"patience": 2}, 2),
        ([1, NAN, 0.5, NAN, NAN], {"patience": 2}, 5),
        ([3, 4], {"patience": 0}, 2),
        ([3, 2], {"patience": 0}, None),
    ],
)
def test_patience(values: list[float], options: dict[str, Any], expected: int | None):
    assert stopped_after(values, EarlyStoppingCallback(**options)) == expected


def test_evaluations_asked_for_do_not_count():
    assert stopped_after([1, 2, 3, 4], EarlyStoppingCallback(patience=1), scheduled=False) is None


def test_it_goes_on_after_a_round_trip():
    values = [3.0, 4.0, 2.0, 3.0, 3.0, 9.0]
    for cut in range(1, 5):
        first, second = EarlyStoppingCallback(patience=2), EarlyStoppingCallback(patience=2)
        assert stopped_after(values[:cut], first) is None
        second.load_state_dict(first.state_dict())
        assert stopped_after(values[cut:], second) == 5 - cut


def test_a_metric_that_is_not_there_is_an_error_with_those_that_are():
    with pytest.raises(UserError, match="early stopping watches bleu, but evaluations give val_loss"):
        EarlyStoppingCallback(metric="bleu").on_evaluate_end(
            SimpleNamespace(scheduled_evaluation=True), {"val_loss": 1.0}
        )


def stopping_trainer(folder: Path, patience: int) -> Any:
    task = ToyTask(scripted=map(float, [2, 1, 3, 4, 5, 6, 7, 8]))
    training: dict[str, Any] = {"validation": {"interval": 1}, "checkpoint": {"interval": 1}}
    return toy_trainer(folder, EarlyStoppingCallback(patience), task=task, **training)


def test_the_run_ends_saved_and_a_resume_ends_at_once(tmp_path: Path):
    trainer = stopping_trainer(tmp_path, 2)
    assert trainer.fit().startswith("early stopping: val_loss has not improved on 1.0 for 2 evaluations")
    assert trainer.position.step == 4
    resumed = stopping_trainer(tmp_path, 2)
    assert resumed.resume("auto")
    assert resumed.fit().startswith("early stopping")
    assert resumed.position.step == 4


def test_a_larger_patience_lets_a_stopped_run_go_on(tmp_path: Path):
    stopping_trainer(tmp_path, 2).fit()
    resumed = stopping_trainer(tmp_path, 99)
    assert resumed.resume("auto")
    assert resumed.fit() == "finished"
