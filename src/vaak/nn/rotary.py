"""Rotary positions: queries and keys turn by an angle that grows with the position, so their product sees distance.

Each pair of a head's coordinates ``(x[i], x[i + width/2])`` turns by ``position · theta^(-2i / width)``.

Source: Su et al. 2021, "RoFormer", section 3.4.2. Differs: pairs lie half a head apart, as
in Llama's published weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosine and signed sine of every position's angles, each ``(batch or 1, time, 1, head_width)``."""

    cosine: Tensor
    sine: Tensor


def rotation(positions: Tensor, head_width: int, theta: float) -> Rotation:
    """The rotation of each position ``(batch or 1, time)``; the same for all layers, so made once in a forward pass.

    Angles are float32 even in a float64 model: that is what transformers computes, and exports agree to the last bit.
    """
    exponents = torch.arange(0, head_width, 2, device=positions.device).float() / head_width
    angles = positions[..., None].float() * (1.0 / theta**exponents)
    cosine, sine = angles.cos(), angles.sin()
    return Rotation(torch.cat((cosine, cosine), -1).unsqueeze(-2), torch.cat((-sine, sine), -1).unsqueeze(-2))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """``x`` ``(batch, time, heads, head_width)`` with every head turned to its position.

    Rolling by half a head swaps the members of each pair; the signs are in the sine. The result has the precision of
    the angles where ``x`` has less.
    """
    return torch.addcmul(x * by.cosine, x.roll(x.shape[-1] // 2, -1), by.sine)
