"""The gated feed-forward layer: one projection opens and closes the other's channels.

Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU). Without biases, as in Llama.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def gated_width(width: int, multiple_of: int = 32) -> int:
    """The inner width at which three matrices weigh what two of ``4 · width`` do: 8/3 of it, rounded up.

    >>> gated_width(512)
    1376
    """
    return -(-8 * width // (3 * multiple_of)) * multiple_of


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) · up(x))``."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner_width, bias=False)
        self.up = nn.Linear(width, inner_width, bias=False)
        self.down = nn.Linear(inner_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape kept: ``(batch, time, width)``."""
        return self.down(F.silu(self.gate(x)) * self.up(x))
