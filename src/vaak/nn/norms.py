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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vaak.core.torch_internals import is_fake
from vaak.nn.kernels.device_paths import paths_on


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
    """Return the normalisation of vectors of ``width`` that ``norm_type`` names."""
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


def unit_length(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Return ``x / max(|x|, eps)`` over the last dimension, as ``F.normalize`` does, on CUDA by half the operators."""
    if not paths_on(x.device).fewer_operators or torch.compiler.is_compiling():
        normalised: Tensor = F.normalize(x, dim=-1, eps=eps)
        return normalised
    scaled: Tensor = _UnitLength.apply(x, eps)  # type: ignore[no-untyped-call]
    return scaled


class _UnitLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(eps)
        scaled: Tensor = x / length
        ctx.eps = eps
        ctx.save_for_backward(scaled, length)
        return scaled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scaled, length = ctx.saved_tensors
        # what would change the length is lost, unless it is eps whatever changes
        along = (gradient * scaled).sum(-1, keepdim=True).masked_fill_(length <= ctx.eps, 0.0)
        return torch.addcmul(gradient, scaled, along, value=-1) / length, None


MOST_JOINED = 2**20
"""Weights of layers that are joined for one product: their copy is kept for the backward pass."""


def project(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """Return the output of each of several layers for ``x``; see ``project_joined``."""
    joined = project_joined(x, *layers)
    if joined is not None:
        return tuple(joined.split([len(layer.weight) for layer in layers], -1))  # type: ignore[arg-type]
    return tuple(layer(one) for layer, one in zip(layers, cast_inputs(x, *layers), strict=True))


def project_joined(x: Tensor, *layers: nn.Module) -> Tensor | None:
    """Return the outputs of linear layers for ``x``, side by side, by one product; None if each is to be called.

    It is for small ones, in training on CUDA: there are a third of the products, forward and backward, and nothing has
    to be added up for ``x``.
    """
    if not can_be_joined(x, layers, nn.Linear):
        return None
    return F.linear(x, *join(layers))


def can_be_joined(x: Tensor, layers: Sequence[nn.Module], kind: type[nn.Module]) -> bool:
    """Return whether layers of one ``kind`` are computed together: small, in training on CUDA, without hooks."""
    if not (paths_on(x.device).fewer_operators and layers[0].training and torch.is_grad_enabled()):
        return False
    if torch.compiler.is_compiling() or any(type(layer) is not kind or _has_hooks(layer) for layer in layers):
        return False
    weights: list[Tensor] = [layer.weight for layer in layers]  # type: ignore[misc]
    alike = {(type(one), one.dtype, one.device, layer.bias is None) for one, layer in zip(weights, layers, strict=True)}
    is_plain = type(weights[0]) in (Tensor, nn.Parameter)
    return is_plain and len(alike) == 1 and sum(one.numel() for one in weights) <= MOST_JOINED


def _has_hooks(layer: nn.Module) -> bool:
    of_forward = layer._forward_pre_hooks or layer._forward_hooks
    return bool(of_forward or layer._backward_pre_hooks or layer._backward_hooks)


def join(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """Return the weights of layers one after another, and their biases, if they have any."""
    weights: list[Tensor] = [layer.weight for layer in layers]  # type: ignore[misc]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]  # type: ignore[misc]
    return _join(weights), _join(biases) if biases else None


def _join(weights: list[Tensor]) -> Tensor:
    """Return tensors one after another; without a copy where memory has them so, as from ``cast_weights``."""
    if type(weights[0]) is Tensor and all(_follows(other, one) for one, other in pairwise(weights)):
        joined: Tensor = _Joined.apply(*weights)  # type: ignore[no-untyped-call]
        return joined
    return torch.cat(weights)


def _follows(other: Tensor, one: Tensor) -> bool:
    same = other.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
    return same and other.storage_offset() == one.storage_offset() + one.numel()


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> Tensor:
        ctx.sizes, first = [len(one) for one in weights], weights[0]
        return first.data.as_strided((sum(ctx.sizes), *first.shape[1:]), first.stride())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = gradient.split(ctx.sizes)
        return parts


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


MOST_CAST = 2**24
"""Weights of a model that are rounded together."""


@contextmanager
def cast_weights(*modules: nn.Module, at_most: int | None = None) -> Iterator[None]:
    """Within this context, in training under autocast, the layers of these modules have weights that are rounded.

    Autocast would round each by an operator, and its gradient by another: here these are one operator each, with the
    same bits. Gradients of all of them are kept in 16 bits until the last is known, so use it for a block, and for a
    model with no more than ``at_most`` weights.
    """
    places = _list_rounded(modules)
    weights = list(dict.fromkeys(layer._parameters[name] for layer, name in places))
    if len(weights) < 2 or (at_most is not None and _count(weights) > at_most):
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


def _count(weights: Sequence[Tensor | None]) -> int:
    return sum(one.numel() for one in weights if one is not None)


def _list_rounded(modules: tuple[nn.Module, ...]) -> list[tuple[nn.Module, str]]:
    """Return the layers and the names of their parameters that autocast would round; none if nothing is rounded."""
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
        # one after another, the matrices first, so that those of one input can be a single matrix
        order = sorted(range(len(weights)), key=lambda number: weights[number].ndim < 2)
        # each at a multiple of 64 bytes
        sizes = [-(-weights[number].numel() // 32) * 32 for number in order]
        flat = torch.empty(sum(sizes), dtype=dtype, device=weights[0].device)
        rounded = list(weights)
        for number, part in zip(order, flat.split(sizes), strict=True):
            rounded[number] = part[: weights[number].numel()].view(weights[number].shape).data
        torch._foreach_copy_(rounded, weights)
        return tuple(rounded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [one for one in gradients if one is not None]
        exact = [torch.empty_like(one, dtype=torch.float32) for one in given]
        if given:
            torch._foreach_copy_(exact, given)
        converted = iter(exact)
        return None, *(None if one is None else next(converted) for one in gradients)
