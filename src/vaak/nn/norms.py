"""Normalisation of vectors: by mean and deviation, by root mean square, or by length.

    LayerNorm   (x - mean(x)) / sqrt(var(x) + eps) · weight + bias
    RMSNorm     x / sqrt(mean(x²) + eps) · weight
    ScaleNorm   x / max(|x|, eps) · scale              one learned number; every vector comes out as long

All work in the higher precision of input and weights, so low-precision activations are normalised in float32. Under
autocast the stream between blocks and what is normalised have 32 bits; ``cast_inputs`` rounds it for the next products,
``cast_weights`` the weights of these.

Sources: Ba, Kiros and Hinton 2016, "Layer Normalization"; Zhang and Sennrich 2019, "Root Mean Square Layer
Normalization"; Nguyen and Salazar 2019, "Transformers without Tears: Improving the Normalization of Self-Attention".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vaak.core.torch_internals import is_fake


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


ROUNDED: set[type[nn.Module]] = {nn.Linear, nn.Conv1d, nn.Conv2d}
"""Layers that use their weights in nothing but a product that autocast rounds for; subclasses of theirs are added."""


@contextmanager
def cast_weights(*modules: nn.Module) -> Iterator[None]:
    """Within this context, in training under autocast, the layers of these modules have weights that are rounded.

    Autocast would round each by an operator, and its gradient by another: here these are one operator each, with the
    same bits. Gradients of all of them are kept in 16 bits until the last is known, so use it for a block, not a model.
    """
    places = _list_rounded(modules)
    weights = list(dict.fromkeys(layer._parameters[name] for layer, name in places))
    if len(weights) < 2:
        yield
        return
    dtype = torch.get_autocast_dtype(weights[0].device.type)  # type: ignore[union-attr]
    rounded: tuple[Tensor, ...] = _CastTogether.apply(dtype, *weights)  # type: ignore[no-untyped-call]
    kept = [(layer, name, layer._parameters[name]) for layer, name in places]
    of_weight = {id(weight): one for weight, one in zip(weights, rounded, strict=True)}
    for layer, name, weight in kept:
        layer._parameters[name] = of_weight[id(weight)]  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer, name, weight in kept:
            layer._parameters[name] = weight


def _list_rounded(modules: tuple[nn.Module, ...]) -> list[tuple[nn.Module, str]]:
    """Return the layers and the names of their parameters that autocast would round; none where all stays as it is."""
    module = modules[0]
    if not (module.training and torch.is_grad_enabled() and torch.is_autocast_cache_enabled()):
        return []
    first = next(module.parameters(), None)
    if first is None or not torch.is_autocast_enabled(first.device.type) or torch.compiler.is_compiling():
        return []
    layers = [layer for each in modules for layer in _iterate_rounded(each)]
    found = [
        (layer, name)
        for layer in layers
        if not layer._forward_pre_hooks and not layer._forward_hooks
        for name, weight in layer._parameters.items()
        # a part of a sharded weight has another type
        if type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.device == first.device
    ]
    return [] if any(is_fake(layer._parameters[name]) for layer, name in found) else found  # type: ignore[arg-type]


def _iterate_rounded(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) in ROUNDED:
        yield module
    elif type(module).__module__.startswith(("vaak.", "torch.nn.")):
        # others, as adapters of peft, look at the dtype of their layers' weights
        for child in module.children():
            yield from _iterate_rounded(child)


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        # what no example has reached has no gradient, rather than one of 0
        ctx.set_materialize_grads(False)
        return _converted(weights, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        converted = iter(_converted([one for one in gradients if one is not None], torch.float32))
        return None, *(None if one is None else next(converted) for one in gradients)


def _converted(tensors: tuple[Tensor, ...] | list[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    found = tuple(torch.empty_like(one, dtype=dtype) for one in tensors)
    if found:
        torch._foreach_copy_(found, tensors)
    return found
