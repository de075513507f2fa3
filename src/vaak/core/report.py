"""What one optimizer step reports to callbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def rate_name(unit: str) -> str:
    """The name of a rate: units per second.

    >>> rate_name("token"), rate_name("targets")
    ('tokens_per_second', 'targets_per_second')
    """
    return f"{unit.removesuffix('s')}s_per_second"


@dataclass(frozen=True)
class StepReport:
    """One optimizer step, over all its microbatches and ranks.

    Losses and the gradient norm stay tensors on the device: reading one (``float``) waits for the device, so only
    logging does it. ``losses`` holds each named term divided by the count of its unit, ``units``. ``skipped`` says why
    the weights didn't change: ``overflow`` of fp16, ``non_finite``, or None where they did. For a step with several
    objectives, ``gradient_norms`` has each one's norm by its name. ``splittable`` is False where this rank saw
    a loss that isn't a sum over examples. ``seconds`` is the time since the report before, of which ``seconds_aside``
    passed in what was due between the steps: evaluations, and the making of checkpoints.
    """

    step: int
    epoch: int
    losses: dict[str, torch.Tensor]
    units: dict[str, str]
    counts: dict[str, float]
    learning_rate: float
    gradient_norm: torch.Tensor
    loss_scale: float | None
    skipped: str | None
    seconds: float
    ends_epoch: bool
    gradient_norms: dict[str, torch.Tensor] = field(default_factory=dict)
    splittable: bool = True
    seconds_aside: float = 0.0
