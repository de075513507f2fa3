"""The learning rate as a function of the step: a factor on the peak rate, with nothing to save.

Steps count from 1: ``factor(n)`` is for the n-th update of ``total``::

    1 ┤     ╭──╮             up to ``warmup``  n / warmup; the peak is at step ``warmup`` (without warm-up at step 1)
      │   ╱     ╲            then              falls so that it would be at ``min_lr`` at step ``total + 1``,
      │  ╱       ╲                             since an update at a rate of zero is a wasted one
      │ ╱         ╲          after the end     stays there, where a run is prolonged
      └─┬───┬──────┬── n
        1 warmup  total
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from vaak.config.optimization import SchedulerConfig
from vaak.core.errors import UserError
from vaak.engine.optim.users_schedule import UsersSchedule

Schedule = Callable[[int], float]


def make_schedule(config: SchedulerConfig, total_steps: int, peak_lr: float, folder: Path = Path()) -> Schedule:
    """The factor on the peak rate for every step from 1 on; ``folder`` is where a ``./file.py`` is looked for.

    Raises UserError where the warm-up is longer than training, ``min_lr`` is above the peak, or a user's schedule
    doesn't fit.
    """
    warmup = warmup_steps(config, total_steps)
    if config.is_users(config.type):
        users = UsersSchedule(config, total_steps, folder)
        return lambda step: min(1.0, step / max(warmup, 1)) * users(step)
    if config.min_lr > peak_lr:
        raise UserError(f"training.scheduler.min_lr ({config.min_lr}) is above training.optimizer.lr ({peak_lr})")
    floor = config.min_lr / peak_lr
    if config.type == "one_cycle":
        return _one_cycle(warmup or config.peak_at * total_steps, total_steps, 1 / config.initial_div, floor)
    after = _after_warmup(config, total_steps, max(warmup, 1), floor)

    def factor(step: int) -> float:
        return step / warmup if step < warmup else after(step)

    return factor


def warmup_steps(config: SchedulerConfig, total_steps: int) -> int:
    """Steps of warm-up; a ratio is rounded to the nearest step. Raises UserError for more than training has."""
    steps = config.warmup_steps if config.warmup_ratio is None else round(config.warmup_ratio * total_steps)
    if steps > total_steps and config.long_warmup == "shorten":
        return total_steps // 10
    if steps > total_steps:
        raise UserError(
            f"training.scheduler.warmup_steps ({steps}) is more than the {total_steps} steps of training; "
            "train longer or warm up for fewer steps"
        )
    return steps


def _after_warmup(config: SchedulerConfig, total_steps: int, peak_step: int, floor: float) -> Schedule:
    """The part of a schedule from its peak on."""
    if config.type == "cosine_restarts":
        first_cycle = config.first_cycle_steps or max(1, total_steps // 10)
        return lambda step: _cosine(_part_of_cycle(step - peak_step, first_cycle, config.cycle_growth), floor)
    if config.type == "inverse_sqrt":
        return lambda step: math.sqrt(peak_step / step)
    if config.type in ("constant", "plateau"):
        return lambda step: 1.0
    if config.type == "cosine":
        return lambda step: _cosine(_part(step, peak_step, total_steps + 1), floor)
    power, start = 1.0, peak_step
    if config.type == "polynomial":
        power = config.power
    if config.type == "wsd":
        start = max(peak_step, total_steps - round(config.decay_ratio * total_steps))
    return lambda step: _power(_part(step, start, total_steps + 1), power, floor)


def _one_cycle(peak_step: float, total_steps: int, initial: float, floor: float) -> Schedule:
    """Up from ``initial`` and down to ``floor``, both by half a cosine; a warm-up, where given, is the way up.

    Source: Smith and Topin 2018, "Super-Convergence", with cosines as in torch's OneCycleLR.
    """

    def factor(step: int) -> float:
        if step < peak_step:
            return _cosine(1 - _part(step, 1, peak_step), initial)
        return _cosine(_part(step, peak_step, total_steps + 1), floor)

    return factor


def _part(step: int, start: float, end: float) -> float:
    """How much of the way from ``start`` to ``end`` is done, from 0 to 1."""
    return min(max((step - start) / (end - start), 0.0), 1.0)


def _power(part: float, power: float, floor: float) -> float:
    return floor + (1 - floor) * float((1 - part) ** power)


def _cosine(part: float, floor: float) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * part))


def _part_of_cycle(steps_since_peak: int, first_cycle: int, growth: int) -> float:
    """How much of its cycle is done (Loshchilov and Hutter 2017, SGDR): cycles grow by ``growth``."""
    if growth == 1:
        return steps_since_peak % first_cycle / first_cycle
    length = first_cycle
    while steps_since_peak >= length:
        steps_since_peak -= length
        length *= growth
    return steps_since_peak / length
