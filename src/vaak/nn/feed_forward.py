"""The feed-forward layer: each token alone, or with its neighbours, widened, bent and narrowed again.

    plain      down(activation(up(x)))             GELU, ReLU, SiLU
    gated      down(activation(gate(x)) · up(x))   SwiGLU, GEGLU: one projection opens and closes the other's channels
    ConvNeXt   x + scale · down(GELU(up(norm(convolution(x)))))     the convolution depthwise, over time

With a ``kernel_size``, ``up`` and ``gate`` are convolutions (Ren et al. 2021, "FastSpeech 2": 9 tokens, and 1 on the
way down). A condition of ConvNeXt scales and shifts what is normalised. What is padding is never read.

Sources: Vaswani et al. 2017, "Attention Is All You Need" (ReLU); Hendrycks and Gimpel 2016, "Gaussian Error Linear
Units (GELUs)", the exact form and that with tanh; Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU, GEGLU); Liu
et al. 2022, "A ConvNet for the 2020s"; Siuzdak 2024, "Vocos", section 3.3 (over time); Perez et al. 2018, "FiLM: Visual
Reasoning with a General Conditioning Layer" (scale and shift).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated as Bool
from typing import Annotated as Float

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.config import FACTORS_END
from vaak.nn.norms import LayerNorm, inputs_of

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """``down(activation(up(x)))``."""

    activation: Activation

    def __init__(self, width: int, inner_width: int, bias: bool = False, kernel_size: int = 1) -> None:
        super().__init__()
        self.up = _widening(width, inner_width, bias, kernel_size)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return the output of each token; a kernel reads its neighbours where ``mask`` is True."""
        out: Tensor = self.down(self.activation(_widened(self.up, x, mask)))
        return out


class GatedFeedForward(nn.Module):
    """``down(activation(gate(x)) · up(x))``."""

    activation: Activation

    def __init__(self, width: int, inner_width: int, bias: bool = False, kernel_size: int = 1) -> None:
        super().__init__()
        self.gate = _widening(width, inner_width, bias, kernel_size)
        self.up = _widening(width, inner_width, bias, kernel_size)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return the output of each token; a kernel reads its neighbours where ``mask`` is True."""
        of_gate, of_up = inputs_of(x, self.gate, self.up)
        out: Tensor = self.down(self.activation(_widened(self.gate, of_gate, mask)) * _widened(self.up, of_up, mask))
        return out


def _widening(width: int, inner_width: int, bias: bool, kernel_size: int) -> nn.Module:
    if kernel_size == 1:
        return nn.Linear(width, inner_width, bias=bias)
    return TimeConvolution(width, inner_width, kernel_size, bias=bias)


def _widened(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    wide: Tensor = layer(x, mask) if isinstance(layer, TimeConvolution) else layer(x)
    return wide


class GELU(FeedForward):
    """``down(gelu(up(x)))``."""

    activation = staticmethod(F.gelu)


class GELUTanh(FeedForward):
    """``down(gelu(up(x)))`` with GPT-2's approximation of gelu by tanh."""

    activation = staticmethod(partial(F.gelu, approximate="tanh"))


class ReLU(FeedForward):
    """``down(relu(up(x)))``."""

    activation = staticmethod(F.relu)


class SiLU(FeedForward):
    """``down(silu(up(x)))``."""

    activation = staticmethod(F.silu)


class SwiGLU(GatedFeedForward):
    """``down(silu(gate(x)) · up(x))``."""

    activation = staticmethod(F.silu)


class GEGLU(GatedFeedForward):
    """``down(gelu(gate(x)) · up(x))``."""

    activation = staticmethod(F.gelu)


class GEGLUTanh(GatedFeedForward):
    """``down(gelu(gate(x)) · up(x))`` with the approximation of gelu by tanh."""

    activation = staticmethod(partial(F.gelu, approximate="tanh"))


FEED_FORWARDS: dict[str, type[FeedForward | GatedFeedForward]] = {
    "gelu": GELU,
    "gelu_tanh": GELUTanh,
    "relu": ReLU,
    "silu": SiLU,
    "swiglu": SwiGLU,
    "geglu": GEGLU,
    "geglu_tanh": GEGLUTanh,
}


def make_feed_forward(
    feed_forward_type: str, width: int, inner_width: int, bias: bool, kernel_size: int = 1
) -> nn.Module:
    """The layer that ``feed_forward_type`` names, from ``width`` to ``inner_width`` and back, with a ``bias`` or none.

    Its first part sees ``kernel_size`` tokens, an odd number.
    """
    return FEED_FORWARDS[feed_forward_type](width, inner_width, bias, kernel_size)


def inner_width(d_model: int, d_ff: int | None, feed_forward_type: str) -> int:
    """The width that ``d_ff`` means: itself, below 32 a multiple of ``d_model``, None the layer's default.

    >>> inner_width(512, 2048, "gelu"), inner_width(512, 4, "gelu"), inner_width(512, None, "swiglu")
    (2048, 2048, 1376)
    """
    if d_ff is None:
        is_gated = issubclass(FEED_FORWARDS[feed_forward_type], GatedFeedForward)
        return gated_width(d_model) if is_gated else 4 * d_model
    return d_ff * d_model if d_ff < FACTORS_END else d_ff


def gated_width(width: int, multiple_of: int = 32) -> int:
    """The inner width at which three matrices weigh what two of ``4 · width`` do: 8/3 of it, rounded up.

    >>> gated_width(512)
    1376
    """
    return -(-8 * width // (3 * multiple_of)) * multiple_of


class TimeConvolution(nn.Conv1d):
    """A convolution of ``(batch, time, width)`` to ``(batch, time, out_width)``; ``kernel_size`` is odd.

    With as many ``groups`` as channels, each has its own kernel. ``bias`` adds a number to each channel.
    """

    def __init__(self, width: int, out_width: int, kernel_size: int, groups: int = 1, bias: bool = True) -> None:
        assert kernel_size % 2, "a frame stands in the middle of its kernel"
        super().__init__(width, out_width, kernel_size, padding=kernel_size // 2, groups=groups, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time out_width"]:
        """Return the convolution over time; what is not in ``mask`` counts as 0, like what is beyond the ends."""
        x = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


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
        """Multiply what is added by a learned number per channel, at first ``layer_scale``.

        ``width`` is that of the frames, ``inner_width`` that between the two layers; ``kernel_size`` is odd.
        ``condition_width`` is that of a vector per row that scales and shifts the normalised frames.
        """
        super().__init__()
        self.over_time = TimeConvolution(width, width, kernel_size, groups=width)
        self.norm = LayerNorm(width, eps=1e-6)
        self.modulation = None if condition_width is None else nn.Linear(condition_width, 2 * width)
        self.pointwise = GELU(width, inner_width, bias=True)
        self.layer_scale = nn.Parameter(torch.full((width,), layer_scale))

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        mask: Bool[Tensor, "batch time"] | None = None,
        condition: Float[Tensor, "batch condition_width"] | None = None,
    ) -> Float[Tensor, "batch time width"]:
        """Return ``x`` with what each frame's neighbours add to it."""
        y = self.norm(self.over_time(x, mask))
        if self.modulation is not None:
            assert condition is not None, "a block with a condition_width needs its condition"
            scale, shift = self.modulation(F.silu(condition))[:, None].chunk(2, -1)
            y = y * (1 + scale) + shift
        added: Tensor = x + self.layer_scale * self.pointwise(y)
        return added
