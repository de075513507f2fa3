"""What is minimised: a module by name, called on the valid targets, and its result as a sum with its unit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.catalog import LOSSES
from vaak.config.components import did_you_mean, resolve_class
from vaak.config.training import LossConfig
from vaak.core.batch import Term
from vaak.core.errors import UserError
from vaak.engine.objective.cross_entropy import IGNORED


class LossRegistry:
    """Losses that users of the library add under a short name."""

    _registered: dict[str, type[nn.Module]] = {}  # noqa: RUF012 (one registry, that is its point)

    @classmethod
    def register(cls, name: str, loss: type[nn.Module]) -> None:
        """Let ``training.loss.main: name`` stand for a module with ``forward(outputs, targets)``.

        Raises UserError where the name is a built-in's.
        """
        if name in LOSSES and name not in cls._registered:
            raise UserError(f"{name!r} is a built-in loss; register yours under another name")
        cls._registered[name] = loss
        LOSSES[name] = f"{loss.__module__}:{loss.__qualname__}"  # so that a configuration may name it

    @classmethod
    def find(cls, reference: str, folder: Path) -> type[nn.Module]:
        """The class of a registered or built-in name, or of a user's ``./file.py:Name`` or ``package.module:Name``."""
        if reference in cls._registered:
            return cls._registered[reference]
        found = resolve_class(reference, LOSSES, folder)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise UserError(f"training.loss.main: {reference} is no torch.nn.Module, which a loss must be")
        return found


class Loss:
    """A loss module whose result becomes a sum with its unit.

    The module gets the valid ``outputs`` (target, ...) and ``targets`` (target, ...). It may give one value for each
    target, which are summed, or one number, which is taken as their mean. An attribute ``per`` of the module says
    which unit the sum is divided by; without it the caller does. A module with ``sums_valid = True`` is called with
    everything and the mask (or None) instead, and gives the sum over what is valid: this spares a copy.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None, per: str = "token") -> Term:
        """The sum of the losses of ``targets`` (...) where ``valid`` (...), given ``outputs`` (..., classes).

        Without ``valid``, all targets count that are not -100, which is torch's mark of those that don't. Raises
        UserError, naming the loss, where the module's result has another shape.
        """
        unit = getattr(self.module, "per", per)
        if getattr(self.module, "sums_valid", False):
            return Term(self.module(outputs, targets, valid), unit)
        if valid is None:
            valid = targets != IGNORED
        outputs, targets = outputs[valid], targets[valid]
        num_targets = len(targets)
        if num_targets == 0:
            return Term(outputs.sum(), unit)
        try:
            result = self.module(outputs, targets)
        except ValueError as error:
            raise UserError(f"training.loss.main: {self.name}: {error}") from error
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        if shape == (num_targets,):
            return Term(result.sum(), unit)
        if shape == () and unit == per:
            return Term(result * num_targets, unit)
        if shape == ():
            raise UserError(
                f"training.loss.main: {self.name} gives a mean per {unit}, but here it has targets per {per}; "
                "give one value for each target instead"
            )
        raise UserError(
            f"training.loss.main: {self.name} must give one number or one for each of {num_targets} targets, "
            f"not {shape}"
        )


def make_loss(config: LossConfig, folder: Path | None = None) -> Loss:
    """The main loss; ``folder`` is where a user's ``./file.py`` lies (null is the current one).

    Raises UserError for a loss or an option that isn't known.
    """
    name, options = config.main.type, config.main.options
    found = LossRegistry.find(name, folder or Path())
    known = _options_of(found)
    if config.label_smoothing:
        if "label_smoothing" in options:
            raise UserError("training.loss: label_smoothing is given twice, beside main and in it; keep one")
        if known is not None and "label_smoothing" not in known:
            raise UserError(f"training.loss.label_smoothing: {name} has no label smoothing; leave it out")
        options["label_smoothing"] = config.label_smoothing
    for option in options:
        if known is not None and option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise UserError(f"training.loss.main: {name} has no option {option}; {has}{did_you_mean(option, known)}")
    try:
        return Loss(found(**options), name)
    except (TypeError, ValueError) as error:
        raise UserError(f"training.loss.main: {name} can't be made: {error}") from error


def z_loss(outputs: Tensor, valid: Tensor, per: str = "token") -> Term:
    """The sum of log²Z where ``valid`` (...); Z is the denominator of the softmax of ``outputs`` (..., classes).

    It keeps logits from drifting away. Source: Chowdhery et al. 2022, "PaLM", section 5, with a weight of 1e-4.
    """
    exact = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    return Term(torch.where(valid, exact.logsumexp(-1).square(), 0.0).sum(), per)


def losses_of_logits(
    main: Loss, auxiliary: Iterable[str], logits: Tensor, targets: Tensor, per: str, valid: Tensor | None = None
) -> dict[str, Term]:
    """The main loss of logits (..., classes) for targets (...), and the auxiliary losses that are of logits.

    What counts is where ``valid`` (...) is True; without it, where targets aren't -100. Auxiliary losses that aren't of
    logits are left to the task.
    """
    of_logits = [name for name in auxiliary if name in AUXILIARY]
    if not of_logits:
        return {main.name: main(logits, targets, valid, per)}
    counted = targets != IGNORED if valid is None else valid
    terms = {name: AUXILIARY[name](logits, counted, per) for name in of_logits}
    return {main.name: main(logits, targets, valid, per), **terms}


AUXILIARY: dict[str, Callable[..., Term]] = {"z_loss": z_loss}
"""Further losses on the logits (outputs, valid, per); a task may have others of its own."""


def auxiliary_losses(config: LossConfig, of_the_task: Iterable[str] = ()) -> dict[str, float]:
    """Weights of the auxiliary losses by name. Raises UserError for one that neither Vaak nor the task has."""
    known = sorted({*AUXILIARY, *of_the_task})
    for name in config.auxiliary:
        if name not in known:
            raise UserError(
                f"training.loss.auxiliary: {name!r} is not known; expected one of {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
    return dict(config.auxiliary)


def _options_of(found: type[nn.Module]) -> list[str] | None:
    """The names of a class's options; None where it takes any."""
    if found.__init__ is nn.Module.__init__:
        return []
    parameters: list[Any] = list(inspect.signature(found).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
