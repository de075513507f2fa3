"""Sinusoidal positions: sines and cosines whose wavelengths grow from 2π to 10,000 · 2π, added to the embeddings.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BASE = 10000.0


class Sinusoidal(nn.Module):
    """Adds each place's encoding; nothing is learned or stored, and rows may be of any length."""

    def __init__(self, width: int, *, in_halves: bool = False) -> None:
        """``in_halves`` puts all sines before all cosines, as Marian does."""
        super().__init__()
        self.width, self.in_halves = width, in_halves

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Shape and type of ``x`` ``(batch, time, width)`` kept; ``positions`` is ``(batch or 1, time)``."""
        precision = torch.promote_types(x.dtype, torch.float32)
        encoding = sinusoidal_encoding(positions, self.width, precision)
        if self.in_halves:
            encoding = torch.cat((encoding[..., ::2], encoding[..., 1::2]), -1)
        return x + encoding.to(x.dtype)


def sinusoidal_encoding(positions: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Coordinate 2i is ``sin(position / 10000^(2i / width))``, 2i + 1 its cosine, ``(*positions, width)``.

    >>> sinusoidal_encoding(torch.tensor([0, 1]), 4).round(decimals=2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8400, 0.5400, 0.0100, 1.0000]])
    """
    exponents = torch.arange(0, width, 2, device=positions.device).to(dtype) / width
    angles = positions[..., None].to(dtype) / BASE**exponents
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]
