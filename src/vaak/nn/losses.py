"""Losses by name, called on the valid targets, as sums with units; and the built-in losses.

The built-in losses are plain modules that give one number for each target: ``outputs`` are (target, ...) and
``targets`` of the same shape, or without a last dimension of one; a target's loss is the mean over the dimensions after
the first (the bands of a spectrum, the speakers of a frame).

Sources of distillation: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", section 2
(logits); Romero et al. 2015, "FitNets" (hidden states).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.config.base import REGISTERED
from vaak.config.components import AUXILIARY_LOSSES, check_options, did_you_mean, register_loss, resolve_component
from vaak.config.training import AuxiliaryLoss, Logits, LossConfig
from vaak.core.batch import Term
from vaak.core.errors import UserError
from vaak.nn.cross_entropy import (
    IGNORED,
    CrossEntropy,
    HeadInputs,
    head_cross_entropy,
    liger_cross_entropy,
    unless_many,
)

Auxiliary = Callable[[Tensor, Tensor, Tensor, str], Term]
"""An additional loss of the model's ``outputs`` (..., classes): ``(outputs, targets, valid, per) -> Term``.

``targets`` are those of the main loss; places count where ``valid`` (...) is True. The term is the sum of the loss
over these places, and its unit, for which ``per`` is right. A ``Loss`` is one.
"""
MAIN, AUXILIARY = "training.loss.main", "training.loss.auxiliary"


class LossRegistry:
    """Losses that users of the library add under a short name; the class has the universal pipeline's name for it."""

    register = staticmethod(register_loss)

    @staticmethod
    def find(reference: str, folder: Path) -> type[nn.Module]:
        """The class of a registered or built-in name, or of a user's ``./file.py:Name`` or ``package.module:Name``."""
        found = resolve_component(MAIN, reference, folder)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise UserError(f"{MAIN}: {reference} is not a torch.nn.Module, which a loss must be")
        return found


class Loss:
    """A loss module whose result becomes a sum with its unit.

    The module gets the valid ``outputs`` (target, ...) and ``targets`` (target, ...). It may give one value for each
    target, which are summed, or one number, which is taken as their mean. An attribute ``per`` of the module says which
    unit the sum is divided by; without it the caller does. A module with ``sums_valid = True`` is called with
    everything and the mask (or None) instead, and gives the sum over what is valid: this spares a copy. One with
    ``each_target = True``, whose values depend on their own target alone, is called with everything, zeros where it
    isn't valid. Those values are left out afterwards, so on a GPU the program needn't wait for the number of valid
    targets.
    """

    def __init__(
        self,
        module: Callable[[Tensor, Tensor], Tensor],
        name: str,
        auxiliary: Mapping[str, Auxiliary] | None = None,
        key: str = MAIN,
        logits: Logits = "whole",
    ) -> None:
        """``auxiliary`` are the further losses of the same outputs, by name; errors name the option ``key``.

        ``logits`` is how those of a model become a loss, see ``training.performance``.
        """
        self.module = module
        self.per: str | None = getattr(module, "per", None)
        self.sums_valid, self.each_target = (getattr(module, each, False) for each in ("sums_valid", "each_target"))
        self.name = name
        self.auxiliary = dict(auxiliary or {})
        self.key = key
        self.logits = logits

    def modules(self) -> dict[str, nn.Module]:
        """Return the losses that are modules, by name, for ``Task.loss_modules``."""
        further = {f"auxiliary_{name}": one for name, one in self.auxiliary.items()}
        found = {"main": self, **further}.items()
        modules = {name: one.module if isinstance(one, Loss) else one for name, one in found}
        return {name: module for name, module in modules.items() if isinstance(module, nn.Module)}

    @cached_property
    def reads_head(self) -> bool:
        """Whether what logits are the product of is enough: for cross-entropy of equal classes, and z_loss."""
        further = all(getattr(one, "func", None) is z_loss for one in self.auxiliary.values())
        return further and isinstance(self.module, CrossEntropy) and self.module.weight is None

    def model_options(self, model: nn.Module, targets: Tensor) -> dict[str, bool]:
        """Return the options of a model's call: ``project=False`` where the loss takes what logits are made of."""
        if self.logits == "whole" or not self.reads_head:
            return {}
        return unless_many(model, targets) if self.logits == "auto" else {"project": False}

    def __call__(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None, per: str = "token") -> Term:
        """Return the sum of the losses of ``targets`` (...) where ``valid`` (...), given ``outputs`` (..., classes).

        Without ``valid``, all targets count that are not -100, which is torch's mark of those that don't. Raises
        UserError, naming the loss, where the module's result has another shape.
        """
        unit = self.per or per
        if self.sums_valid:
            return Term(self.module(outputs, targets, valid), unit)  # type: ignore[call-arg]
        if valid is None:
            valid = targets != IGNORED
        each, others = self.each_target, torch.empty(0)
        if each:
            others = ~valid.flatten()
            outputs, targets = _without_others(outputs, targets, others, valid.ndim)
        else:
            outputs, targets = outputs[valid], targets[valid]
        num_targets = len(targets)
        if num_targets == 0:
            # A zero of the graph, not a constant: backward then runs here as on the ranks that have targets.
            return Term(outputs.sum(), unit)
        try:
            result = self.module(outputs, targets)
        except ValueError as error:
            raise UserError(f"{self.key}: {self.name}: {error}") from error
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        if shape == (num_targets,):
            return Term((result.masked_fill(others, 0) if each else result).sum(), unit)
        # A mean becomes a sum here, which is divided once, by the targets of the whole step.
        if shape == () and unit == per and not each:
            return Term(result * num_targets, unit)
        if shape == () and not each:
            raise UserError(
                f"{self.key}: {self.name} gives a mean per {unit}, but here it has targets per {per}; "
                "give one value for each target instead"
            )
        raise UserError(
            f"{self.key}: {self.name} must give one number or one for each of {num_targets} targets, not {shape}"
        )

    def further(self, outputs: Tensor, targets: Tensor, valid: Tensor, per: str) -> dict[str, Term]:
        """Return the auxiliary losses by name. Raises UserError for one that gives something other than its sum."""
        return {name: _term(name, one(outputs, targets, valid, per)) for name, one in self.auxiliary.items()}


def _without_others(outputs: Tensor, targets: Tensor, others: Tensor, ndim: int) -> tuple[Tensor, Tensor]:
    """Outputs and targets with one dimension in place of the first ``ndim``, and 0 where ``others`` (target,)."""
    both = (one.flatten(0, ndim - 1) for one in (outputs, targets))
    outputs, targets = (one.masked_fill(others.view(-1, *(1,) * (one.ndim - 1)), 0) for one in both)
    return outputs, targets


def make_loss(config: LossConfig, folder: Path | None = None, logits: Logits = "whole") -> Loss:
    """Return the main loss and the auxiliary losses of its outputs; ``folder`` is where ``./file.py`` is looked for.

    ``logits`` is that of ``Loss``.

    Raises UserError for a loss or an option that isn't known, and for a loss that can't be called as losses are.
    """
    name, options = config.main.type, config.main.options
    found = LossRegistry.find(name, folder or Path())
    known = _list_options(found)
    further = {
        key: _auxiliary(key, about, folder or Path())
        for key, about in config.auxiliary.items()
        if isinstance(about, AuxiliaryLoss) or key in {**AUXILIARY_LOSSES, **REGISTERED[AUXILIARY]}
    }
    if name in further:
        raise UserError(f"{AUXILIARY}.{name}: this is the name of the main loss; choose another")
    # main.options is a copy, so the configuration doesn't change.
    if config.label_smoothing:
        if "label_smoothing" in options:
            raise UserError("training.loss: label_smoothing is given twice, next to main and in it; keep one")
        if known is not None and "label_smoothing" not in known:
            raise UserError(f"training.loss.label_smoothing: {name} has no label smoothing; leave it out")
        options["label_smoothing"] = config.label_smoothing
    for option in options:
        if known is not None and option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise UserError(f"{MAIN}: {name} has no option {option}; {has}{did_you_mean(option, known)}")
    try:
        made = found(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{MAIN}: {name} can't be created: {error}") from error
    _require_arguments(MAIN, name, made, (ARGUMENTS,))
    return Loss(made, name, further, logits=logits)


def _auxiliary(name: str, about: float | AuxiliaryLoss, folder: Path) -> Auxiliary:
    """An auxiliary loss by its name or its class; one with the arguments of a main loss is used as a main loss is.

    Raises UserError if there is none, it doesn't have one of the options, or takes other arguments.
    """
    key = f"{AUXILIARY}.{name}"
    reference, options = (about.type, about.options) if isinstance(about, AuxiliaryLoss) else (name, {})
    found = resolve_component(AUXILIARY, reference, folder)
    if not name.isidentifier():
        raise UserError(f"{key}: a loss is named by letters, digits and underscores")
    if not callable(found):
        raise UserError(f"{key}: {reference} is neither a class nor a function")
    if isinstance(found, type):
        check_options(key, reference, found, options)
        try:
            made = found(**options)
        except (TypeError, ValueError) as error:
            raise UserError(f"{key}: {reference} can't be created: {error}") from error
        masked = _require_arguments(key, reference, made, (ARGUMENTS, MASKED_ARGUMENTS)) == MASKED_ARGUMENTS
        return made if masked else Loss(made, name, key=key)
    masked = _require_arguments(key, reference, found, (ARGUMENTS, MASKED_ARGUMENTS)) == MASKED_ARGUMENTS
    arguments = list(inspect.signature(found).parameters)[: 4 if masked else 2]
    check_options(key, reference, found, options, reserved=arguments)
    return partial(found, **options) if masked else Loss(partial(found, **options), name, key=key)


ARGUMENTS, MASKED_ARGUMENTS = ("outputs", "targets"), ("outputs", "targets", "valid", "per")


def _require_arguments(key: str, reference: str, loss: Any, allowed: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return which of the ``allowed`` arguments a loss is called with; one that defines ``valid`` takes all four.

    Raises UserError if it accepts none.
    """
    called = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        # A function written in C has no signature.
        return ARGUMENTS
    fitting = [arguments for arguments in allowed if _can_be_called(signature, arguments)]
    if not fitting:
        expected = " or ".join(f"({', '.join(arguments)})" for arguments in allowed)
        raise UserError(f"{key}: {reference} is called with {expected}, but it takes {signature}")
    any_number = any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())
    return fitting[-1] if "valid" in signature.parameters or any_number else fitting[0]


def _can_be_called(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def z_loss(outputs: Tensor, targets: Tensor, valid: Tensor, per: str = "token") -> Term:
    """Return the sum of log²Z where ``valid`` (...); Z is the denominator of the softmax of ``outputs`` (..., classes).

    It keeps logits from drifting away. Source: Chowdhery et al. 2022, "PaLM", section 5, with a weight of 1e-4.
    """
    exact = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    return Term(torch.where(valid, exact.logsumexp(-1).square(), 0.0).sum(), per)


def losses_of_logits(
    main: Loss,
    auxiliary: Iterable[str],
    logits: Tensor | HeadInputs,
    targets: Tensor,
    per: str,
    valid: Tensor | None = None,
) -> dict[str, Term]:
    """Return the main loss of logits (..., classes) for targets (...), and the auxiliary losses that are of logits.

    Of ``HeadInputs``, the logits are never whole where the losses can do without (``Loss.reads_head``).

    What counts is where ``valid`` (...) is True; without it, where targets aren't -100. Auxiliary losses that aren't of
    logits are left to the task.

    ``auxiliary`` names those that the configuration weighs, which belong to ``main``. Each is a sum with the unit
    ``per`` (such as token).
    """
    if isinstance(logits, HeadInputs):
        if main.reads_head:
            marked = targets if valid is None else torch.where(valid, targets, IGNORED)
            assert isinstance(main.module, CrossEntropy)
            further = [name for name in auxiliary if name in main.auxiliary]
            smoothing = main.module.label_smoothing
            if main.logits == "liger":
                return {main.name: Term(liger_cross_entropy(logits, marked, smoothing), per)}
            total, squares = head_cross_entropy(logits, marked, smoothing, squares=bool(further))
            return {main.name: Term(total, per), **{name: Term(squares, per) for name in further}}
        # one of the losses reads the whole matrix, so it is made after all
        logits = logits.logits()
    found = {}
    if main.auxiliary:
        found = main.further(logits, targets, targets != IGNORED if valid is None else valid, per)
    terms = {name: found[name] for name in auxiliary if name in found}
    return {main.name: main(logits, targets, valid, per), **terms}


def _term(name: str, found: Any) -> Term:
    """Return the result of an auxiliary loss. Raises UserError if it is not a sum with its unit."""
    if not (isinstance(found, Term) and isinstance(found.total, Tensor) and found.total.ndim == 0):
        raise UserError(
            f"{AUXILIARY}.{name} gives {type(found).__name__}; expected vaak.core.batch.Term with the sum of the loss, "
            "a tensor of one number, and the unit it is summed over"
        )
    return found


def auxiliary_losses(config: LossConfig, of_the_task: Iterable[str] = ()) -> dict[str, float]:
    """Weights of the auxiliary losses by name.

    Raises UserError for one that neither Vaak nor the task has, and for a user's under the name of the task's.
    """
    of_the_task = set(of_the_task)
    known = sorted({*AUXILIARY_LOSSES, *REGISTERED[AUXILIARY], *of_the_task})
    weights = {}
    for name, about in config.auxiliary.items():
        if isinstance(about, AuxiliaryLoss):
            if name in of_the_task:
                raise UserError(f"{AUXILIARY}.{name}: the task has a loss of this name; choose another")
            weights[name] = about.weight
        elif name in known:
            weights[name] = about
        else:
            raise UserError(
                f"{AUXILIARY}: {name!r} is not known; expected one of {', '.join(known)}{did_you_mean(name, known)}"
            )
    return weights


def _list_options(found: type[nn.Module]) -> list[str] | None:
    """Return the names of a class's options; None if it takes any."""
    if found.__init__ is nn.Module.__init__:
        return []
    parameters: list[Any] = list(inspect.signature(found).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]


class MeanSquaredError(nn.Module):
    """Square of the difference."""

    each_target = True

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.mse_loss(*_alike(outputs, targets), reduction="none"))


class MeanAbsoluteError(nn.Module):
    """Absolute difference."""

    each_target = True

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.l1_loss(*_alike(outputs, targets), reduction="none"))


class SmoothL1(nn.Module):
    """Square below ``beta``, absolute above, divided by beta (Girshick 2015)."""

    each_target = True

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta is {beta}; it must be 0 or more")
        self.beta = beta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.smooth_l1_loss(*_alike(outputs, targets), reduction="none", beta=self.beta))


class Huber(nn.Module):
    """Square below ``delta``, absolute above (Huber 1964)."""

    each_target = True

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        if not 0 < delta < math.inf:
            raise ValueError(f"delta is {delta}; it must be above 0")
        self.delta = delta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.huber_loss(*_alike(outputs, targets), reduction="none", delta=self.delta))


class BinaryCrossEntropy(nn.Module):
    """Negative log-probability of yes or no, from logits; ``label_smoothing`` moves targets towards a half."""

    each_target = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, answers = _alike(outputs, targets)
        if self.label_smoothing:
            answers = answers * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        return _per_target(F.binary_cross_entropy_with_logits(logits, answers, reduction="none"))


class FocalLoss(nn.Module):
    """Cross-entropy times (1 - p)^gamma, so that easy examples weigh less (Lin et al. 2017, equation 4).

    It is computed from the margin m between the target's logit and the log-sum of all others: p = sigmoid(m) and
    1 - p = sigmoid(-m). So 1 - p isn't rounded to 0 where p is nearly 1, where the derivative of its power is infinite
    for a gamma below 1.
    """

    each_target = True

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        if not 0 <= gamma < math.inf:
            raise ValueError(f"gamma is {gamma}; it must be 0 or more")
        self.gamma = gamma

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, target = outputs.to(_exact(outputs)), targets[:, None]
        # Not -inf: where a target has no other class, or those others are -inf, the margin stays a number.
        others = logits.scatter(-1, target, torch.finfo(logits.dtype).min).logsumexp(-1)
        margin = logits.gather(-1, target).squeeze(-1) - others
        return -(self.gamma * F.logsigmoid(-margin)).exp() * F.logsigmoid(margin)


def _exact(outputs: Tensor) -> torch.dtype:
    """Return the type in which losses are computed: of 32 bits at least."""
    return torch.promote_types(outputs.dtype, torch.float32)


def _alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in one shape, so that nothing is broadcast by mistake, and in at least 32 bits."""
    exact = _exact(outputs)
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}")
    return outputs.to(exact), targets.to(exact)


def _per_target(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · the sum over units of KL(teacher, student), of logits ``(unit, ..., class)`` of the same shape.

    Where a unit makes several choices, its divergence is their mean. T² keeps the gradient as large as that of the
    labels, whatever the temperature is.
    """
    precise = torch.promote_types(student.dtype, torch.float32)
    found = F.log_softmax(student.to(precise) / temperature, dim=-1)
    wanted = F.log_softmax(teacher.to(precise) / temperature, dim=-1)
    each = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
    return temperature**2 * each.flatten(1).mean(1).sum() if each.ndim > 1 else temperature**2 * each.sum()


def hidden_difference(student: Tensor, teacher: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum over real positions of the mean squared difference of hidden states ``(row, time, width)``.

    The first ``lengths`` ``(row,)`` positions of each row are real.
    """
    precise = torch.promote_types(student.dtype, torch.float32)
    each = (student.to(precise) - teacher.to(precise)).square().mean(-1)
    real = torch.arange(each.shape[1], device=each.device) < lengths.to(each.device)[:, None]
    return torch.where(real, each, 0.0).sum()
