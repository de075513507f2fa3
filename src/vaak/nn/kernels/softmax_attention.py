"""Softmax attention: each token's mixture of all tokens that it may see, or of those in a window around it (local).

Local attention takes time and memory linear in the row's length. Token i sees the tokens j of its document with |i − j|
≤ window, in a decoder i − window ≤ j ≤ i. The row is cut in blocks of queries, and each block is held against the
stretch of keys that any of its queries may see:

    queries            [ block 0 ][ block 1 ][ block 2 ]
    keys of block 1  [ window |  block  | window ]          the last part only where later tokens are seen

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1; Ainslie et al. 2023, "GQA" (several query
heads share one head of keys and values); Child et al. 2019, "Generating Long Sequences with Sparse Transformers";
Beltagy et al. 2020, "Longformer", section 3.1 (sliding window). Differs: no dilation, no global tokens.
"""

from __future__ import annotations

from typing import Annotated as Float
from typing import Annotated as Shaped

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels.device_paths import paths_on
from vaak.nn.kernels.visibility import Visibility, causal_mask

LONGEST_EXPLICIT = 1024


def attend(
    query: Float[Tensor, "batch heads query head_width"],
    key: Float[Tensor, "batch key_heads key head_width"],
    value: Float[Tensor, "batch key_heads key head_width"],
    *,
    mask: Shaped[Tensor, "#batch #heads query key"] | None,
    is_causal: bool,
    dropout: float,
) -> Float[Tensor, "batch heads query head_width"]:
    """Return ``softmax(query · keyᵀ / sqrt(head_width)) · value``.

    ``mask`` is True where a query may see a key, or what is added to its
    score; ``is_causal`` in its place lets it see itself and what is before. It must not be computed from a length:
    under ``torch.compile`` that isn't a bool, and every length is recompiled. ``key`` and ``value`` may have fewer
    heads, each serving consecutive query heads. ``dropout`` is the probability that a weight is dropped.
    """
    without_kernel = query.dtype is torch.bfloat16 and paths_on(query.device).explicit_bfloat16_attention
    explicitly = without_kernel and query.shape[2] > 1 and key.shape[2] <= LONGEST_EXPLICIT
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and (explicitly or mask is not None):
        # On CUDA no fast kernel takes a mask and fewer key heads.
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        groups = 1
    if explicitly:
        # The formula as it stands: with bfloat16 on a CPU two to three times as fast as torch's kernel. Forward and
        # backward of 32 rows × 128 tokens × 4 heads of 64, one thread with AMX: 15 ms to 52, with dropout 29 to 52.
        # It holds all weights at once, so long rows are left to the kernel.
        weights = attention_weights(query, key, mask, is_causal)
        return F.dropout(weights, dropout, training=dropout > 0) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=groups > 1
    )


def attention_weights(
    query: Float[Tensor, "batch heads query head_width"],
    key: Float[Tensor, "batch heads key head_width"],
    mask: Shaped[Tensor, "#batch #heads query key"] | None,
    is_causal: bool,
) -> Float[Tensor, "batch heads query key"]:
    """Return the weights by which ``attend`` mixes values."""
    scores: Tensor = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if is_causal:
        mask = causal_mask(query.shape[2], key.shape[2], query.device)
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=scores.dtype)


SMALLEST_BLOCK = 32
"""Smaller blocks would waste less on invisible keys, and more on being many."""
OUTSIDE_DOCUMENT = -2
"""The document of places beyond the row, which fill up blocks: no token sees them, and each sees itself."""


def local_attention(
    query: Float[Tensor, "batch heads time head_width"],
    key: Float[Tensor, "batch heads time head_width"],
    value: Float[Tensor, "batch heads time head_width"],
    visibility: Visibility,
    *,
    window: int,
    dropout: float,
    cache: LayerCache | None = None,
) -> Float[Tensor, "batch heads time head_width"]:
    """Return the same as softmax attention with all else masked.

    With a cache, which keeps the last ``window`` keys and values, the row continues after what it remembers.

    A query sees the ``window`` tokens on
    each side, or only before it if ``visibility`` is causal. ``dropout`` is the probability that a weight is dropped.
    """
    batch, _, time, _ = query.shape
    documents = visibility.key_documents if visibility.documents is None else visibility.documents
    if documents is None:
        # Each row is one.
        documents = torch.zeros(batch, time, dtype=torch.long, device=query.device)
    key_documents = documents
    if cache is not None:
        assert visibility.causal, "only a decoder can continue from a cache"
        key, value, key_documents = _with_the_last(key, value, documents, window, cache)
    block = max(window, SMALLEST_BLOCK)
    past = key.shape[2] - time
    if time <= block or torch.compiler.is_exporting():
        # Its rows may have any length.
        mask = _visible(visibility, documents, key_documents, past, window, query.dtype)
        return attend(query, key, value, mask=mask, is_causal=False, dropout=dropout)
    filled = -time % block
    sides = (window - past, filled if visibility.causal else filled + window)
    span = block + (window if visibility.causal else 2 * window)
    query_blocks = _blocks(query, (0, filled), block, block)
    key_blocks, value_blocks = (_blocks(x, sides, span, block) for x in (key, value))
    block_documents = F.pad(documents, (0, filled), value=OUTSIDE_DOCUMENT).unfold(1, block, block).flatten(0, 1)
    span_documents = F.pad(key_documents, sides, value=OUTSIDE_DOCUMENT).unfold(1, span, block).flatten(0, 1)
    mask = _visible(visibility, block_documents, span_documents, window, window, query.dtype)
    mixed = attend(query_blocks, key_blocks, value_blocks, mask=mask, is_causal=False, dropout=dropout)
    joined: Tensor = mixed.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :time]
    return joined


def _with_the_last(
    key: Tensor, value: Tensor, documents: Tensor, window: int, cache: LayerCache
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and documents after those that the cache keeps, which become the last of them all.

    ``key`` and ``value`` are ``(batch, heads, time, head_width)``, ``documents`` ``(batch, time)``; ``cache`` keeps the
    last ``window`` of each.
    """
    if cache.tensors:
        key = torch.cat((cache.tensors["keys"], key), 2)
        value = torch.cat((cache.tensors["values"], value), 2)
        documents = torch.cat((cache.tensors["documents"], documents), 1)
    kept = slice(max(0, key.shape[2] - window), None)
    cache.tensors.update(keys=key[:, :, kept], values=value[:, :, kept], documents=documents[:, kept])
    return key, value, documents


def _visible(
    visibility: Visibility, documents: Tensor, key_documents: Tensor, first: int, window: int, dtype: torch.dtype
) -> Tensor:
    """``(batch, heads or 1, query, key)``: True where a key is seen, or with a bias what is added to its score.

    ``first`` is the first query's place among the keys.

    ``documents`` ``(batch, query)`` and ``key_documents`` ``(batch, key)`` are the numbers of the tokens' documents. A
    key at most ``window`` tokens from the query is seen; ``visibility`` has the bias, and ``dtype`` is its dtype.
    """
    queries = torch.arange(first, first + documents.shape[1], device=documents.device)
    distance = torch.arange(key_documents.shape[1], device=documents.device)[None] - queries[:, None]
    near = (distance >= -window) & (distance <= (0 if visibility.causal else window))
    seen = near & (documents[:, None, :, None] == key_documents[:, None, None, :])
    return seen if visibility.bias is None else visibility.bias(distance).to(dtype).masked_fill(~seen, float("-inf"))


def _blocks(x: Tensor, sides: tuple[int, int], size: int, step: int) -> Tensor:
    """Stretches of ``size`` places of ``x`` with zeros at its sides, ``(batch · blocks, heads, size, head_width)``."""
    stretches = F.pad(x, (0, 0, *sides)).unfold(2, size, step)
    return stretches.permute(0, 2, 1, 4, 3).flatten(0, 1)
