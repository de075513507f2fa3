"""The built-in losses besides cross-entropy: plain modules that give one number for each target.

``outputs`` are (target, ...) and ``targets`` of the same shape, or without a last dimension of one; over what comes
after the first dimension (the bands of a spectrum, the speakers of a frame) a target's loss is the mean.
"""

from __future__ import annotations

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
        self.beta = beta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.smooth_l1_loss(*_alike(outputs, targets), reduction="none", beta=self.beta))


class Huber(nn.Module):
    """Square below ``delta``, absolute above (Huber 1964)."""

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self.delta = delta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_target(F.huber_loss(*_alike(outputs, targets), reduction="none", delta=self.delta))


class BinaryCrossEntropy(nn.Module):
    """Negative log-probability of yes or no, from logits; ``label_smoothing`` moves targets towards a half."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, answers = _alike(outputs, targets)
        answers = answers * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        return _per_target(F.binary_cross_entropy_with_logits(logits, answers, reduction="none"))


class FocalLoss(nn.Module):
    """Cross-entropy times (1 - p)^gamma, so that what is known already weighs less (Lin et al. 2017, equation 4)."""

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        exact = torch.promote_types(outputs.dtype, torch.float32)
        log_probability = torch.log_softmax(outputs, -1, dtype=exact).gather(-1, targets[:, None]).squeeze(-1)
        return -((1 - log_probability.exp()) ** self.gamma) * log_probability


def _alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the same shape, so that nothing is broadcast by mistake, and in at least 32 bits."""
    exact = torch.promote_types(outputs.dtype, torch.float32)
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}")
    return outputs.to(exact), targets.to(exact)


def _per_target(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.ndim > 1 else values
