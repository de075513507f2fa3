"""Softmax attention among documents of any lengths, laid end to end, by torch's kernels: no pair is masked, nor formed.

    rows           [ document 0 | document 1 | padding ][ document 0    | padding ]
    end to end     0            5            9         12               20       24      the bounds, ``Segments``

A mask has a byte for each pair of tokens, 1 GiB for a row of 32,768, and with one the kernels that never form all
pairs (flash attention) can't be used. Here the tokens stay where they are, and the bounds say which belong together:
padding is one more document, so there is nothing to gather. Kernels are those of CUDA in 16 bits; their backward adds
up in any order, so they aren't taken where results must repeat. Before the first use on a device in a
process, a small example is computed with a mask, too: kernels that fail, or say something else, are not used.

Source: Dao et al. 2022, "FlashAttention"; ``torch.nn.attention.varlen``.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import cache
from inspect import signature
from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor

from vaak.core.torch_internals import constant_when_compiled, is_fake
from vaak.nn.kernels.device_paths import paths_on
from vaak.nn.kernels.softmax_attention import attend
from vaak.nn.kernels.visibility import Segments, attention_mask, find_segments

log = logging.getLogger("vaak")
WIDEST_HEAD = 192
"""Wider ones have no backward pass on some GPUs."""
OF_NUMBERS = (torch.bfloat16, torch.float16)
EVERYTHING = -1
"""As a window's side: all tokens are seen there."""
CHECK_TOLERANCE = 0.05
"""A share of the largest number: 16 bits differ by a hundredth, a wrong mask by more than a half."""


def attend_segments(
    query: Float[Tensor, "batch heads time head_width"],
    key: Float[Tensor, "batch key_heads time head_width"],
    value: Float[Tensor, "batch key_heads time head_width"],
    segments: Segments,
    *,
    causal: bool,
) -> Float[Tensor, "batch heads time head_width"]:
    """Attend within each token's own document, with the result of ``attend`` with such a mask.

    If ``causal``, it sees itself and what is before.
    """
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = segments
    queries, keys, values = (one.transpose(1, 2).flatten(0, 1) for one in (query, key, value))
    # torch 2.11 hasn't it.
    grouped: Any = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    mixed: Any = varlen_attn(
        queries,
        keys,
        values,
        bounds,
        bounds,
        longest,
        longest,
        window_size=(EVERYTHING, 0 if causal else EVERYTHING),
        **grouped,
    )
    rows: Tensor = mixed.unflatten(0, (query.shape[0], -1)).transpose(1, 2)
    return rows


def has_kernels(x: Tensor, dtype: torch.dtype, num_heads: int, num_key_heads: int, head_width: int) -> bool:
    """Return whether documents can be told apart without a mask on the device of ``x``.

    ``dtype`` is that of queries, keys and values.
    """
    if not paths_on(x.device).variable_length_attention or dtype not in OF_NUMBERS:
        return False
    if head_width % 8 or head_width > WIDEST_HEAD or torch.compiler.is_exporting():
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    if is_fake(x):
        # A fake tensor only asks for sizes.
        return True
    agree: bool = _agree(str(x.device), dtype, num_heads, num_key_heads, head_width)
    return agree


@constant_when_compiled
def _agree(device: str, dtype: torch.dtype, num_heads: int, num_key_heads: int, head_width: int) -> bool:
    """Return ``_compare``'s answer, which torch.compile takes as a constant."""
    return _compare(device, dtype, num_heads, num_key_heads, head_width)


@cache
def _compare(device: str, dtype: torch.dtype, num_heads: int, num_key_heads: int, head_width: int) -> bool:
    """Return whether the kernels of a device compute what the formula does, their gradients included."""
    if not _is_supported(torch.device(device)):
        return False
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, 40, head_width) for heads in (num_heads, num_key_heads, num_key_heads, num_heads)]
    fault: object = "they compute something else than masks do"
    # the comparison differentiates, which tensors of inference mode can't
    ordinary = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
    try:
        with ordinary, torch.enable_grad(), torch.autocast(torch.device(device).type, enabled=False):
            # one row with two documents, one with padding: the two ways in which rows are cut
            documents = torch.tensor([[0] * 24 + [1] * 16, [0] * 33 + [-1] * 7], device=device)
            drawn = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
            if all(_agrees_with_mask(drawn, documents, causal) for causal in (False, True)):
                return True
    except (RuntimeError, TypeError, ValueError) as error:
        fault = error
    log.warning("attention kernels of variable length aren't used on %s, masks are: %s", device, fault)
    return False


def _agrees_with_mask(drawn: list[Tensor], documents: Tensor, causal: bool) -> bool:
    """Return whether results and gradients are alike, up to rounding, one empty document at the end included."""
    segments, mask = find_segments(documents, 5), attention_mask(documents, documents, causal)

    def results(with_segments: bool) -> list[Tensor]:
        query, key, value = (one.clone().requires_grad_() for one in drawn[:3])
        if with_segments:
            mixed = attend_segments(query, key, value, segments, causal=causal)
        else:
            mixed = attend(query, key, value, mask=mask, is_causal=False, dropout=0.0)
        return [mixed, *torch.autograd.grad(mixed, (query, key, value), drawn[3])]

    return all(
        bool((one - other).abs().max() <= CHECK_TOLERANCE * other.abs().max())
        for one, other in zip(results(True), results(False), strict=True)
    )


def _is_supported(device: torch.device) -> bool:
    """Return whether this torch has the kernels, and this GPU can run them."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    if torch.version.hip is not None or "window_size" not in signature(varlen_attn).parameters:
        # Earlier torches have the module with other arguments.
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)
