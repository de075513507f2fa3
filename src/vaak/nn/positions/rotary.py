"""Rotary positions: queries and keys turn by an angle that grows with the position, so their product sees distance.

Each pair of a head's coordinates ``(x[i], x[i + width/2])`` turns by ``position · theta^(-2i / width)``.

A row longer than training's turns pairs by angles that no weight has met. Scaling brings them back: ``linear`` slows
all pairs down by the factor; ``ntk`` leaves the fastest pair as it is and slows the slowest down by the factor, the
others by something between, so near tokens stay as far apart as they were. ``llama3`` and ``yarn`` count how often a
pair turns in the length of training: below a bound it is slowed down by the whole factor, above another not at all, and
between by a mixture, which is linear in the turns (llama3) or in the number of the pair (yarn). ``yarn`` also
multiplies what is turned by ``0.1 ln(factor) + 1``.

Sources: Su et al. 2021, "RoFormer", section 3.4.2; Chen et al. 2023, "Extending Context Window of Large Language Models
via Positional Interpolation" (linear); bloc97 2023, "NTK-Aware Scaled RoPE", and Peng et al. 2023, "YaRN", sections 3.1
(ntk), 3.2 (llama3; Llama Team 2024, "The Llama 3 Herd of Models") and 3.4 (yarn, as in its published code). Differs:
the values of a pair are half a head apart, as in Llama's published weights.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosine and signed sine of every position's angles, each ``(batch or 1, time, 1, head_width)``."""

    cosine: Tensor
    sine: Tensor


class Scaling(NamedTuple):
    """How rows that are ``factor`` times longer than in training are fitted in; 1 changes nothing.

    ``original_length`` (tokens) and ``bounds`` (turns in it) are read by llama3 and yarn.
    """

    type: Literal["linear", "ntk", "llama3", "yarn"] = "linear"
    factor: float = 1.0
    original_length: int = 8192
    bounds: tuple[float, float] | None = None

    @property
    def turns(self) -> tuple[float, float]:
        """The bounds, with their null filled in."""
        return self.bounds or ((1.0, 32.0) if self.type == "yarn" else (1.0, 4.0))


def rotation(positions: Tensor, head_width: int, theta: float, scaling: Scaling | None = None) -> Rotation:
    """The rotation of each position ``(batch or 1, time)``; the same for all layers, so made once in a forward pass.

    Angles are float32 even in a float64 model: that is what transformers computes, and exports agree to the last bit.

    ``positions`` are the places of tokens, ``head_width`` the number of values that are turned in
    pairs, and ``theta`` the base of the angles. ``scaling`` is how longer rows are fitted in.
    """
    kind, factor, *_ = scaling = scaling or Scaling()
    exponents = torch.arange(0, head_width, 2, device=positions.device).float() / head_width
    if kind == "ntk":
        theta = ntk_theta(theta, head_width, factor)
    frequencies = 1.0 / theta**exponents
    if kind == "linear" and factor != 1:
        frequencies = frequencies / factor
    elif kind in ("llama3", "yarn") and factor != 1:
        slowed = _slowed(frequencies, theta, scaling)
        frequencies = frequencies * (1 - slowed) + frequencies / factor * slowed
    angles = positions[..., None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    if kind == "yarn" and factor != 1:
        cosine, sine = cosine * yarn_factor(factor), sine * yarn_factor(factor)
    return Rotation(torch.cat((cosine, cosine), -1).unsqueeze(-2), torch.cat((-sine, sine), -1).unsqueeze(-2))


def _slowed(frequencies: Tensor, theta: float, scaling: Scaling) -> Tensor:
    """How much of the factor each pair is slowed down by, from 0 to 1, ``(pair,)``."""
    (low, high), length, width = scaling.turns, scaling.original_length, 2 * len(frequencies)
    if scaling.type == "llama3":
        return 1 - ((length * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    first, last = (width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (high, low))
    first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
    pairs = torch.arange(len(frequencies), device=frequencies.device, dtype=torch.float32)
    return ((pairs - first) / (last - first if last != first else 0.001)).clamp(0, 1)


def yarn_factor(factor: float) -> float:
    """What ``yarn`` multiplies turned queries and keys by."""
    return 0.1 * math.log(factor) + 1.0


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
