"""One optimizer step, as a function of the state and the step number.

    counts   = sum of each unit's count over every microbatch of the step, on every rank
    loss     = sum over microbatches of  sum over terms of  weight x total / counts[unit]
    gradient = d loss / d weights, added over ranks once, after every backward

Counting before computing makes one batch of 32, 4 of 8, and 2 ranks with 16 the same arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vaak.core.batch import Term
from vaak.core.keys import draw_key
from vaak.core.report import StepReport
from vaak.data.reader import Microbatch
from vaak.engine.optimizers import set_learning_rates
from vaak.engine.randomness import seed_everything

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer


def take_step(trainer: Trainer, microbatches: list[Microbatch]) -> StepReport:
    """Run the optimizer step that follows ``trainer.position`` on this rank's share of its microbatches."""
    step, epoch = trainer.position.step + 1, trainer.position.epoch
    counts = trainer.ranks.sum(count_units(microbatches))
    if not trainer.model.training:  # walking the modules in every step would take a tenth of a small one
        trainer.model.train()
    losses = Losses(trainer.loss_weights, counts)
    for microbatch in microbatches:
        if microbatch.batch is not None:
            backward(trainer, step, microbatch, losses)
    gradients = reduce_gradients(trainer, losses)
    trainer.loss_scale.unscale(gradients)
    norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
    scale = trainer.loss_scale.value
    updated = update_weights(trainer, step, gradients, norm)
    ends_epoch = trainer.position.advance(trainer.step_size(), trainer.planner.num_microbatches, counts)
    return StepReport(
        step=step,
        epoch=epoch,
        losses=losses.totals,
        units=losses.units,
        counts=counts,
        learning_rate=trainer.optimizers[0].param_groups[0]["lr"],
        gradient_norm=norm,
        loss_scale=scale if trainer.loss_scale.enabled else None,
        skipped=not updated,
        seconds=trainer.clock.lap(),
        ends_epoch=ends_epoch,
    )


def count_units(microbatches: list[Microbatch]) -> dict[str, float]:
    """Each unit's count over microbatches."""
    counts: dict[str, float] = {}
    for microbatch in microbatches:
        for unit, count in (microbatch.batch.totals() if microbatch.batch else {}).items():
            counts[unit] = counts.get(unit, 0.0) + count
    return counts


class Losses:
    """The terms of a step: their weighted, normalised sum to descend on; each over its unit's count to report."""

    def __init__(self, weights: dict[str, float], counts: dict[str, float]) -> None:
        self.weights = weights
        self.counts = counts
        self.totals: dict[str, torch.Tensor] = {}
        self.units: dict[str, str] = {}

    def objective(self, terms: dict[str, Term]) -> torch.Tensor:
        """What one microbatch adds to the loss of the step."""
        parts = []
        for name, term in terms.items():
            normalised = term.total.float() if term.total.dtype != torch.float64 else term.total
            normalised = normalised / (self.counts.get(term.per) or 1.0)
            self.totals[name] = self.totals.get(name, 0.0) + normalised.detach()
            self.units[name] = term.per
            parts.append(self.weights.get(name, 1.0) * normalised)
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def backward(trainer: Trainer, step: int, microbatch: Microbatch, losses: Losses) -> None:
    """Add one microbatch's part of the gradient; its draws depend on the step and its number in the step alone."""
    assert microbatch.batch is not None
    number, piece = microbatch.address.number, 0
    seed_everything(draw_key("model", trainer.config.random_seed, step, number, piece), trainer.ranks.device)
    with trainer.precision.autocast():
        terms = trainer.task.losses(trainer.forward, microbatch.batch.to(trainer.ranks.device))
    (losses.objective(terms) * trainer.loss_scale.value).backward()


def reduce_gradients(trainer: Trainer, losses: Losses) -> list[torch.Tensor]:
    """The gradients of the step, added over ranks; the terms' totals are added along.

    A parameter that no rank's microbatches reach has none, as in a single process: its optimizer leaves it alone.
    """
    parameters = trainer.trained_parameters
    reached = [number for number, parameter in enumerate(parameters) if parameter.grad is not None]
    if trainer.ranks.world_size > 1:
        parts = trainer.ranks.gather([losses.units, reached])
        losses.units = {name: unit for units, _ in parts for name, unit in units.items()}
        reached = sorted({number for _, numbers in parts for number in numbers})
        for number in reached:
            if parameters[number].grad is None:  # this rank adds nothing, but takes part
                parameters[number].grad = torch.zeros_like(parameters[number])
    gradients = [gradient for number in reached if (gradient := parameters[number].grad) is not None]
    if trainer.ranks.world_size > 1 and losses.units:
        missing = torch.zeros((), device=trainer.ranks.device)
        totals = torch.stack([losses.totals.get(name, missing) for name in losses.units])
        totals = totals.to(torch.promote_types(gradients[0].dtype, torch.float32))  # the same on every rank
        trainer.ranks.sum_tensors([*gradients, totals])
        losses.totals = dict(zip(losses.units, totals.unbind(), strict=True))
    return gradients


def update_weights(trainer: Trainer, step: int, gradients: list[torch.Tensor], norm: torch.Tensor) -> bool:
    """Clip, set the rates of this step, update; return False, with nothing changed, where fp16 gradients overflowed."""
    finite = not trainer.loss_scale.enabled or bool(torch.isfinite(norm))
    if finite:
        clip_gradients(gradients, norm, trainer.clip_norm, trainer.clip_value)
        set_learning_rates(trainer.optimizers, trainer.learning_rate_factor(step))
        for optimizer in trainer.optimizers:
            optimizer.step()
        redraw_features(trainer, step)
    for optimizer in trainer.optimizers:
        optimizer.zero_grad(set_to_none=True)
    trainer.loss_scale.update(finite)
    return finite


def clip_gradients(
    gradients: list[torch.Tensor], norm: torch.Tensor, max_norm: float | None, max_value: float | None
) -> None:
    """Bound gradients in place: first their norm together, then each value."""
    if not gradients:
        return
    if max_norm is not None:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
    if max_value is not None:
        torch._foreach_clamp_min_(gradients, -max_value)
        torch._foreach_clamp_max_(gradients, max_value)


def redraw_features(trainer: Trainer, step: int) -> None:
    """Let every module that has random features redraw them, as a function of the step, at the step's boundary."""
    if trainer.redraw_interval is None or step % trainer.redraw_interval:
        return
    for number, module in enumerate(trainer.model.modules()):
        redraw = getattr(module, "redraw_features", None)
        if redraw is not None:
            redraw(draw_key("features", trainer.config.random_seed, step, number))
