"""Attention whose time and memory are linear in length: a product of features stands for each pair's weight (FAVOR+).

    result = features(q) · Σ features(k) vᵀ  ÷  features(q) · Σ features(k)

The sums over keys are one small matrix, made once for all queries (``full_sums``); where a query sees earlier tokens
only, it grows from token to token (``causal_sums``). A column of ones after the values gives the denominator. All of
it is computed in float32 (or float64), under autocast too, and a result depends on nothing but the tokens that the
query may see. Weights of pairs are never formed, so none can be dropped and nothing added to them.

Source: Choromanski et al. 2021, "Rethinking Attention with Performers"; Katharopoulos et al. 2020, "Transformers are
RNNs" (the state of constant size).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels.causal_sums import causal_sums
from vaak.nn.kernels.full_sums import full_sums, key_sums
from vaak.nn.kernels.random_features import Kernel, RandomFeatures, key_map, precise, query_map
from vaak.nn.kernels.visibility import Visibility

Inputs = tuple[Tensor, Tensor, Tensor]

SMALLEST_DENOMINATOR = 1e-30
"""Added to denominators: where the features of all keys are far below it, the result is 0 and not NaN."""


def linear_attention(
    features: RandomFeatures,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    cache: LayerCache | None = None,
) -> Tensor:
    """The mixture of values for each query, ``(batch, heads, query time, head_width)``, in the values' dtype.

    Where ``visibility`` is causal or has ``documents``, queries and keys are the same tokens. Where it has only
    ``key_documents``, they are a mask: below 0 is padding, which no query sees. That is the quick way to pad: with
    ``documents``, attention that isn't causal costs twice as much.

    A cache holds, of causal attention, the sums over all tokens before these (of documents: the last one's); else the
    sums over all keys, and later calls don't look at their keys and values. No gradient flows into a cache.

    ``query``, ``key`` and ``value`` are ``(batch, heads, time, head_width)``; ``features`` approximate or
    replace softmax's exponential function.
    """
    assert visibility.bias is None, "linear attention forms no scores that a bias could be added to"
    features.warn_of_vanishing(key)
    with torch.autocast(query.device.type, enabled=False):
        queries = precise(query)
        weights = features.weights(queries.dtype)
        if cache is not None and "memory" in cache.tensors:
            sums = query_map(queries, weights, features.kernel) @ cache.tensors["memory"]
        else:
            inputs = (queries, features.key_inputs(key, features.shift()), _values(value, visibility))
            if torch.compiler.is_exporting():
                sums = _plain(inputs, weights, features.kernel, visibility.causal)
            else:
                sums = (_causal if visibility.causal else _full)(inputs, weights, features.kernel, visibility, cache)
        total, count = sums.split((value.shape[-1], 1), -1)
        mixed: Tensor = (total / (count + SMALLEST_DENOMINATOR)).to(value.dtype)
        return mixed


def _values(value: Tensor, visibility: Visibility) -> Tensor:
    """Values followed by ones, ``(batch, heads, time, width + 1)``; all 0 where a mask says padding."""
    values = F.pad(precise(value), (0, 1), value=1.0)
    if visibility.documents is not None or visibility.key_documents is None:
        return values
    return values * (visibility.key_documents >= 0)[:, None, -value.shape[2] :, None]


def _plain(inputs: Inputs, weights: Tensor, kernel: Kernel, causal: bool) -> Tensor:
    """The same in the operations that other software has, for rows of one document; all pairs where ``causal``.

    ``inputs``, ``weights`` and ``kernel`` are those of ``_full``.
    """
    queries, keys, values = query_map(inputs[0], weights, kernel), key_map(inputs[1], weights, kernel), inputs[2]
    return (queries @ keys.mT).tril() @ values if causal else queries @ (keys.mT @ values)


def _full(inputs: Inputs, weights: Tensor, kernel: Kernel, visibility: Visibility, cache: LayerCache | None) -> Tensor:
    """What each query takes of all keys, or of its document's: of those up to it, and of those after it.

    ``inputs`` are queries, keys and values, ``(batch, heads, time, ...)``; ``weights`` ``(feature, width)`` are the
    random features of ``kernel``. ``visibility`` may have documents; a ``cache`` keeps the sums over all keys.
    """
    if visibility.documents is not None:
        up_to, _ = causal_sums(inputs, weights, kernel, _with_one_before(visibility.documents))
        query, key, value = (x.flip(2) for x in inputs)
        documents = _with_one_before(visibility.documents.flip(1))
        after, _ = causal_sums((query, key, value), weights, kernel, documents, strict=True)
        return up_to + after.flip(2)
    if cache is None:
        return full_sums(inputs, weights, kernel)
    cache.tensors["memory"] = key_sums(inputs[1], inputs[2], weights, kernel)
    return query_map(inputs[0], weights, kernel) @ cache.tensors["memory"]


def _causal(
    inputs: Inputs, weights: Tensor, kernel: Kernel, visibility: Visibility, cache: LayerCache | None
) -> Tensor:
    """What each query takes of the keys up to it, in the cache too, which then holds those of ``inputs`` as well.

    ``inputs``, ``weights``, ``kernel`` and ``visibility`` are those of ``_full``; the cache keeps the sums so far.
    """
    past = {} if cache is None else cache.tensors
    documents = visibility.documents
    if documents is not None:
        documents = _with_one_before(documents, past.get("document"))
    sums, state = causal_sums(inputs, weights, kernel, documents, past.get("state"))
    if cache is not None:
        cache.tensors["state"] = state
        if documents is not None:
            cache.tensors["document"] = documents[:, -1]
    return sums


def _with_one_before(documents: Tensor, document: Tensor | None = None) -> Tensor:
    """``documents`` ``(batch, time)`` after the document of the token before, ``(batch, 1 + time)``."""
    return torch.cat((documents[:, :1] if document is None else document[:, None], documents), 1)
