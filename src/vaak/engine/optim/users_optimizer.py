"""A user's optimizer: a ``torch.optim.Optimizer`` class, made with Vaak's parameter groups and its own options.

Its rate is Vaak's: each group has ``lr``, which follows the schedule, and ``weight_decay``. What it remembers between
steps belongs in ``state[parameter]`` or in its groups, as tensors or plain values: this is what a checkpoint keeps.
"""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from vaak.config.components import check_options, resolve_component
from vaak.config.optimization import OptimizerConfig
from vaak.core.errors import UserError

log = logging.getLogger("vaak")


def users_optimizer(groups: list[dict[str, Any]], config: OptimizerConfig, folder: Path) -> Optimizer:
    """The optimizer of ``config.type``; ``folder`` is where a ``./file.py`` is looked for.

    Raises UserError for what is not an optimizer, needs a closure, or doesn't have one of the options.
    """
    key, name = config.key, config.type
    found = resolve_component(key, name, folder)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise UserError(f"{key}: {name} is not a torch.optim.Optimizer class")
    if _needs_closure(found):
        raise UserError(f"{key}: step() of {name} needs a closure, and training calls it without; choose another")
    known = check_options(key, name, found, config.options, reserved=("params", "lr"))
    rate: dict[str, Any] = {"lr": config.lr} if known is None or "lr" in inspect.signature(found).parameters else {}
    try:
        made = found(groups, **rate, **config.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: {name} can't be created: {error}") from error
    if config.weight_decay and "weight_decay" not in made.defaults:
        log.warning("%s.weight_decay: %s has no weight decay, so nothing decays", key, name)
    return made


def _needs_closure(found: type[Optimizer]) -> bool:
    try:
        inspect.signature(found.step).bind(None)
    except TypeError:
        return True
    return False
