"""Cross-entropy over many classes that keeps no second copy of the logits.

torch keeps the log-probabilities, in 32 bits, from the forward to the backward pass: of 16-bit logits that is twice
their size again. Here probabilities are made a few rows at a time, in both passes, and never kept; the backward pass
writes the gradient straight into a tensor of the logits' type. On a CPU this takes half of torch's time, since rows
stay in the cache. Few logits are left to torch, which is quicker with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORED = -100  # torch's value for positions without a target
CPU_LOGITS_AT_ONCE, LOGITS_AT_ONCE = 2**20, 2**24


class CrossEntropy(nn.Module):
    """Negative log-probability of the target class; ``label_smoothing`` spreads that much of it over all classes.

    ``weight`` has a factor for each class: of its targets and, with smoothing, of its share. A mean is then the sum
    over the sum of the targets' weights, as in torch. Source: Szegedy et al. 2016, "Rethinking the Inception
    Architecture", section 7, as in torch.
    """

    sums_valid = True
    weight: Tensor | None

    def __init__(self, label_smoothing: float = 0.0, weight: Sequence[float] | None = None) -> None:
        super().__init__()
        if isinstance(weight, str):
            raise ValueError(f"weight is {weight}, and there are no training texts to count; expected a list")
        if weight is not None and not all(0 <= one < math.inf for one in weight):
            raise ValueError("a weight is below 0 or infinite")
        exact = None if weight is None else torch.tensor(weight, dtype=torch.float64)
        self.register_buffer("weight", exact, persistent=False)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
        """The sum of the losses of ``targets`` (...) that are ``valid`` (...), or not -100; logits (..., classes)."""
        logits = outputs.reshape(-1, outputs.shape[-1])
        if self.weight is not None:
            return self._weighted(logits, targets.reshape(-1), None if valid is None else valid.reshape(-1))
        marked = (targets if valid is None else torch.where(valid, targets, IGNORED)).reshape(-1)
        if logits.numel() <= _at_once(logits):
            exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return F.cross_entropy(
                exact, marked, ignore_index=IGNORED, reduction="sum", label_smoothing=self.label_smoothing
            )
        losses: Tensor = _CrossEntropy.apply(logits, marked, self.label_smoothing)  # type: ignore[no-untyped-call]
        return losses.sum()

    def _weighted(self, logits: Tensor, targets: Tensor, valid: Tensor | None) -> Tensor:
        assert self.weight is not None
        self.weight = self.weight.to(logits.device)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        marked = targets if valid is None else torch.where(valid, targets, IGNORED)
        return F.cross_entropy(
            exact,
            marked,
            weight=self.weight.to(exact.dtype),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )


class _CrossEntropy(torch.autograd.Function):
    """Losses (row,) of logits (row, class), 0 where the target is below 0."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        exact = torch.promote_types(logits.dtype, torch.float32)
        losses = torch.zeros(len(targets), dtype=exact, device=logits.device)
        for rows in _pieces(logits):
            log_probabilities = torch.log_softmax(logits[rows], -1, dtype=exact)
            chosen = log_probabilities.gather(1, targets[rows, None].clamp(min=0)).squeeze(1)
            losses[rows] = -(1 - smoothing) * chosen
            if smoothing:
                losses[rows] -= smoothing * log_probabilities.mean(-1)
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        return losses.masked_fill_(targets < 0, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        weights = gradients.masked_fill(targets < 0, 0.0)
        result = torch.empty_like(logits)
        for rows in _pieces(logits):
            difference = torch.softmax(logits[rows], -1, dtype=gradients.dtype)
            target = targets[rows, None].clamp(min=0)
            difference.scatter_(1, target, difference.gather(1, target) - (1 - ctx.smoothing))
            if ctx.smoothing:
                difference -= ctx.smoothing / logits.shape[1]
            result[rows] = difference.mul_(weights[rows, None])
        return result, None, None


def _at_once(logits: Tensor) -> int:
    """How many logits keep the device busy and still fit in a processor's cache."""
    return CPU_LOGITS_AT_ONCE if logits.device.type == "cpu" else LOGITS_AT_ONCE


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Rows a few at a time."""
    size = max(1, _at_once(logits) // logits.shape[1])
    return (slice(start, start + size) for start in range(0, len(logits), size))
