"""A user's schedule: a class or a function that gives the factor on the peak rate, checked."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from toy import StopAt, same_bits, toy_trainer, weights
from vaak.config.base import REGISTERED
from vaak.config.components import register_schedule
from vaak.config.optimization import SchedulerConfig
from vaak.core.errors import UserError
from vaak.engine.optim.schedules import make_schedule


class Steps:
    """Falls to a fraction of itself every N steps."""

    def __init__(self, every: int = 3, factor: float = 0.5) -> None:
        if every < 1:
            raise ValueError("every must be 1 or more")
        self.every, self.factor = every, factor

    def __call__(self, step: int, total_steps: int) -> float:
        return self.factor ** ((step - 1) // self.every)


def ramp(step: int, total_steps: int, end: float = 0.0) -> float:
    return 1 - (1 - end) * (step - 1) / total_steps


def broken(step: int, total_steps: int) -> float:
    return math.nan if step == 4 else 1.0


def negative(step: int, total_steps: int) -> float:
    return -1.0


def words(step: int, total_steps: int) -> str:
    return "fast"


def of_one(step: int) -> float:
    return 1.0


class Remembering:
    def __init__(self) -> None:
        self.calls = itertools.count()

    def __call__(self, step: int, total_steps: int) -> float:
        return float(next(self.calls))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED, "training.scheduler", {"number": 3})
    for schedule in (Steps, ramp, broken, negative, words, of_one, Remembering):
        register_schedule(schedule.__name__.lower(), schedule)


def factors(total: int, **options: object) -> list[float]:
    schedule = make_schedule(SchedulerConfig.model_validate(options), total, 1.0)
    return [schedule(step) for step in range(1, total + 1)]


def test_a_class_and_a_function():
    assert factors(6, type="steps", options={"every": 2}) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert factors(4, type="ramp", options={"end": 0.5}) == [1, 0.875, 0.75, 0.625]


def test_a_warm_up_multiplies_it():
    assert factors(6, type="steps", warmup_steps=4) == [0.25, 0.5, 0.75, 0.5, 0.5, 0.5]


def test_one_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("def half(step, total_steps):\n    return 0.5\n")
    assert make_schedule(SchedulerConfig(type="./mine.py:half"), 5, 1.0, tmp_path)(3) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "negative"}, "negative gives -1.0 at step 1 of 9; expected a number of 0 or more"),
        ({"type": "words"}, "words gives fast at step 1 of 9; expected a number"),
        ({"type": "of_one"}, r"of_one can't be called with \(step, total_steps\)"),
        ({"type": "remembering"}, "remembering gives 0.0 and then 2.0 for step 1; the factor must depend on the step"),
        ({"type": "number"}, "number is neither a class nor a function"),
        ({"type": "steps", "options": {"evry": 2}}, "steps has no option evry; its options are every, factor; did"),
        ({"type": "steps", "options": {"every": 0}}, "steps can't be created: every must be 1 or more"),
        ({"type": "ramp", "options": {"step": 1}}, "ramp has no option step; its options are end"),
    ],
)
def test_mistakes_are_one_line(options, message):
    with pytest.raises(UserError, match=f"^training.scheduler: {message}") as error:
        make_schedule(SchedulerConfig(**options), 9, 1.0)
    assert "\n" not in str(error.value)


def test_a_rate_that_is_not_a_number_ends_the_run_at_its_step(tmp_path):
    trainer = toy_trainer(tmp_path, scheduler={"type": "broken"})
    with pytest.raises(UserError, match=r"broken gives nan at step 4 of 8"):
        trainer.fit()
    assert trainer.position.step == 3


def test_a_resume_changes_no_bit(tmp_path):
    options: dict[str, Any] = {"scheduler": {"type": "steps", "options": {"every": 2}}, "checkpoint": {"interval": 1}}
    whole = toy_trainer(tmp_path / "whole", **options)
    whole.fit()
    toy_trainer(tmp_path / "stopped", StopAt(5), **options).fit()
    resumed = toy_trainer(tmp_path / "stopped", **options)
    assert resumed.resume("auto")
    resumed.fit()
    assert resumed.learning_rates() == whole.learning_rates() == [0.01 * 0.125] * len(whole.learning_rates())
    assert same_bits(weights(resumed), weights(whole))
