"""Which parameters are trained, as a function of the place in the run; and freezing by name, by hand.

A frozen parameter has no gradient, so its optimizer leaves it alone: no update, no decay, no state. One that is trained
later belongs to its optimizer from the beginning and gets its state at its first update, so that Adam's correction
counts from there; one that is never trained belongs to none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from torch import nn

from vaak.config.components import did_you_mean
from vaak.config.training import FreezeConfig
from vaak.core.errors import UserError

log = logging.getLogger("vaak")


class Freezing:
    """Freezes a model's parameters by rules and unfreezes them when due; the first matching rule wins.

    The constructor freezes what is never unfrozen; ``apply`` freezes the rest for as long as due. Build the optimizers
    in between, of the parameters that then need a gradient: those that are ever trained. What the model itself froze
    stays frozen. A tied parameter is matched by any of its names.

    Raises UserError where a rule isn't a regular expression or matches nothing, or nothing is trained at first.
    """

    def __init__(self, model: nn.Module, rules: Sequence[FreezeConfig]) -> None:
        self.rules = tuple(rules)
        names = _names(model)
        every = [name for own in names.values() for name in own]
        patterns = [pattern_of(rule.match, every, "training.freeze") for rule in self.rules]
        self._held: list[list[nn.Parameter]] = [[] for _ in self.rules]
        free = not self.rules
        for parameter, own_names in names.items():
            if not parameter.requires_grad:
                continue
            matching = (number for number, pattern in enumerate(patterns) if any(map(pattern.search, own_names)))
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
        holding = [_holds(rule, step, epoch) for rule in self.rules]
        if holding == self._holding:
            return False
        self._set(holding)
        frozen = sum(parameter.numel() for parameter in self._frozen())
        log.info("step %d: training.freeze freezes %s parameters", step, f"{frozen:,}")
        return True

    def _set(self, holding: list[bool]) -> None:
        self._holding = holding
        for parameters, holds in zip(self._held, holding, strict=True):
            for parameter in parameters:
                parameter.requires_grad_(not holds)

    def _frozen(self) -> Iterable[nn.Parameter]:
        held = zip(self._held, self._holding, strict=True)
        return (parameter for parameters, holds in held if holds for parameter in parameters)


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
    chosen: list[nn.Parameter] = []
    for name in names:
        below = [p for p, own in known.items() if any(n == name or n.startswith(f"{name}.") for n in own)]
        if not below:
            modules = [path for path, _ in model.named_modules() if path]
            hint = did_you_mean(name, [*modules, *(n for own in known.values() for n in own)])
            parts = ", ".join(path for path, _ in model.named_children())
            raise UserError(f"the model has no parameter or module {name!r}{hint or f'; it has {parts}'}")
        chosen += below
    for parameter in chosen:
        parameter.requires_grad_(required)


def _names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every parameter with its names, of which a tied one has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def pattern_of(match: str, names: Iterable[str], key: str) -> re.Pattern[str]:
    """The regular expression ``match``. Raises UserError, naming ``key``, where it is invalid or matches no name."""
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise UserError(f"{key}: {match!r} is not a valid regular expression: {error}") from error
    every = list(names)
    if not any(map(pattern.search, every)):
        some = ", ".join(every[:: max(1, len(every) // 5)][:5])
        raise UserError(f"{key}: {match!r} matches no parameter; some are {some}{did_you_mean(match, every)}")
    return pattern


def _holds(rule: FreezeConfig, step: int, epoch: int) -> bool:
    """Whether a rule freezes in a step; with both limits, until the first of them."""
    over = rule.until_step is not None and step > rule.until_step
    return not (over or (rule.until_epoch is not None and epoch >= rule.until_epoch))
