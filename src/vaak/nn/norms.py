"""Normalisation of vectors: by mean and deviation, by root mean square, or by length.

    LayerNorm   (x - mean(x)) / sqrt(var(x) + eps) · weight + bias
    RMSNorm     x / sqrt(mean(x²) + eps) · weight
    ScaleNorm   x / max(|x|, eps) · scale              one learned number; every vector comes out as long

All work in the higher precision of input and weights, so low-precision activations are normalised in float32. Under
autocast the stream between blocks and what is normalised have 32 bits; ``cast_inputs`` rounds it for the next products.

Sources: Ba, Kiros and Hinton 2016, "Layer Normalization"; Zhang and Sennrich 2019, "Root Mean Square Layer
Normalization"; Nguyen and Salazar 2019, "Transformers without Tears: Improving the Normalization of Self-Attention".
"""

from __future__ import annotations

from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    """``(x - mean(x)) / sqrt(var(x) + eps) · weight + bias`` over the last dimension."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        precise = x.to(torch.promote_types(x.dtype, self.weight.dtype))
        weight, bias = self.weight.to(precise.dtype), self.bias.to(precise.dtype)
        return F.layer_norm(precise, weight.shape, weight, bias, self.eps)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension, without mean subtraction or bias."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        weight: Tensor = self.weight
        if x.dtype != weight.dtype:
            precise = torch.promote_types(x.dtype, weight.dtype)
            x, weight = x.to(precise), weight.to(precise)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class ScaleNorm(nn.Module):
    """``x / max(|x|, eps) · scale`` over the last dimension; ``scale`` begins as sqrt(width), so coordinates as one."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), width**0.5))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        precise = x.to(torch.promote_types(x.dtype, self.scale.dtype))
        return F.normalize(precise, dim=-1, eps=self.eps) * self.scale.to(precise.dtype)


NORMS: dict[str, type[LayerNorm | RMSNorm | ScaleNorm]] = {
    "layernorm": LayerNorm,
    "rmsnorm": RMSNorm,
    "scalenorm": ScaleNorm,
}


def make_norm(norm_type: str, width: int, eps: float) -> nn.Module:
    """The normalisation of vectors of ``width`` that ``norm_type`` names."""
    return NORMS[norm_type](width, eps)


def cast_inputs(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """Return ``x`` for each of several layers: under autocast, rounded once for all of them.

    Autocast would round it for each, and each would keep its own copy for the backward pass. Their gradients are still
    added up in 32 bits. Adapters get the unrounded ``x``.
    """
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype != torch.float32:
        return (x,) * len(layers)
    if not all(isinstance(layer, nn.Linear | nn.Conv1d) for layer in layers):
        return (x,) * len(layers)
    inputs: tuple[Tensor, ...] = _RoundedOnce.apply(  # type: ignore[no-untyped-call]
        x, torch.get_autocast_dtype(kind), len(layers)
    )
    return inputs


class _RoundedOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, number: int) -> tuple[Tensor, ...]:
        rounded = x.to(dtype)
        return (rounded, *(rounded.view_as(rounded) for _ in range(number - 1)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        *rest, last = gradients
        total = last.float()
        for one in reversed(rest):
            # This is autograd's order, which begins with the last layer.
            total = total + one
        return total, None, None
