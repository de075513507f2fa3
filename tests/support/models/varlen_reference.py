"""torch's attention of variable length on a CPU, which has no kernels for it: the formula, document by document."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from vaak.nn.kernels import variable_length


def _documents(bounds: Tensor, longest: int, num_tokens: int) -> Iterator[slice]:
    assert bounds.dtype == torch.int32
    places = bounds.tolist()
    assert places[0] == 0
    assert places[-1] == num_tokens
    for begin, end in pairwise(places):
        assert 0 <= end - begin <= longest
        if begin < end:
            yield slice(begin, end)


def _weights(query: Tensor, key: Tensor, window: list[int]) -> Tensor:
    """Weights ``(heads, query, key)`` of queries and keys ``(heads, time, head_width)``."""
    places = torch.arange(query.shape[1])
    distance = places[None] - places[:, None]
    hidden = ((distance < -window[0]) & (window[0] >= 0)) | ((distance > window[1]) & (window[1] >= 0))
    scores: Tensor = query @ key.mT * query.shape[-1] ** -0.5
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


def _heads(x: Tensor, times: int = 1) -> Tensor:
    return x.transpose(0, 1).double().repeat_interleave(times, 0)


def forward(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, key_bounds: Tensor, *more: Any, **options: Any
) -> tuple[Tensor, ...]:
    """Compute ``aten::_flash_attention_forward`` of ``(token, heads, head_width)``."""
    longest, window = _checked(bounds, key_bounds, more[:4], options)
    times, mixed = query.shape[1] // key.shape[1], torch.zeros_like(query)
    for own in _documents(bounds, longest, len(query)):
        weights = _weights(_heads(query[own]), _heads(key[own], times), window)
        mixed[own] = (weights @ _heads(value[own], times)).transpose(0, 1).to(query.dtype)
    nothing = torch.zeros(2, dtype=torch.uint64)
    return mixed, torch.zeros(query.shape[1], len(query)), nothing, nothing.clone(), torch.zeros(0)


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, _: Tensor, __: Tensor, *more: Any, **options: Any
) -> tuple[Tensor, ...]:
    """Compute ``aten::_flash_attention_backward``."""
    longest, window = _checked(more[0], more[1], more[2:6], options)
    times = query.shape[1] // key.shape[1]
    found = [torch.zeros_like(one) for one in (query, key, value)]
    for own in _documents(more[0], longest, len(query)):
        of_mixed, queries = _heads(gradient[own]), _heads(query[own])
        keys, values = _heads(key[own], times), _heads(value[own], times)
        weights = _weights(queries, keys, window)
        of_weights = of_mixed @ values.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
        of_all = (of_scores @ keys, of_scores.mT @ queries, weights.mT @ of_mixed)
        for one, of_one in zip(found, of_all, strict=True):
            one[own] = of_one.unflatten(0, (one.shape[1], -1)).sum(1).transpose(0, 1).to(one.dtype)
    return tuple(found)


def _checked(bounds: Any, key_bounds: Any, more: Any, options: dict[str, Any]) -> tuple[int, list[int]]:
    """Return the longest document and the window, after checking all other arguments."""
    assert torch.equal(bounds, key_bounds)
    longest, key_longest, dropout, is_causal = more
    window = [options.pop("window_size_left"), options.pop("window_size_right")]
    assert longest == key_longest
    assert dropout == 0
    assert is_causal == (window == [-1, 0])
    assert all(one is None for one in options.values())
    return longest, window


@contextlib.contextmanager
def kernels_on_cpu(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, devices count as having the kernels, which are computed on the CPU; also for the mock device."""
    with torch.library._scoped_library("aten", "IMPL") as aten:
        aten.impl("_flash_attention_forward", forward, "CPU")
        aten.impl("_flash_attention_backward", backward, "CPU")
        patch.setattr(variable_length, "_is_supported", lambda device: True)
        variable_length._compare.cache_clear()
        yield
        variable_length._compare.cache_clear()
