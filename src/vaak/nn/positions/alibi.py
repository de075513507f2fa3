"""ALiBi: attention's scores fall with the distance, in each head by its own slope; nothing is learned.

Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
section 3, and its code for numbers of heads that are not a power of two. Differs: where later tokens are seen too, they
count by their distance like earlier ones (the paper has decoders only).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Alibi(nn.Module):
    """``-slope · |distance|`` for every head."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(self, distance: Tensor) -> Tensor:
        """What is added to the scores, float32 ``(heads, query, key)``, for distances ``(query, key)``."""
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device=distance.device)
        return -slopes[:, None, None] * distance.abs()


def alibi_slopes(num_heads: int) -> list[float]:
    """The geometric sequence that ends at 1/256; for other numbers, filled up by every second slope of twice as many.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    if power == num_heads:
        return slopes
    return slopes + alibi_slopes(2 * power)[::2][: num_heads - power]
