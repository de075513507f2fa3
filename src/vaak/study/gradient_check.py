"""Whether autograd's gradient is the slope of the loss, parameter by parameter.

    autograd            gradient · direction
    finite differences  (loss(w + h · direction) - loss(w - h · direction)) / 2 h

in float64, with the same dropout in every forward. The direction, one for each parameter, is half along the gradient,
so that the slope isn't tiny in a large matrix, and half random, so that what autograd misses shows.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vaak.config.load import Loaded
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Objective, Task
from vaak.engine.gradient import list_objectives, list_parameters
from vaak.engine.precision import keeping_generators, seed_everything
from vaak.runs.start import temporary_trainer

# A slope is right if it is at any h: small ones drown in rounding, large ones bend.
LONGER_STEPS = (1, 30, 1000)
# Rounding of the loss, in units of its last place.
NOISE = 1000.0
JITTER = 0.02


@dataclass(frozen=True)
class GradientCheck:
    """One parameter: its gradient's 2-norm, and its slope along the direction by autograd and by finite differences."""

    name: str
    norm: float
    autograd: float
    finite_differences: float
    is_right: bool

    @property
    def error(self) -> float:
        """The difference of both over the larger one."""
        largest = max(abs(self.autograd), abs(self.finite_differences))
        return abs(self.autograd - self.finite_differences) / largest if largest else 0.0


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Return the 2-norm of each parameter's gradient by its name; parameters without one are left out."""
    return {
        name: float(parameter.grad.norm()) for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def check_gradients(
    task: Task,
    model: nn.Module,
    batch: Batch,
    *,
    loss_weights: Mapping[str, float] | None = None,
    seed: int = 0,
    tolerance: float = 1e-3,
) -> list[GradientCheck]:
    """Check every parameter that needs a gradient, in the model's order, on one batch of the task's.

    Where a task has several objectives, each parameter is checked under the one that trains it.
    The model itself isn't touched: a copy in float64 is, whose weights are moved a little at random, for where they
    begin at zero the gradients of others are zero too. ``tolerance`` is the largest relative error that is right. What
    computes in fp32 whatever its input is, on the way to the loss, is too noisy to be checked.

    ``loss_weights`` are those of the auxiliary losses; ``seed`` draws how the weights are moved.
    """
    device = next(model.parameters()).device
    # MPS has no float64.
    device = device if device.type != "mps" else torch.device("cpu")
    exact = copy.deepcopy(model).to(device, torch.float64).train()
    exact.zero_grad()
    tensors = {name: x.double() if x.is_floating_point() else x for name, x in batch.to(device).tensors.items()}
    batch = Batch(tensors, batch.counts, batch.indices, batch.extra)
    counts, weights = batch.totals(), dict(loss_weights or {})

    def loss(objective: Objective) -> Tensor:
        seed_everything(draw_key(Purpose.CHECK, seed), device)
        terms = objective.losses(exact, batch).items()
        parts = [weights.get(name, 1.0) * term.total / (counts.get(term.per) or 1.0) for name, term in terms]
        return torch.stack(parts).sum()

    checks, objectives = {}, list_objectives(task, exact)
    number = sum(len(list_parameters(objective, exact)) for objective in objectives)
    with keeping_generators(device), progress("checking gradients", number) as advance:
        generator = torch.Generator().manual_seed(draw_key(Purpose.CHECK, seed, "weights"))
        with torch.no_grad():
            for parameter in exact.parameters():
                parameter.add_(_random(parameter, generator), alpha=JITTER)
        for objective in objectives:
            exact.zero_grad()
            total = loss(objective)
            total.backward()
            own = set(list_parameters(objective, exact))
            for name, parameter in exact.named_parameters():
                if parameter in own:
                    own_loss = functools.partial(loss, objective)
                    checks[name] = _check_parameter(name, parameter, total.detach(), own_loss, (generator, tolerance))
                    advance(1)
    return [checks[name] for name, _ in exact.named_parameters() if name in checks]


def check_first_batch(loaded: Loaded, rows: int, tolerance: float) -> list[GradientCheck]:
    """Check the gradients of a run that is about to begin, on the first rows of its first microbatch."""
    with temporary_trainer(loaded) as trainer:
        batch = next(trainer.data.microbatches(trainer.position)).batch
        if batch is None:
            raise UserError("the first microbatch has no example that can be read; fix the data first")
        return check_gradients(
            trainer.task,
            trainer.model,
            batch.split(-(-batch.num_rows // rows))[0],
            loss_weights=trainer.loss_weights,
            seed=trainer.config.random_seed,
            tolerance=tolerance,
        )


@torch.no_grad()
def _check_parameter(
    name: str,
    parameter: nn.Parameter,
    total: Tensor,
    loss: Callable[[], Tensor],
    options: tuple[torch.Generator, float],
) -> GradientCheck:
    """Compare one parameter's slopes, with finite differences of growing length until they agree.

    ``name`` is that of ``parameter``; ``total`` is the loss with its graph, ``loss`` computes it again, and ``options``
    are the generator and the tolerance.
    """
    generator, tolerance = options
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    norm = float(gradient.norm())
    direction = _random(parameter, generator)
    direction /= direction.norm()
    if norm > 0:
        direction = direction / 2 + gradient / (2 * norm)
    slope = float((gradient * direction).sum())
    epsilon = torch.finfo(total.dtype).eps
    checks = []
    for longer in LONGER_STEPS:
        # A central difference is off by about eps/h from rounding and by h² from bending: least at about eps^(1/3).
        h = longer * epsilon ** (1 / 3) * max(1.0, float(parameter.norm()))
        measured = _finite_difference(parameter, direction, h, loss)
        allowed = tolerance * max(abs(slope), abs(measured)) + NOISE * epsilon * abs(float(total)) / h
        checks.append(GradientCheck(name, norm, slope, measured, abs(slope - measured) <= allowed))
        if checks[-1].is_right:
            return checks[-1]
    return min(checks, key=lambda check: check.error)


def _finite_difference(parameter: nn.Parameter, direction: Tensor, h: float, loss: Callable[[], Tensor]) -> float:
    own = parameter.clone()
    values = []
    for sign in (1, -1):
        parameter.copy_(own + sign * h * direction)
        values.append(float(loss()))
    parameter.copy_(own)
    return (values[0] - values[1]) / (2 * h)


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers, the same on every device."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)
