"""The built-in losses besides cross-entropy: plain modules that give one number for each target.

``outputs`` are (target, ...) and ``targets`` of the same shape, or without a last dimension of one; over what comes
after the first dimension (the bands of a spectrum, the speakers of a frame) a target's loss is the mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MeanSquaredError(nn.Module):
    """Square of the difference."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.mse_loss(*_alike(outputs, targets), reduction="none"))


class MeanAbsoluteError(nn.Module):
    """Absolute difference."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.l1_loss(*_alike(outputs, targets), reduction="none"))


class SmoothL1(nn.Module):
    """Square below ``beta``, absolute above, divided by beta (Girshick 2015)."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta is {beta}; it must be 0 or more")
        self.beta = beta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.smooth_l1_loss(*_alike(outputs, targets), reduction="none", beta=self.beta))


class Huber(nn.Module):
    """Square below ``delta``, absolute above (Huber 1964)."""

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        if not 0 < delta < math.inf:
            raise ValueError(f"delta is {delta}; it must be above 0")
        self.delta = delta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.huber_loss(*_alike(outputs, targets), reduction="none", delta=self.delta))


class BinaryCrossEntropy(nn.Module):
    """Negative log-probability of yes or no, from logits; ``label_smoothing`` moves targets towards a half."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, answers = _alike(outputs, targets)
        answers = answers * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        return _per_target(F.binary_cross_entropy_with_logits(logits, answers, reduction="none"))


class FocalLoss(nn.Module):
    """Cross-entropy times (1 - p)^gamma, so that easy examples weigh less (Lin et al. 2017, equation 4).

    It is computed from the margin m between the target's logit and the log-sum of all others: p = sigmoid(m) and
    1 - p = sigmoid(-m). So 1 - p isn't rounded to 0 where p is nearly 1, where the derivative of its power is infinite
    for a gamma below 1.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        if not 0 <= gamma < math.inf:
            raise ValueError(f"gamma is {gamma}; it must be 0 or more")
        self.gamma = gamma

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, target = outputs.to(_exact(outputs)), targets[:, None]
        # Not -inf: where a target has no other class, or those others are -inf, the margin stays a number.
        others = logits.scatter(-1, target, torch.finfo(logits.dtype).min).logsumexp(-1)
        margin = logits.gather(-1, target).squeeze(-1) - others
        return -(self.gamma * F.logsigmoid(-margin)).exp() * F.logsigmoid(margin)


def _exact(outputs: Tensor) -> torch.dtype:
    """The type in which losses are computed: of 32 bits at least."""
    return torch.promote_types(outputs.dtype, torch.float32)


def _alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the same shape, so that nothing is broadcast by mistake, and in at least 32 bits."""
    exact = _exact(outputs)
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}")
    return outputs.to(exact), targets.to(exact)


def _per_target(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.ndim > 1 else values
