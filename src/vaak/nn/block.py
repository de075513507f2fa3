"""A transformer block: attention, in a decoder of an encoder's output also cross-attention, and feed-forward.

    pre         x + layer(norm(x))
    post        norm(x + layer(x))
    sandwich    x + norm'(layer(norm(x)))

Dropout falls on what a layer adds. Sources: Vaswani et al. 2017, "Attention Is All You Need" (post); Xiong et al. 2020,
"On Layer Normalization in the Transformer Architecture" (pre); Ding et al. 2021, "CogView", section 2.4 (sandwich).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from vaak.nn.attention import Attention
from vaak.nn.config import ConvolutionalStackConfig, StackConfig
from vaak.nn.decoding.cache import LayerCache
from vaak.nn.feed_forward import inner_width, make_feed_forward
from vaak.nn.kernels.squared_norms import SquaredNorms
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.norms import make_norm
from vaak.nn.positions.rotary import Rotation


class Surroundings(NamedTuple):
    """What all blocks of a stack see alike in one forward pass."""

    visibility: Visibility
    rotation: Rotation | None = None
    memory: Tensor | None = None
    memory_visibility: Visibility | None = None
    norms: SquaredNorms | None = None
    memory_norms: SquaredNorms | None = None
    mask: Tensor | None = None
    """``(batch, time)``, True where a token is real; None where all are."""


class Block(nn.Module):
    """One block; with ``memory_width`` it looks at vectors of that width between attention and feed-forward."""

    def __init__(self, config: StackConfig, memory_width: int | None = None, cross_type: str = "softmax") -> None:
        super().__init__()
        self.placement = config.norm_placement
        self.attention_norm = self._norm(config)
        self.attention = Attention(config, config.attention_type)
        self.cross_attention = None
        if memory_width is not None:
            self.cross_attention_norm = self._norm(config)
            self.cross_attention = Attention(config, cross_type, memory_width)
        self.feed_forward_norm = self._norm(config)
        self.feed_forward = make_feed_forward(
            config.feed_forward_type,
            config.d_model,
            inner_width(config.d_model, config.d_ff, config.feed_forward_type),
            config.bias,
            config.feed_forward_kernel if isinstance(config, ConvolutionalStackConfig) else 1,
        )
        if config.norm_placement == "sandwich":
            self.attention_output_norm = self._norm(config)
            if memory_width is not None:
                self.cross_attention_output_norm = self._norm(config)
            self.feed_forward_output_norm = self._norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        around: Surroundings,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Tensor:
        """Shape kept: ``(batch, time, width)``."""
        visibility, rotation, memory, memory_visibility, norms, memory_norms, mask = around
        own = None if norms is None else (norms, norms)
        x = self._add(
            "attention", x, lambda y: self.attention(y, visibility, rotation=rotation, cache=cache, norms=own)
        )
        if self.cross_attention is not None:
            cross, across = self.cross_attention, None
            if norms is not None and memory_norms is not None:
                across = (norms, memory_norms)
            x = self._add(
                "cross_attention",
                x,
                lambda y: cross(y, memory_visibility, memory=memory, cache=cross_cache, norms=across),
            )
        return self._add("feed_forward", x, lambda y: self.feed_forward(y, mask))

    def _add(self, name: str, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The stream with what a layer adds to it."""
        norm: nn.Module = getattr(self, f"{name}_norm")
        if self.placement == "post":
            normed: Tensor = norm(x + self.dropout(layer(x)))
            return normed
        y = layer(norm(x))
        if self.placement == "sandwich":
            y = getattr(self, f"{name}_output_norm")(y)
        added: Tensor = x + self.dropout(y)
        return added

    @staticmethod
    def _norm(config: StackConfig) -> nn.Module:
        return make_norm(config.norm_type, config.d_model, config.norm_eps)
