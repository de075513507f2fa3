"""Attention whose time and memory are linear in length: a product of features stands for each pair's weight (FAVOR+).

    result = features(q) · Σ features(k) vᵀ  ÷  features(q) · Σ features(k)

The sums over keys are one small matrix, made once for all queries (``full_sums``). Where a query sees earlier tokens
only (``causal_sums``), tokens are cut in chunks. Within one, the products of all pairs are formed and later keys
masked. All earlier tokens are one state, which is dropped where another document begins, so nothing is ever subtracted.
The backward pass recomputes the features, a chunk at a time. A column of ones after the values gives the denominator.
All is computed in float32 (or float64), under autocast too, and a result depends on nothing but the tokens that the
query may see. Weights of pairs are never formed, so none can be dropped and nothing added to them.

Sources: Choromanski et al. 2021, "Rethinking Attention with Performers", section 2.1, appendix B.1 (prefix sums);
Katharopoulos et al. 2020, "Transformers are RNNs" (the state of constant size); Hua et al. 2022, "Transformer Quality
in Linear Time", section 3.2 (chunks); Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory" (recomputing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels.device_paths import groups, joined, num_tokens_at_once
from vaak.nn.kernels.random_features import Kernel, RandomFeatures, key_map, map_backward, precise, query_map
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
    """Return the mixture of values for each query, ``(batch, heads, query time, head_width)``, in the values' dtype.

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
            # What is added up of the ones is the denominator.
            values = F.pad(precise(value), (0, 1), value=1.0)
            if visibility.documents is None and visibility.key_documents is not None:
                # Padding adds nothing.
                values = values * (visibility.key_documents >= 0)[:, None, -value.shape[2] :, None]
            inputs = (queries, features.key_inputs(key, features.shift()), values)
            if torch.compiler.is_exporting():
                # By operations that other software has, for rows of one document.
                mapped = query_map(queries, weights, features.kernel)
                keys = key_map(inputs[1], weights, features.kernel)
                sums = (mapped @ keys.mT).tril() @ values if visibility.causal else mapped @ (keys.mT @ values)
            else:
                sums = (_causal if visibility.causal else _full)(inputs, weights, features.kernel, visibility, cache)
        total, count = sums.split((value.shape[-1], 1), -1)
        mixed: Tensor = (total / (count + SMALLEST_DENOMINATOR)).to(value.dtype)
        return mixed


def _full(inputs: Inputs, weights: Tensor, kernel: Kernel, visibility: Visibility, cache: LayerCache | None) -> Tensor:
    """Attend to all keys, or to those of the query's document, as a sum over keys up to the query and after it.

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
    key, value = inputs[1:]
    with torch.no_grad():
        sums: Tensor = _key_sums(key.flatten(0, 1), value.flatten(0, 1), weights, kernel)
    cache.tensors["memory"] = sums.unflatten(0, key.shape[:2])
    return query_map(inputs[0], weights, kernel) @ cache.tensors["memory"]


def _causal(
    inputs: Inputs, weights: Tensor, kernel: Kernel, visibility: Visibility, cache: LayerCache | None
) -> Tensor:
    """Return each query's sums over the keys up to it, the cache's too, which then holds those of ``inputs`` as well.

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


def _key_sums(key: Tensor, value: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
    sums = value.new_zeros(len(value), weights.shape[0], value.shape[-1])
    for chunk in _chunks(key, weights):
        sums.baddbmm_(key_map(key[:, chunk], weights, kernel).mT, value[:, chunk])
    return sums


def _chunks(x: Tensor, weights: Tensor) -> Iterator[slice]:
    """Places of ``x`` ``(row, time, ...)``, in chunks."""
    length = num_tokens_at_once(x.shape[0], weights)
    return (slice(start, start + length) for start in range(0, x.shape[1], length))


class _FullSums(torch.autograd.Function):
    """``total = Σ features(key) valueᵀ`` and ``sums = features(query) · total``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
        """Return the sums ``(row, time, value width)``.

        ``query``, ``key`` and ``value`` are ``(row, time, ...)``; ``weights`` ``(feature, width)`` are the random
        features of ``kernel``. ``ctx`` keeps what ``backward`` needs.
        """
        total = _key_sums(key, value, weights, kernel)
        sums = value.new_empty(*query.shape[:2], value.shape[-1])
        for chunk in _chunks(query, weights):
            sums[:, chunk] = query_map(query[:, chunk], weights, kernel) @ total
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
            for chunk in _chunks(query, weights):
                features = query_map(query[:, chunk], weights, ctx.kernel)
                # the whole gradient of the total must be known before that of any key
                of_total.baddbmm_(features.mT, gradient[:, chunk])
                of_features = gradient[:, chunk] @ total.mT
                of_query[:, chunk] = map_backward(of_features, features, weights[:, : query.shape[-1]], ctx.kernel)
            for chunk in _chunks(key, weights):
                features = key_map(key[:, chunk], weights, ctx.kernel)
                of_value[:, chunk] = features @ of_total
                of_features = value[:, chunk] @ of_total.mT
                of_key[:, chunk] = map_backward(of_features, features, weights, ctx.kernel)
        return of_query, of_key, of_value, None, None


_full_sums: Callable[..., Tensor] = _FullSums.apply

CHUNK_TOKENS = 64
"""Tokens of a chunk: fewer make more states, more make more pairs that are computed and cut off."""


def causal_sums(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: Tensor,
    kernel: Kernel,
    documents: Tensor | None = None,
    state: Tensor | None = None,
    *,
    strict: bool = False,
) -> tuple[Tensor, Tensor]:
    """For each query ``Σ (features(query) · features(key)) value``, and the state after the last token.

    ``inputs`` are those of the maps of queries and keys, and the values, ``(batch, heads, time, ...)``. The sum is over
    the keys up to the query, without its own where ``strict``. ``documents`` ``(batch, 1 + time)`` begin with the
    document of the token before the first. ``state`` ``(batch, heads, feature, value width)`` is the sum over the keys
    before the first; no gradient flows through it.

    ``weights`` ``(feature, width)`` are the random features of ``kernel``.
    """
    value = inputs[2]
    batch, heads, time, width = value.shape
    if state is None:
        state = value.new_zeros(batch, heads, weights.shape[0], width)
    parts = []
    for *rows, seen in groups((*inputs, state.detach(), documents), time, heads, weights):
        found = _causal_sums(*(x.flatten(0, 1) for x in rows), weights, kernel, seen, strict)
        parts.append([x.unflatten(0, (-1, heads)) for x in found])
    sums, ended = (joined(of_groups) for of_groups in zip(*parts, strict=True))
    return sums, ended


class _Visibility(NamedTuple):
    """Which tokens of a segment see which, as factors 0 and 1 for tensors ``(chunk, example, head, ...)``."""

    same: Tensor
    """Query and key are of one document, ``(chunk, example, 1, query, key)``."""
    reads: Tensor
    """A query is of the document of the token before its chunk, ``(chunk, example, 1, query, 1)``."""
    stays: Tensor
    """A key is of its chunk's last document, ``(chunk, example, 1, key, 1)``."""
    keeps: Tensor
    """A chunk's last document is that of the token before it, ``(chunk, example, 1, 1, 1)``."""


@dataclass(frozen=True)
class _Segment:
    """Tokens that are computed at once: some chunks of one length."""

    start: int
    num_chunks: int
    chunk: int

    @property
    def stop(self) -> int:
        return self.start + self.num_chunks * self.chunk

    def cut(self, x: Tensor) -> Tensor:
        """Return the chunks of ``x`` ``(row, time, width)``: ``(chunk · row, token, width)``."""
        chunks: Tensor = x[:, self.start : self.stop].unflatten(1, (self.num_chunks, self.chunk))
        return chunks.transpose(0, 1).flatten(0, 1)

    def put(self, chunks: Tensor, into: Tensor) -> None:
        """Put what ``cut`` took back in its place."""
        tokens = chunks.unflatten(0, (self.num_chunks, -1)).transpose(0, 1)
        into[:, self.start : self.stop].unflatten(1, (self.num_chunks, self.chunk)).copy_(tokens)

    def visibility(self, documents: Tensor | None, dtype: torch.dtype) -> _Visibility | None:
        """None if every row is one document."""
        if documents is None:
            return None
        own = documents[:, self.start + 1 : self.stop + 1].unflatten(1, (self.num_chunks, self.chunk)).transpose(0, 1)
        before = documents[:, self.start : self.stop : self.chunk].mT[:, :, None]
        last = own[:, :, -1:]
        same = own[..., :, None] == own[..., None, :]
        reads, stays, keeps = ((x == y)[:, :, None, :, None] for x, y in ((own, before), (own, last), (last, before)))
        return _Visibility(*(seen.to(dtype) for seen in (same[:, :, None], reads, stays, keeps)))


def _segments(value: Tensor, weights: Tensor) -> list[_Segment]:
    """Return the segments in order; the remainder after the last whole chunk is a separate, shorter chunk."""
    time = value.shape[1]
    at_once = max(1, num_tokens_at_once(len(value), weights) // CHUNK_TOKENS)
    whole = time // CHUNK_TOKENS
    segments = [_Segment(i * CHUNK_TOKENS, min(at_once, whole - i), CHUNK_TOKENS) for i in range(0, whole, at_once)]
    return segments + ([_Segment(whole * CHUNK_TOKENS, 1, time % CHUNK_TOKENS)] if time % CHUNK_TOKENS else [])


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    """``x`` ``(chunk · row, ...)`` times a factor of a ``_Visibility``."""
    return x if factor is None else (x.unflatten(0, (*factor.shape[:2], -1)) * factor).flatten(0, 2)


def _seen(products: Tensor, visibility: _Visibility | None, strict: bool) -> Tensor:
    """``products`` of pairs within chunks, ``(chunk · row, query, key)``, made 0 where a query doesn't see a key."""
    if visibility is not None:
        products.unflatten(0, (*visibility.same.shape[:2], -1)).mul_(visibility.same)
    return products.tril_(-1 if strict else 0)


def _states(keys: Tensor, values: Tensor, begun: Tensor, visibility: _Visibility | None) -> Tensor:
    """Return the state before each chunk and after the last, ``(chunk + 1, row, feature, value width)``."""
    num_chunks = len(keys) // len(begun)
    states = begun.new_empty(num_chunks + 1, *begun.shape)
    states[0] = begun
    torch.bmm(keys.mT, _times(values, visibility and visibility.stays), out=states[1:].flatten(0, 1))
    for chunk in range(num_chunks):
        _add(states[chunk + 1], states[chunk], visibility and visibility.keeps[chunk])
    return states


def _add(state: Tensor, other: Tensor, keeps: Tensor | None) -> None:
    """``other`` is added to a state, for the examples that keep it."""
    if keeps is None:
        state.add_(other)
    else:
        state.unflatten(0, (len(keeps), -1)).addcmul_(other.unflatten(0, (len(keeps), -1)), keeps)


class _CausalSums(torch.autograd.Function):
    """In each chunk ``sums = pairs · value + query · state`` with ``pairs = query · keyᵀ`` where seen."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: Tensor,
        weights: Tensor,
        kernel: Kernel,
        documents: Tensor | None,
        strict: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the sums ``(row, time, value width)`` and the state after the last token.

        ``query``, ``key`` and ``value`` are ``(row, time, ...)``, a row being a head of an example. The other arguments
        are those of ``causal_sums``: ``state`` ``(row, feature, value width)``, ``weights``, ``kernel``, ``documents``
        (of each example) and ``strict``. ``ctx`` keeps what ``backward`` needs.
        """
        sums, begun = torch.empty_like(value), []
        for segment in _segments(value, weights):
            begun.append(state)
            visibility = segment.visibility(documents, value.dtype)
            queries = query_map(segment.cut(query), weights, kernel)
            keys = key_map(segment.cut(key), weights, kernel)
            values = segment.cut(value)
            states = _states(keys, values, state, visibility)
            past = torch.bmm(queries, states[:-1].flatten(0, 1))
            pairs = _seen(torch.bmm(queries, keys.mT), visibility, strict)
            segment.put(_times(past, visibility and visibility.reads).baddbmm_(pairs, values), sums)
            # copied: a view would keep the states of every chunk alive until the backward
            state = states[-1].clone()
        ctx.save_for_backward(query, key, value, weights, documents, *begun)
        ctx.kernel, ctx.strict = kernel, strict
        ctx.mark_non_differentiable(state)
        return sums, state

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, documents, *begun = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in (query, key, value)]
        of_state = value.new_zeros(len(value), weights.shape[0], value.shape[-1])
        with torch.autocast(query.device.type, enabled=False):
            segments = _segments(value, weights)
            for segment, state in zip(reversed(segments), reversed(begun), strict=True):
                visibility = segment.visibility(documents, value.dtype)
                cut = [segment.cut(x) for x in (query, key, value, of_sums)]
                found, of_state = _segment_backward(cut, state, of_state, weights, ctx, visibility)
                for gradient, into in zip(found, gradients, strict=True):
                    segment.put(gradient, into)
        return (*gradients, None, None, None, None, None)


def _segment_backward(
    cut: Sequence[Tensor], begun: Tensor, of_ended: Tensor, weights: Tensor, ctx: Any, visibility: _Visibility | None
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Gradients of a segment's inputs, and of the state that it began with, given that of the state it ended with.

    ``cut`` are the chunks ``(chunk · row, token, ...)`` of queries, keys, values and of the gradient of the sums.
    ``begun`` is the state at the segment's start and ``of_ended`` the gradient of that at its end, ``(row, feature,
    value width)``. ``weights`` and ``ctx`` are those of ``_CausalSums``; ``visibility`` is that of the segment.
    """
    queries_in, keys_in, values, of_sums = cut
    queries = query_map(queries_in, weights, ctx.kernel)
    keys = key_map(keys_in, weights, ctx.kernel)
    states = _states(keys, values, begun, visibility)[:-1].flatten(0, 1)
    of_past = _times(of_sums, visibility and visibility.reads)
    of_states = begun.new_empty(len(keys) // len(begun) + 1, *begun.shape)
    of_states[-1] = of_ended
    torch.bmm(queries.mT, of_past, out=of_states[:-1].flatten(0, 1))
    # states run forward over chunks, so their gradients run backward
    for chunk in reversed(range(len(of_states) - 1)):
        _add(of_states[chunk], of_states[chunk + 1], visibility and visibility.keeps[chunk])
    of_chunks = of_states[1:].flatten(0, 1)
    stays = visibility and visibility.stays
    pairs = _seen(torch.bmm(queries, keys.mT), visibility, ctx.strict)
    of_values = _times(torch.bmm(keys, of_chunks), stays).baddbmm_(pairs.mT, of_sums)
    of_pairs = _seen(torch.bmm(of_sums, values.mT), visibility, ctx.strict)
    of_queries = torch.bmm(of_pairs, keys).baddbmm_(of_past, states.mT)
    of_keys = torch.bmm(of_pairs.mT, queries).baddbmm_(_times(values, stays), of_chunks.mT)
    of_queries = map_backward(of_queries, queries, weights[:, : queries_in.shape[-1]], ctx.kernel)
    return (of_queries, map_backward(of_keys, keys, weights, ctx.kernel), of_values), of_states[0].clone()


_causal_sums: Callable[..., tuple[Tensor, Tensor]] = _CausalSums.apply
