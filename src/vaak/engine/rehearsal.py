"""Before the first step: the smallest and the largest microbatch, forward and backward, with nothing changed by it.

Errors of shape and too little memory show in the first seconds, not when the largest batch comes up after two hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vaak.core.errors import UserError
from vaak.data.plan import BatchPlan
from vaak.data.reader import Address
from vaak.engine.gradient import accumulate_gradient, clear_gradients
from vaak.engine.memory import free_memory, is_out_of_memory

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer


def extremes(plan: BatchPlan, lengths: np.ndarray) -> tuple[int, int]:
    """Positions of the microbatches with the fewest and the most cells; the same one where all have equally many."""
    cells = plan.cells(lengths)
    return int(np.argmin(cells)), int(np.argmax(cells))


def rehearse(trainer: Trainer) -> None:
    """Run both through the model, and make room for what the optimizer keeps.

    Raises what the first step would have raised. Weights, buffers and the state of optimizers stay as they are.
    """
    epoch = trainer.position.epoch
    if trainer.config.curriculum is not None:  # whose hard examples, which may be the long ones, come last
        epoch = max(epoch, (trainer.total_steps - 1) // trainer.steps_per_epoch)
    plan = trainer.planner.plan(epoch)
    smallest, largest = extremes(plan, trainer.reader.dataset.lengths)
    buffers = [(buffer, buffer.clone()) for buffer in trainer.model.buffers()]
    trainer.model.train()
    if trainer.freezing is not None:
        trainer.freezing.apply(trainer.position.step + 1, trainer.position.epoch)
    _run(trainer, plan, epoch, smallest)
    allocate_optimizer_state(trainer)
    clear_gradients(trainer)
    if largest != smallest:
        _run(trainer, plan, epoch, largest)
        clear_gradients(trainer)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)


def _run(trainer: Trainer, plan: BatchPlan, epoch: int, position: int) -> None:
    """One microbatch of a plan, forward and backward, as if it were the first of the next step."""
    step = trainer.position.step + 1
    address = Address(step, 0, epoch, plan.microbatch(position), plan.occurrence(position))
    microbatch = trainer.reader[address]
    counts = microbatch.batch.totals() if microbatch.batch else {}
    accumulate_gradient(trainer, step, [microbatch], counts, rehearsing=True)


def allocate_optimizer_state(trainer: Trainer) -> None:
    """Have every optimizer that has no state yet make it, all zero, as its first step would begin with.

    The first update is where memory is most likely to run out, and in its midst weights can't be put back.
    Gradients of zero and a rate of zero leave the weights as they are.
    """
    for optimizer in trainer.optimizers:
        if not optimizer.state:
            for tried_before in (False, True):
                shortage = _make_state(optimizer)
                if shortage is None:
                    break
                optimizer.state.clear()
                free_memory(trainer.ranks.device)
                if tried_before:
                    raise UserError(
                        f"out of memory: the state of the optimizer {type(optimizer).__name__} does not fit beside the "
                        f"model ({shortage}); take a smaller model, or training.optimizer.type adafactor or sgd"
                    )


def _make_state(optimizer: torch.optim.Optimizer) -> str | None:
    """Make the state; return why there was no memory for it, if there wasn't."""
    before = [dict(group) for group in optimizer.param_groups]
    gradients = [parameter.grad for group in before for parameter in group["params"] if parameter.grad is not None]
    for gradient in gradients:
        gradient.zero_()
    for group in optimizer.param_groups:
        group |= {"lr": 0.0, "weight_decay": 0.0}
    try:
        optimizer.step()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return str(error).partition("\n")[0]
    finally:
        for group, options in zip(optimizer.param_groups, before, strict=True):
            group.update(options)
    for state in optimizer.state.values():
        state.update({name: _nothing(value) for name, value in state.items()})
    return None


def _nothing(value: Any) -> Any:
    """The same kind of value, all zero; in place where it is a tensor."""
    if isinstance(value, torch.Tensor):
        return value.zero_()
    return 0 if isinstance(value, int | float) else value
