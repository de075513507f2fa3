"""Sums over all keys, read by each query, with gradients that keep no features.

The backward pass recomputes the features, a piece of the tokens at a time: memory then holds the inputs, one matrix
for each head and one piece, whose features stay in the processor's cache.

Source: Choromanski et al. 2021, "Rethinking Attention with Performers", section 2.1; Rabe and Staats 2021,
"Self-attention Does Not Need O(n²) Memory" (recomputing in pieces).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from vaak.nn.kernels.pieces import groups, joined, num_tokens_at_once
from vaak.nn.kernels.random_features import Kernel, key_map, map_backward, query_map


def full_sums(inputs: tuple[Tensor, Tensor, Tensor], weights: Tensor, kernel: Kernel) -> Tensor:
    """``features(query) · Σ features(key) valueᵀ``, ``(batch, heads, query time, value width)``.

    ``inputs`` are those of the maps of queries and keys, and the values, ``(batch, heads, time, ...)``.
    """
    heads, time = inputs[1].shape[1:3]
    parts = []
    for group in groups(inputs, time, heads, weights):
        rows = (x.flatten(0, 1) for x in group)
        parts.append(_full_sums(*rows, weights, kernel).unflatten(0, (-1, heads)))
    return joined(parts)


def key_sums(key: Tensor, value: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
    """``Σ features(key) valueᵀ``, ``(batch, heads, feature, value width)``; no gradient flows through it."""
    with torch.no_grad():
        sums: Tensor = _key_sums(key.flatten(0, 1), value.flatten(0, 1), weights, kernel).unflatten(0, key.shape[:2])
        return sums


def _key_sums(key: Tensor, value: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
    sums = value.new_zeros(len(value), weights.shape[0], value.shape[-1])
    for piece in _pieces(key, weights):
        sums.baddbmm_(key_map(key[:, piece], weights, kernel).mT, value[:, piece])
    return sums


def _pieces(x: Tensor, weights: Tensor) -> Iterator[slice]:
    """Places of ``x`` ``(row, time, ...)``, in pieces."""
    length = num_tokens_at_once(x.shape[0], weights)
    return (slice(start, start + length) for start in range(0, x.shape[1], length))


class _FullSums(torch.autograd.Function):
    """Of ``total = Σ features(key) valueᵀ`` and ``sums = features(query) · total``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
        """The sums ``(row, time, value width)``.

        ``query``, ``key`` and ``value`` are ``(row, time, ...)``; ``weights`` ``(feature, width)`` are the random
        features of ``kernel``. ``ctx`` keeps what ``backward`` needs.
        """
        total = _key_sums(key, value, weights, kernel)
        sums = value.new_empty(*query.shape[:2], value.shape[-1])
        for piece in _pieces(query, weights):
            sums[:, piece] = query_map(query[:, piece], weights, kernel) @ total
        ctx.save_for_backward(query, key, value, weights, total)
        ctx.kernel = kernel
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, total = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            of_query, of_key, of_value = map(torch.empty_like, (query, key, value))
            of_total = torch.zeros_like(total)
            for piece in _pieces(query, weights):
                features = query_map(query[:, piece], weights, ctx.kernel)
                of_total.baddbmm_(features.mT, gradient[:, piece])
                of_features = gradient[:, piece] @ total.mT
                of_query[:, piece] = map_backward(of_features, features, weights[:, : query.shape[-1]], ctx.kernel)
            for piece in _pieces(key, weights):
                features = key_map(key[:, piece], weights, ctx.kernel)
                of_value[:, piece] = features @ of_total
                of_features = value[:, piece] @ of_total.mT
                of_key[:, piece] = map_backward(of_features, features, weights, ctx.kernel)
        return of_query, of_key, of_value, None, None


_full_sums: Callable[..., Tensor] = _FullSums.apply
