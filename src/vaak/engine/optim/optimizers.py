"""The builders of the update rules (``vaak.config.optimization.UPDATE_RULES``), each with its parameters in groups.

Muon (Jordan et al. 2024) updates the hidden layers' matrices; AdamW the embeddings, heads, norms and biases. The
matrices' rate is scaled by √max(1, rows / columns), Jordan's rule (torch's ``original``): ``lr`` then is the spectral
size of an update, alike at every width. AdamW's rate means something else, so it has its own, a third of ``lr`` unless
given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from vaak.config.optimization import UPDATE_RULES, OptimizerConfig
from vaak.config.task_spec import load_name
from vaak.core.errors import UserError
from vaak.engine.optim.lion import Lion
from vaak.engine.optim.parameter_groups import (
    NamedParameter,
    count_layers,
    parameter_groups,
)
from vaak.engine.optim.uncompiled import uncompiled
from vaak.engine.optim.users_optimizer import users_optimizer


def optimizers_of(parameters: list[NamedParameter], config: OptimizerConfig, folder: Path) -> list[Optimizer]:
    """The optimizers of these parameters: one, or for muon two.

    Raises UserError without parameters, where fused kernels are wanted and don't exist, or where a user's class
    doesn't fit.
    """
    if not parameters:
        raise UserError("the model has no trainable parameters: all are frozen")
    if config.is_users(config.type):
        return [users_optimizer(_groups(parameters, config), config, folder)]
    optimizers: list[Optimizer] = load_name(UPDATE_RULES[config.type].builder)(parameters, config)
    return optimizers


def adamw(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [_adam(AdamW, _groups(parameters, config), config, _fused(AdamW, parameters, config.fused))]


def adam(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [_adam(Adam, _groups(parameters, config), config, _fused(Adam, parameters, config.fused))]


def sgd(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    nesterov, fused = config.nesterov and config.momentum > 0, _fused(SGD, parameters, config.fused)
    rule = uncompiled(SGD)(
        _groups(parameters, config), lr=config.lr, momentum=config.momentum, nesterov=nesterov, fused=fused
    )
    if fused and config.momentum > 0:
        rule.register_step_pre_hook(_begin_momentum)
    return [rule]


def adafactor(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [uncompiled(Adafactor)(_groups(parameters, config), lr=config.lr)]


def lion(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [uncompiled(Lion)(_groups(parameters, config), lr=config.lr, betas=config.betas)]


def set_learning_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Give every group ``factor`` times its peak rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor


def _groups(parameters: list[NamedParameter], config: OptimizerConfig) -> list[dict[str, Any]]:
    return parameter_groups(parameters, config, config.lr, count_layers(parameters))


def muon(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    """Muon for the hidden matrices, AdamW for the rest; either is left out where it has nothing to do."""
    if not hasattr(torch.optim, "Muon"):
        raise UserError(f"training.optimizer.type: muon needs torch 2.9 or newer; this is {torch.__version__}")
    matrices = [item for item in parameters if item.is_hidden_matrix]
    rest = [item for item in parameters if not item.is_hidden_matrix]
    num_layers = count_layers(parameters)
    optimizers: list[Optimizer] = []
    if matrices:
        groups = parameter_groups(matrices, config, config.lr, num_layers)
        rule = uncompiled(torch.optim.Muon)(
            groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, adjust_lr_fn="original"
        )
        optimizers.append(rule)
    if rest:
        groups = parameter_groups(rest, config, config.adamw_lr or config.lr / 3, num_layers)
        optimizers.append(_adam(AdamW, groups, config, _fused(AdamW, rest, config.fused)))
    return optimizers


def _begin_momentum(optimizer: Optimizer, *_: Any) -> None:
    """Give a zero momentum to each parameter that gets its first gradient after others got theirs.

    It may have been frozen, or not been reached by a batch. torch 2.13's fused SGD fails there: it makes the momenta
    for all parameters or for none.
    """
    if optimizer.state:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not optimizer.state.get(parameter):
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _adam(
    rule: Callable[..., Optimizer], groups: list[dict[str, Any]], config: OptimizerConfig, fused: bool
) -> Optimizer:
    optimizer: Optimizer = uncompiled(rule)(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
    return optimizer


def _fused(rule: Callable[..., Optimizer], parameters: list[NamedParameter], wanted: bool | None) -> bool:
    """Whether to use fused kernels. Raises UserError where they are wanted and don't exist."""
    if wanted is False:
        return False
    kinds = {(item.parameter.device, item.parameter.dtype) for item in parameters}
    lacking = [kind for kind in kinds if not _has_fused(rule, *kind)]
    if wanted and lacking:
        device, dtype = lacking[0]
        raise UserError(
            f"training.optimizer.fused: no fused kernels for {dtype} on {device.type}; leave the option out"
        )
    return not lacking


@cache
def _has_fused(rule: Callable[..., Optimizer], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a rule's fused kernel updates a number of this kind, found by doing it once."""
    number = torch.zeros(1, device=device, dtype=dtype, requires_grad=True)
    number.grad = torch.zeros_like(number)
    try:
        uncompiled(rule)([number], lr=0.1, fused=True).step()
    except RuntimeError:
        return False
    return True
