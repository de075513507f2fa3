"""The ConvNeXt block over time, in which each channel has its own kernel.

    x ──depthwise convolution──▶ norm ──(· (1 + scale) + shift)──▶ wide ──GELU──▶ narrow ──· layer scale──▶ + x

Where a condition is given, it decides on scale and shift. What is padding is never read.

Sources: Liu et al. 2022, "A ConvNet for the 2020s"; Siuzdak 2024, "Vocos", section 3.3 (over time); Perez et al. 2018,
"FiLM: Visual Reasoning with a General Conditioning Layer" (scale and shift).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.convolution import TimeConvolution
from vaak.nn.feed_forward import GELU
from vaak.nn.norms import LayerNorm


class ConvNeXtBlock(nn.Module):
    """Adds to each frame what its neighbours make of it."""

    def __init__(
        self,
        width: int,
        inner_width: int,
        kernel_size: int = 7,
        *,
        layer_scale: float = 1.0,
        condition_width: int | None = None,
    ) -> None:
        """What is added is multiplied by a learned number per channel, at first ``layer_scale``.

        ``width`` is that of the frames, ``inner_width`` that between the two layers; ``kernel_size`` is odd.
        ``condition_width`` is that of a vector per row that scales and shifts the normalised frames.
        """
        super().__init__()
        self.over_time = TimeConvolution(width, width, kernel_size, groups=width)
        self.norm = LayerNorm(width, eps=1e-6)
        self.modulation = None if condition_width is None else nn.Linear(condition_width, 2 * width)
        self.pointwise = GELU(width, inner_width, bias=True)
        self.layer_scale = nn.Parameter(torch.full((width,), layer_scale))

    def forward(self, x: Tensor, mask: Tensor | None = None, condition: Tensor | None = None) -> Tensor:
        """Shape kept: ``(batch, time, width)``. ``mask`` is ``(batch, time)``, ``condition`` ``(batch, width)``."""
        y = self.norm(self.over_time(x, mask))
        if self.modulation is not None:
            assert condition is not None, "a block with a condition_width needs its condition"
            scale, shift = self.modulation(F.silu(condition))[:, None].chunk(2, -1)
            y = y * (1 + scale) + shift
        added: Tensor = x + self.layer_scale * self.pointwise(y)
        return added
