"""The objectives of a step: one for most tasks; a discriminator's and then its generator's for some.

Each has its own parameters, optimizers, and gradient. While one is computed, the others' parameters need no
gradient: their part of the graph is passed through, and nothing is added up in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Objective, Task, demand_terms
from vaak.engine.gradient import GradientPass

Losses = Callable[[nn.Module, Batch], dict[str, Term]]

MAIN = ""
"""The name of the only objective of a task that doesn't name any."""


def objectives_of(task: Task, model: nn.Module) -> tuple[Objective, ...]:
    """What a step of a task descends on, in order; ``task.losses`` over all of the model where it doesn't say.

    Raises UserError where a parameter that is trained belongs to no objective, or to two.
    """
    if not task.objectives:
        losses = _checked(task.losses, f"{type(task).__name__}.losses(model, batch)")
        return (Objective(MAIN, (MAIN,), losses, task.first_pass),)
    owners: dict[str, list[str]] = {name: [] for name, value in model.named_parameters() if value.requires_grad}
    for objective in task.objectives:
        for name in owners:
            if _belongs(name, objective):
                owners[name].append(objective.name)
    for name, owning in owners.items():
        if len(owning) != 1:
            found = " and ".join(owning) or "none"
            raise UserError(
                f"the parameter {name} must belong to exactly one objective of the task, but belongs to {found}; "
                "each objective's modules name what it trains"
            )
    return tuple(
        replace(one, losses=_checked(one.losses, f"the objective {one.name}'s losses(model, batch)"))
        for one in task.objectives
    )


def _checked(losses: Losses, where: str) -> Losses:
    """The losses; they raise UserError where they return something other than terms."""

    def checked(model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = losses(model, batch)
        demand_terms(terms, where)
        return terms

    return checked


def parameters_of(objective: Objective, model: nn.Module) -> list[nn.Parameter]:
    """The parameters of a model that an objective trains, in the order of the model."""
    named = model.named_parameters()
    return [value for name, value in named if value.requires_grad and _belongs(name, objective)]


def _belongs(parameter: str, objective: Objective) -> bool:
    return any(module == MAIN or parameter.startswith(f"{module}.") for module in objective.modules)


@dataclass(frozen=True)
class Descent:
    """An objective as the step needs it: its gradient pass, its parameters, and the others that are trained."""

    name: str
    gradient: GradientPass
    parameters: Sequence[nn.Parameter]
    others: Sequence[nn.Parameter]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within this context, only this objective's parameters need a gradient, as far as freezing lets them."""
        held = [parameter for parameter in self.others if parameter.requires_grad]
        for parameter in held:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in held:
                parameter.requires_grad_(True)


class Undo:
    """Copies of what a step has changed so far, so that it can be rolled back as a whole."""

    def __init__(self) -> None:
        self._kept: list[tuple[Optimizer, nn.Parameter, torch.Tensor, dict[str, Any] | None]] = []
        self._groups: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def keep(self, optimizers: Sequence[Optimizer]) -> None:
        """Remember the weights, moments and values of groups that these optimizers are about to change."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                values = {name: _copied(value) for name, value in group.items() if name not in ("params", "names")}
                self._groups.append((group, values))
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter)
                    moments = None if not state else {name: _copied(value) for name, value in state.items()}
                    self._kept.append((optimizer, parameter, parameter.detach().clone(), moments))

    @torch.no_grad()
    def take_back(self) -> None:
        """Put back all that was kept."""
        for optimizer, parameter, weights, moments in self._kept:
            parameter.copy_(weights)
            optimizer.state.pop(parameter, None)
            if moments is not None:
                optimizer.state[parameter] = moments
        for group, values in self._groups:
            group.update(values)
        self._kept, self._groups = [], []


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
