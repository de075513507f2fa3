"""Functions of the step alone: a factor on the peak learning rate, and which parameters are trained.

Steps count from 1: ``factor(n)`` is for the n-th update of ``total``::

    1 ┤     ╭──╮             up to ``warmup``  n / warmup; the peak is at step ``warmup`` (without warm-up at step 1)
      │   ╱     ╲            then              falls so that it would be at ``min_lr`` at step ``total + 1``,
      │  ╱       ╲                             since an update at a rate of zero is a wasted one
      │ ╱         ╲          after the end     stays there, where a run is prolonged
      └─┬───┬──────┬── n
        1 warmup  total

Only ``Plateau`` has a state. A frozen parameter has no gradient, so its optimizer leaves it alone: no update, no decay,
no state. One that is trained later gets its state at its first update, so that Adam's correction counts from there;
one that is never trained belongs to no optimizer.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vaak.config.components import check_options, resolve_component
from vaak.config.optimization import SchedulerConfig
from vaak.config.training import FreezeConfig
from vaak.core.errors import UserError
from vaak.core.metrics import improves
from vaak.core.names import list_names, nearest_name, require_known

Schedule = Callable[[int], float]


def make_schedule(config: SchedulerConfig, total_steps: int, peak_lr: float, folder: Path = Path()) -> Schedule:
    """Return the factor on the peak rate for every step from 1 on; ``folder`` is where a ``./file.py`` is looked for.

    Raises UserError if the warm-up is longer than training, ``min_lr`` is above the peak, or a user's schedule
    doesn't fit.
    """
    warmup = warmup_steps(config, total_steps)
    if config.is_users(config.type):
        users = UsersSchedule(config, total_steps, folder)
        # Vaak's warm-up multiplies a user's schedule, which needs no warm-up itself
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
    """Return the part of a schedule from its peak on."""
    if config.type == "cosine_restarts":
        first_cycle = config.first_cycle_steps or max(1, total_steps // 10)
        return lambda step: _cosine(_part_of_cycle(step - peak_step, first_cycle, config.cycle_growth), floor)
    if config.type == "inverse_sqrt":
        return lambda step: math.sqrt(peak_step / step)
    if config.type in ("constant", "plateau"):
        return lambda step: 1.0
    # the floor is reached one step after the last: at a rate of 0 that step would be for nothing
    if config.type == "cosine":
        return lambda step: _cosine(_part(step, peak_step, total_steps + 1), floor)
    power, start = 1.0, peak_step
    if config.type == "polynomial":
        power = config.power
    if config.type == "wsd":
        start = max(peak_step, total_steps - round(config.decay_ratio * total_steps))
    return lambda step: floor + (1 - floor) * float((1 - _part(step, start, total_steps + 1)) ** power)


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


class UsersSchedule:
    """The factor of each step, checked: a number of 0 or more, and the same whenever it is asked for."""

    def __init__(self, config: SchedulerConfig, total_steps: int, folder: Path) -> None:
        """Raises UserError if the schedule can't be called, doesn't have an option, or remembers its calls."""
        self._key, self._name, self._total_steps = config.key, config.type, total_steps
        found: Any = resolve_component(self._key, self._name, folder)
        if not callable(found):
            raise UserError(f"{self._key}: {self._name} is neither a class nor a function")
        self._schedule: Callable[[int, int], Any]
        if not isinstance(found, type):
            step_and_total = list(inspect.signature(found).parameters)[:2]
            check_options(self._key, self._name, found, config.options, reserved=step_and_total)
            self._schedule = functools.partial(found, **config.options)
        else:
            check_options(self._key, self._name, found, config.options)
            try:
                self._schedule = found(**config.options)
            except (TypeError, ValueError) as error:
                raise UserError(f"{self._key}: {self._name} can't be created: {error}") from error
        try:
            inspect.signature(self._schedule).bind(1, total_steps)
        except TypeError as error:
            raise UserError(f"{self._key}: {self._name} can't be called with (step, total_steps): {error}") from error
        # A schedule that fails should fail before training, not after hours of it.
        ends = [self(1), self(max(total_steps, 1)), self(1)]
        if ends[0] != ends[2]:
            raise UserError(
                f"{self._key}: {self._name} gives {ends[0]} and then {ends[2]} for step 1; the factor must depend on "
                "the step alone, or a resumed run would have other rates"
            )

    def __call__(self, step: int) -> float:
        """Return the factor. Raises UserError if it isn't a number, or below 0."""
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


class Plateau:
    """``factor`` is for the learning rate; it falls after more than ``patience`` evaluations without improvement."""

    def __init__(self, config: SchedulerConfig, peak_lr: float) -> None:
        self._config = config
        self._floor = config.min_lr / peak_lr
        self._best: float | None = None
        self._without_improvement = 0
        self.factor = 1.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take note of an evaluation. Raises UserError if the metric watched isn't among its results."""
        if self._config.metric not in metrics:
            raise UserError(
                f"training.scheduler.metric: no metric {self._config.metric}; "
                f"the evaluation gives {', '.join(sorted(metrics))}"
            )
        value = float(metrics[self._config.metric])
        if improves(value, self._best, self._config.mode):
            self._best, self._without_improvement = value, 0
            return
        self._without_improvement += 1
        if self._without_improvement > self._config.patience:
            self.factor = max(self.factor * self._config.factor, self._floor)
            self._without_improvement = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers, as JSON."""
        return {"best": self._best, "without_improvement": self._without_improvement, "factor": self.factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state_dict``; of a run that had another schedule there is nothing to resume."""
        if state:
            self._best, self.factor = state["best"], state["factor"]
            self._without_improvement = state["without_improvement"]


log = logging.getLogger("vaak")


class Freezing:
    """Freezes a model's parameters by rules and unfreezes them when due; the first matching rule wins.

    The constructor freezes what is never unfrozen; ``apply`` freezes the rest for as long as due. Build the optimizers
    in between, of the parameters that then need a gradient: those that are ever trained. What the model itself froze
    stays frozen. A tied parameter is matched by any of its names.

    Raises UserError if a rule isn't a regular expression or matches nothing, or nothing is trained at first.
    """

    def __init__(self, model: nn.Module, rules: Sequence[FreezeConfig]) -> None:
        self.rules = tuple(rules)
        names = _names(model)
        every = [name for own in names.values() for name in own]
        patterns = [compile_pattern(rule.match, every, "training.freeze") for rule in self.rules]
        self._held: list[list[nn.Parameter]] = [[] for _ in self.rules]
        free = not self.rules
        for parameter, own_names in names.items():
            if not parameter.requires_grad:
                continue
            matching = (number for number, pattern in enumerate(patterns) if any(map(pattern.search, own_names)))
            # the first rule that matches decides, so an exception stands before its general rule
            number = next(matching, None)
            if number is None:
                free = True
            else:
                self._held[number].append(parameter)
        if not free:
            raise UserError("training.freeze: nothing is trained at the first step: the rules freeze every parameter")
        self._holding = [rule.until_step is None and rule.until_epoch is None for rule in self.rules]
        self._set(self._holding)

    def apply(self, step: int, epoch: int) -> bool:
        """Freeze and unfreeze for the step to come; return whether anything changed.

        Steps count from 1, epochs from 0: ``epoch`` is the one that the step belongs to.
        """
        # A rule with both limits freezes until the first of them.
        holding = [
            not (rule.until_step is not None and step > rule.until_step)
            and not (rule.until_epoch is not None and epoch >= rule.until_epoch)
            for rule in self.rules
        ]
        if holding == self._holding:
            return False
        self._set(holding)
        held = (parameters for parameters, holds in zip(self._held, holding, strict=True) if holds)
        frozen = sum(parameter.numel() for parameters in held for parameter in parameters)
        log.info("step %d: training.freeze freezes %s parameters", step, f"{frozen:,}")
        return True

    def _set(self, holding: list[bool]) -> None:
        self._holding = holding
        for parameters, holds in zip(self._held, holding, strict=True):
            for parameter in parameters:
                parameter.requires_grad_(not holds)


def freeze_parameters(model: nn.Module, names: Iterable[str]) -> None:
    """Stop training these parameters: each name is a parameter's, or that of a module that holds some.

    Call it before the optimizer is built, or the trainer. Raises UserError, with nothing changed, where a name is
    unknown.
    """
    _require_gradients(model, names, False)


def unfreeze_parameters(model: nn.Module, names: Iterable[str]) -> None:
    """Train these parameters again; names as in ``freeze_parameters``."""
    _require_gradients(model, names, True)


def _require_gradients(model: nn.Module, names: Iterable[str], required: bool) -> None:
    if isinstance(names, str):
        names = [names]
    known = _names(model)
    wanted = list(names)
    holding = [name for own in known.values() for name in own]
    parts = list_names(path for path, _ in model.named_children())
    modules = [path for path, module in model.named_modules() if path and next(module.parameters(), None) is not None]
    what = "the model has no parameter or module"
    require_known(wanted, [*modules, *holding], what, remedy=f"it has {parts}", error=UserError)
    for parameter, own in known.items():
        if any(one == name or one.startswith(f"{name}.") for one in own for name in wanted):
            parameter.requires_grad_(required)


def _names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Return every parameter with its names, of which a tied one has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def compile_pattern(match: str, names: Iterable[str], key: str, what: str = "parameter") -> re.Pattern[str]:
    """The regular expression ``match``. Raises UserError, naming ``key``, where it is invalid or matches no name."""
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise UserError(f"{key}: {match!r} is not a valid regular expression: {error}") from error
    every = list(names)
    if not any(map(pattern.search, every)):
        some = ", ".join(every[:: max(1, len(every) // 5)][:5])
        raise UserError(f"{key}: {match!r} matches no {what}; some are {some}{nearest_name(match, every)}")
    return pattern
