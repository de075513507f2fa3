"""A user's schedule: a factor on the peak rate as a pure function of the step.

It is a class, or a function, called as ``schedule(step, total_steps)`` with steps from 1; a function gets its options
with each call, a class when it is made. A warm-up of ``training.scheduler`` multiplies it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vaak.config.components import check_options, resolve_component
from vaak.config.optimization import SchedulerConfig
from vaak.core.errors import UserError


class UsersSchedule:
    """The factor of each step, checked: a number of 0 or more, and the same whenever it is asked for."""

    def __init__(self, config: SchedulerConfig, total_steps: int, folder: Path) -> None:
        """Raises UserError where the schedule can't be called, doesn't have an option, or remembers its calls."""
        self._key, self._name, self._total_steps = config.key, config.type, total_steps
        self._schedule = self._made(resolve_component(config.key, config.type, folder), config.options)
        ends = [self(1), self(max(total_steps, 1)), self(1)]
        if ends[0] != ends[2]:
            raise UserError(
                f"{self._key}: {self._name} gives {ends[0]} and then {ends[2]} for step 1; the factor must depend on "
                "the step alone, or a resumed run would have other rates"
            )

    def __call__(self, step: int) -> float:
        """The factor. Raises UserError where it isn't a number, or below 0."""
        given = self._schedule(step, self._total_steps)
        try:
            factor = float(given)
        except (TypeError, ValueError):
            factor = math.nan
        if not 0 <= factor < math.inf:
            raise UserError(
                f"{self._key}: {self._name} gives {given} at step {step} of {self._total_steps}; expected a number of "
                "0 or more, by which the peak rate is multiplied"
            )
        return factor

    def _made(self, found: Any, options: dict[str, Any]) -> Callable[[int, int], Any]:
        if not callable(found):
            raise UserError(f"{self._key}: {self._name} is neither a class nor a function")
        if not isinstance(found, type):
            check_options(self._key, self._name, found, options, reserved=_first_two(found))
            schedule = functools.partial(found, **options)
        else:
            check_options(self._key, self._name, found, options)
            try:
                schedule = found(**options)
            except (TypeError, ValueError) as error:
                raise UserError(f"{self._key}: {self._name} can't be created: {error}") from error
        try:
            inspect.signature(schedule).bind(1, self._total_steps)
        except TypeError as error:
            raise UserError(f"{self._key}: {self._name} can't be called with (step, total_steps): {error}") from error
        return schedule


def _first_two(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that are the step and the number of steps."""
    return list(inspect.signature(function).parameters)[:2]
