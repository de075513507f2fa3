"""Networks whose every weight matters, vectors to feed them, and a comparison to rounding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def draw_weights(module: nn.Module, std: float = 0.3) -> None:
    """Draw all weights larger than training begins with, vectors around 1, so that 0 or 1 hides no mistake."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=std)


def vectors(*shape: int) -> Tensor:
    """Vectors in float64, the same for the same shape."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Equal but for rounding in float64."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
