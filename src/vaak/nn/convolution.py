"""A convolution over time that keeps the length."""

from __future__ import annotations

from torch import Tensor, nn


class TimeConvolution(nn.Conv1d):
    """A convolution of ``(batch, time, width)`` to ``(batch, time, out_width)``; ``kernel_size`` is odd.

    With as many ``groups`` as channels, each has its own kernel. ``bias`` adds a number to each channel.
    """

    def __init__(self, width: int, out_width: int, kernel_size: int, groups: int = 1, bias: bool = True) -> None:
        assert kernel_size % 2, "a frame stands in the middle of its kernel"
        super().__init__(width, out_width, kernel_size, padding=kernel_size // 2, groups=groups, bias=bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """What is not in ``mask`` ``(batch, time)`` counts as 0, like what is beyond the ends."""
        x = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)
