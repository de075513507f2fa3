"""Rotary positions: queries and keys turn by an angle that grows with the position, so their product sees distance.

Each pair of a head's coordinates ``(x[i], x[i + width/2])`` turns by ``position · theta^(-2i / width)``.

A row longer than training's turns pairs by angles that no weight has met. Scaling brings them back: ``linear`` slows
all pairs down by the factor; ``ntk`` leaves the fastest pair as it is and slows the slowest down by the factor, the
others by something between, so near tokens stay as far apart as they were.

Sources: Su et al. 2021, "RoFormer", section 3.4.2; Chen et al. 2023, "Extending Context Window of Large Language Models
via Positional Interpolation" (linear); bloc97 2023, "NTK-Aware Scaled RoPE", and Peng et al. 2023, "YaRN", section 3.1
(ntk). Differs: the values of a pair are half a head apart, as in Llama's published weights.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosine and signed sine of every position's angles, each ``(batch or 1, time, 1, head_width)``."""

    cosine: Tensor
    sine: Tensor


def rotation(
    positions: Tensor,
    head_width: int,
    theta: float,
    *,
    scaling_type: Literal["linear", "ntk"] = "linear",
    scaling_factor: float = 1.0,
) -> Rotation:
    """The rotation of each position ``(batch or 1, time)``; the same for all layers, so made once in a forward pass.

    ``scaling_factor`` is how many times longer than in training rows are; 1 changes nothing. Angles are float32 even in
    a float64 model: that is what transformers computes, and exports agree to the last bit.

    ``positions`` are the places of tokens, ``head_width`` the number of values that are turned in
    pairs, and ``theta`` the base of the angles. ``scaling_type`` is how longer rows are fitted in.
    """
    exponents = torch.arange(0, head_width, 2, device=positions.device).float() / head_width
    if scaling_type == "ntk":
        theta = ntk_theta(theta, head_width, scaling_factor)
    frequencies = 1.0 / theta**exponents
    if scaling_type == "linear" and scaling_factor != 1:
        frequencies = frequencies / scaling_factor
    angles = positions[..., None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    return Rotation(torch.cat((cosine, cosine), -1).unsqueeze(-2), torch.cat((-sine, sine), -1).unsqueeze(-2))


def ntk_theta(theta: float, head_width: int, scaling_factor: float) -> float:
    """The base at which the slowest pair turns ``scaling_factor`` times as slowly, and the fastest as before.

    >>> ntk_theta(10000.0, 64, 1.0)
    10000.0
    """
    if head_width == 2:  # its one pair is the fastest
        return theta
    stretched: float = theta * scaling_factor ** (head_width / (head_width - 2))
    return stretched


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """``x`` ``(batch, time, heads, head_width)`` with every head turned to its position.

    Rolling by half a head swaps the members of each pair; the signs are in the sine. The result has the precision of
    the angles where ``x`` has less.
    """
    return torch.addcmul(x * by.cosine, x.roll(x.shape[-1] // 2, -1), by.sine)
