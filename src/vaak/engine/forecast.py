"""Bounds of a training before it begins: the bytes kept between steps, and the number of steps.

Steps are an upper bound: text is counted by its bytes, since a token has one at least, and speech by utterances or
windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from vaak.config.optimization import UPDATE_RULES, two_moments
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.task import Task
from vaak.data.batching import largest_rows
from vaak.engine.optim.optimizers import trained_parameters


@dataclass(frozen=True)
class StaticMemory:
    """Bytes that training holds whatever the batch.

    ``average`` is that of the weights (training.ema), ``exact_sums`` are those of training.distributed.reduction.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    exact_sums: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.average + self.exact_sums

    def of_each(self, processes: int) -> dict[str, int]:
        """Return the bytes of each of several processes, by ``training.distributed.strategy``."""
        updated = -(-self.optimizer // processes)
        return {
            "ddp": self.total,
            "zero1": self.total - self.optimizer + updated,
            "fsdp": -(-self.total // processes),
        }


def at_rest(model: nn.Module, training: TrainingConfig) -> StaticMemory:
    """Return the bytes of the model, and of the state kept for its trained parameters."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    trained = trained_parameters(model)
    numbers = sum(item.parameter.numel() for item in trained)
    rule, options = UPDATE_RULES.get(training.optimizer.type), training.optimizer
    # A user's own rule, which is unknown, is taken to be like AdamW.
    keeps = rule.keeps if rule is not None else two_moments
    return StaticMemory(
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        gradients=sum(item.parameter.numel() * item.parameter.element_size() for item in trained),
        optimizer=sum(
            keeps(item.parameter.shape, item.is_hidden_matrix, options) * item.parameter.element_size()
            for item in trained
        ),
        average=4 * numbers if training.ema is not None else 0,
        exact_sums=8 * numbers if training.distributed.reduction == "exact" else 0,
    )


@dataclass(frozen=True)
class StepForecast:
    """The most examples and steps that training can have; ``complete`` if all sources were read."""

    examples: int
    steps: int
    complete: bool = True


def steps_at_most(task: Task, training: TrainingConfig, enough: float = math.inf) -> StepForecast | None:
    """Return the most steps that training on the sources of a task may have; None if only preparing tells.

    Reading stops where there are ``enough`` steps. Raises what reading the sources raises.
    """
    if training.max_steps is not None:
        return None
    sizes, examples, rows = task.examples_at_most(), 0.0, rows_at_least(task, training)
    if sizes is None:
        return None
    for size in sizes:
        examples += size
        if _steps(examples, training, rows) >= enough:
            return StepForecast(math.ceil(examples), _steps(examples, training, rows), complete=False)
    return StepForecast(math.ceil(examples), _steps(examples, training, rows))


def rows_at_least(task: Task, training: TrainingConfig) -> int:
    """Return the fewest rows of a full microbatch: under a budget, those of the longest examples; by classes, one."""
    batching = training.batching
    if batching.type == "stratified":
        return 1
    has_budget = batching.max_tokens is not None or batching.max_duration is not None
    if batching.type != "bucketed" or not has_budget:
        return training.batch_size
    longest = task.longest_example()
    return 1 if longest is None else largest_rows(training, longest)


def check_warmup(task: Task, training: TrainingConfig) -> str | None:
    """What can't be known yet of a warm-up that must fit into training, if it is so; None if it is known to fit.

    Raises UserError if it is longer than training can be.
    """
    scheduler = training.scheduler
    if scheduler.long_warmup == "shorten" or scheduler.warmup_steps < 2 or training.max_steps is not None:
        return None
    found = steps_at_most(task, training, enough=scheduler.warmup_steps)
    what = f"whether training has the {scheduler.warmup_steps} steps of its warm-up is known once the data are prepared"
    if found is None:
        return what
    if found.steps < scheduler.warmup_steps:
        raise UserError(
            f"training.scheduler.warmup_steps is {scheduler.warmup_steps}, but training has at most {found.steps} "
            f"steps ({found.examples} examples, {training.epochs} epochs); warm up for fewer steps (or warmup_ratio: "
            "0.1), train longer, or set training.scheduler.long_warmup to shorten"
        )
    return what


def require_steps_for_warmup(task: Task, training: TrainingConfig) -> None:
    """Raise UserError if a warm-up that isn't to be shortened is longer than training can be."""
    check_warmup(task, training)


def _steps(examples: float, training: TrainingConfig, rows: int) -> int:
    """Return the most steps for ``examples``, in microbatches of at least ``rows``, except the last ones."""
    number = math.ceil(examples)
    buckets = training.batching.num_buckets if training.batching.type == "bucketed" else 0
    # Each bucket has one that isn't full.
    microbatches = min(number, math.ceil(number / rows) + buckets)
    return training.epochs * math.ceil(microbatches / training.gradient_accumulation_steps)
