"""Root-mean-square normalisation: a vector divided by its root mean square, times a learned gain.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization". Unlike layer normalisation it subtracts no
mean and has no bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension, in the higher of both precisions."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Shape kept: ``(..., width)``."""
        precise = x.to(torch.promote_types(x.dtype, self.weight.dtype))
        return F.rms_norm(precise, self.weight.shape, self.weight.to(precise.dtype), self.eps)
