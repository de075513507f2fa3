"""How many steps training has at most, told from its sources before anything is prepared.

Text is counted by its bytes, since a token has one at least, and speech by utterances or windows: an upper bound, so
what doesn't fit into it can't fit into training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.task import Task


@dataclass(frozen=True)
class StepForecast:
    """At most so many examples and steps; of ``complete`` ones, all of the sources were read."""

    examples: int
    steps: int
    complete: bool = True


def steps_at_most(task: Task, training: TrainingConfig, enough: float = math.inf) -> StepForecast | None:
    """The most steps that training on the sources of a task may have; None where only preparing tells.

    Reading stops where there are ``enough`` steps. Raises what reading the sources raises.
    """
    if training.max_steps is not None:
        return None
    sizes, examples = task.examples_at_most(), 0.0
    if sizes is None:
        return None
    for size in sizes:
        examples += size
        if _steps(examples, training) >= enough:
            return StepForecast(math.ceil(examples), _steps(examples, training), complete=False)
    return StepForecast(math.ceil(examples), _steps(examples, training))


def demand_steps_for_warmup(task: Task, training: TrainingConfig) -> None:
    """Raise UserError where a warm-up that isn't to be shortened is longer than training can be."""
    scheduler = training.scheduler
    if scheduler.long_warmup == "shorten" or scheduler.warmup_steps < 2:
        return
    found = steps_at_most(task, training, enough=scheduler.warmup_steps)
    if found is not None and found.steps < scheduler.warmup_steps:
        raise UserError(
            f"training.scheduler.warmup_steps is {scheduler.warmup_steps}, but training has at most {found.steps} "
            f"steps ({found.examples} examples, {training.epochs} epochs); warm up for fewer steps (or warmup_ratio: "
            "0.1), train longer, or set training.scheduler.long_warmup to shorten"
        )


def _steps(examples: float, training: TrainingConfig) -> int:
    """The most steps of so many examples; batches by a budget or by classes may have one each."""
    rows = training.batch_size if training.batching.type in ("fixed", "packed") else 1
    microbatches = math.ceil(math.ceil(examples) / rows)
    return training.epochs * math.ceil(microbatches / training.gradient_accumulation_steps)
