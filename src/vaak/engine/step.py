"""One optimizer step, as a function of the state and the step number.

    counts   = sum of each unit's count over every microbatch of the step, on every rank
    loss     = sum over microbatches of  sum over terms of  weight x total / counts[unit]
    gradient = d loss / d weights, added over ranks once, after every backward
    weights  = what the optimizer makes of it, unless a number in it isn't finite

Counting before computing makes one batch of 32, 4 of 8, and 2 ranks with 16 the same arithmetic.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import torch

from vaak.core.errors import NonFiniteError, UserError
from vaak.core.keys import draw_key
from vaak.core.report import StepReport
from vaak.data.reader import Microbatch
from vaak.engine.gradient import Losses, accumulate_gradient, clear_gradients
from vaak.engine.memory import is_out_of_memory
from vaak.engine.non_finite import diagnose
from vaak.engine.optimizers import set_learning_rates
from vaak.engine.precision import LossScale

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer

log = logging.getLogger("vaak")


def take_step(trainer: Trainer, microbatches: list[Microbatch]) -> StepReport:
    """Run the optimizer step that follows ``trainer.position`` on this rank's share of its microbatches."""
    step, epoch = trainer.position.step + 1, trainer.position.epoch
    if trainer.freezing is not None:
        trainer.freezing.apply(step, epoch)
    counts = trainer.ranks.sum(count_units(microbatches))
    if not trainer.model.training:  # walking the modules in every step would take a tenth of a small one
        trainer.model.train()
    losses = accumulate_gradient(trainer, step, microbatches, counts)
    with trainer.phase("optimizer"):
        gradients = reduce_gradients(trainer, losses)
        trainer.loss_scale.unscale(gradients)
        norm, means, scale = total_norm(gradients), losses.means(), trainer.loss_scale.value
        skipped = why_to_skip(trainer.loss_scale, means, norm)
        if skipped is None:
            update_weights(trainer, step, gradients, norm)
        clear_gradients(trainer)
        trainer.loss_scale.update(skipped)
    if skipped == "non_finite":
        answer_non_finite(trainer, step, microbatches)
    ends_epoch = trainer.position.advance(trainer.step_size(), trainer.planner.num_microbatches, counts)
    return StepReport(
        step=step,
        epoch=epoch,
        losses=means,
        units=losses.units,
        counts=counts,
        learning_rate=trainer.optimizers[0].param_groups[0]["lr"],
        gradient_norm=norm,
        loss_scale=scale if trainer.loss_scale.enabled else None,
        skipped=skipped,
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


def reduce_gradients(trainer: Trainer, losses: Losses) -> list[torch.Tensor]:
    """The gradients of the step, added over ranks; the terms' sums are added along.

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
        sums = torch.stack([losses.sums.get(name, missing) for name in losses.units])
        kind = gradients[0].dtype if gradients else torch.float32
        sums = sums.to(torch.promote_types(kind, torch.float32))  # the same on every rank
        trainer.ranks.sum_tensors([*gradients, sums])
        losses.sums = dict(zip(losses.units, sums.unbind(), strict=True))
    return gradients


def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of all gradients together."""
    if len({gradient.dtype for gradient in gradients}) != 1:
        return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def why_to_skip(loss_scale: LossScale, losses: dict[str, torch.Tensor], norm: torch.Tensor) -> str | None:
    """Why this step must not reach the weights: ``non_finite``, or ``overflow`` of fp16; None where it may.

    Gradients alone overflow where fp16's loss scale is too high, which the scale learns from. A loss that isn't finite,
    or a gradient that isn't at the lowest scale, comes of something else. Every rank decides alike: norm and losses
    are those of all. On a GPU this waits for the gradients: the weights are not to be had back.
    """
    if norm.device.type == "cpu":
        numbers = [float(norm), *(float(loss) for loss in losses.values())]
    else:
        numbers = torch.stack([norm.float(), *(loss.float() for loss in losses.values())]).tolist()
    finite = [math.isfinite(number) for number in numbers]
    if all(finite):
        return None
    return "overflow" if all(finite[1:]) and loss_scale.may_overflow else "non_finite"


def update_weights(trainer: Trainer, step: int, gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
    """Clip, set the rates of this step, update; then what follows the weights: features, their average."""
    clip_gradients(gradients, norm, trainer.clip_norm, trainer.clip_value)
    set_learning_rates(trainer.optimizers, trainer.learning_rate_factor(step))
    try:
        for optimizer in trainer.optimizers:
            optimizer.step()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"out of memory in the midst of the update of step {step}, whose weights may be half-changed and are not "
            "saved: go on with --resume auto, with a smaller model or training.optimizer.type adafactor or sgd"
        ) from error
    redraw_features(trainer, step)
    if trainer.average is not None:
        trainer.average.update(step)


def answer_non_finite(trainer: Trainer, step: int, microbatches: list[Microbatch]) -> None:
    """Find where the step went wrong and write it down; then skip it, as often as the configuration allows.

    Raises NonFiniteError, on every rank, where that is often enough.
    """
    found = diagnose(trainer, step, microbatches)
    every = trainer.ranks.gather((found.finding is None, found.sentence(trainer.directory)))
    said = min(every, key=lambda entry: entry[0])[1]  # of the first rank that found anything
    allowed = trainer.config.non_finite.max_skipped
    if trainer.position.non_finite_steps >= allowed:
        raise NonFiniteError(said)
    trainer.position.non_finite_steps += 1
    log.warning("%s; the step is skipped (%d of %d)", said, trainer.position.non_finite_steps, allowed)


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
