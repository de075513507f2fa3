"""Local attention is softmax with all but a window masked: documents, biases and a cache too; in linear memory."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels import softmax_attention as local
from vaak.nn.kernels.softmax_attention import local_attention
from vaak.nn.kernels.visibility import Visibility, distances
from vaak.nn.positional_encodings import Alibi, RelativeBias

causality = pytest.mark.parametrize("causal", [True, False])


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Blocks as small as the window, so that short rows have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "SMALLEST_BLOCK", 1)
        yield


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""


def drawn(time: int, rows: int = 2, heads: int = 2, dtype: torch.dtype = torch.float64) -> Inputs:
    generator = torch.Generator().manual_seed(time)
    query, key, value = (torch.randn(rows, heads, time, 4, generator=generator).to(dtype) for _ in range(3))
    return query, key, value


def times(inputs: Inputs, which: slice | torch.Tensor) -> Inputs:
    """Some of the times."""
    query, key, value = inputs
    return query[:, :, which], key[:, :, which], value[:, :, which]


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visibility: Visibility, window: int
) -> torch.Tensor:
    """Compute softmax over all pairs, with pairs outside the window masked."""
    distance = distances(query.shape[2], key.shape[2], query.device)
    seen = (distance.abs() <= window) & (distance <= (0 if visibility.causal else window))
    if visibility.documents is not None:
        seen = seen & (visibility.documents[:, None, :, None] == visibility.documents[:, None, None, :])
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if visibility.bias is not None:
        scores = scores + visibility.bias(distance)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ value


def iterate_documents(lengths: list[int], before: int, after: int) -> torch.Tensor:
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    return torch.tensor([[-1] * before + numbers + [-1] * after])


@given(st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_equals_masked_softmax(time: int, window: int, causal: bool):
    query, key, value = drawn(time)
    mixed = local_attention(query, key, value, Visibility(causal), window=window, dropout=0.0)
    torch.testing.assert_close(mixed, dense(query, key, value, Visibility(causal), window), rtol=1e-12, atol=1e-12)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(1, 7),
    st.booleans(),
)
def test_documents_and_padding_equal_masked_softmax(
    lengths: list[int], before: int, after: int, window: int, causal: bool
):
    documents = iterate_documents(lengths, before, after)
    query, key, value = drawn(documents.shape[1], rows=1)
    visibility = Visibility(causal, documents, documents)
    mixed = local_attention(query, key, value, visibility, window=window, dropout=0.0)
    torch.testing.assert_close(mixed, dense(query, key, value, visibility, window), rtol=1e-12, atol=1e-12)
    assert mixed.isfinite().all()


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(0, 9), st.integers(1, 7), st.booleans())
def test_packed_equals_each_document_by_itself(lengths: list[int], padding: int, window: int, causal: bool):
    documents = iterate_documents(lengths, padding, 0)
    inputs = drawn(documents.shape[1], rows=1)
    packed = local_attention(*inputs, Visibility(causal, documents, documents), window=window, dropout=0.0)
    for number in range(len(lengths)):
        own = documents[0] == number
        alone = local_attention(*times(inputs, own), Visibility(causal), window=window, dropout=0.0)
        torch.testing.assert_close(packed[:, :, own], alone, rtol=1e-12, atol=1e-12)


@causality
@pytest.mark.parametrize("bias", [None, "alibi", "t5"])
def test_gradients_equal_those_of_masked_softmax_with_every_bias(causal: bool, bias: str | None):
    torch.manual_seed(0)
    module = {None: None, "alibi": Alibi(2), "t5": RelativeBias(2, bidirectional=not causal)}[bias]
    module = None if module is None else module.double()
    documents = iterate_documents([9, 5, 7], 0, 2).expand(2, -1)
    visibility = Visibility(causal, documents, documents, module)
    results = []
    for compute in (
        lambda q, k, v: local_attention(q, k, v, visibility, window=4, dropout=0.0),
        lambda q, k, v: dense(q, k, v, visibility, 4),
    ):
        inputs = [x.requires_grad_() for x in drawn(23)]
        leaves = inputs + ([] if module is None else list(module.parameters()))
        mixed = compute(*inputs)
        results.append([mixed, *torch.autograd.grad(mixed.square().sum(), leaves)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@given(
    st.integers(0, 9),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_decoding_in_pieces_equals_the_whole(
    padding: int, pieces: list[int], window: int, with_documents: bool, with_bias: bool
):
    """Rows padded on the left, and pieces shorter and longer than the window; the cache keeps the window only."""
    time = sum(pieces)
    inputs = drawn(time)
    documents = torch.zeros(2, time, dtype=torch.long)
    documents[0, :padding] = -1
    bias = Alibi(2) if with_bias else None
    cache, parts, start = LayerCache(), [], 0
    for piece in pieces:
        now = slice(start, start + piece)
        visibility = Visibility(True, bias=bias)
        if with_documents:
            visibility = Visibility(True, documents[:, now], documents[:, : now.stop], bias)
        new = times(inputs, now)
        parts.append(local_attention(*new, visibility, window=window, dropout=0.0, cache=cache))
        start += piece
        assert all(cache.tensors[name].shape[2] == min(start, window) for name in ("keys", "values"))
    whole = Visibility(True, documents, documents, bias) if with_documents else Visibility(True, bias=bias)
    torch.testing.assert_close(torch.cat(parts, 2), dense(*inputs, whole, window), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [5, 30])
def test_padding_of_an_encoder_may_be_told_of_the_keys_alone(length: int):
    inputs = drawn(length + 9, rows=1)
    padding = torch.tensor([[0] * length + [-1] * 9])
    mixed = local_attention(*inputs, Visibility(False, key_documents=padding), window=4, dropout=0.0)
    alone = dense(*times(inputs, slice(length)), Visibility(False), 4)
    torch.testing.assert_close(mixed[:, :, :length], alone, rtol=1e-12, atol=1e-12)
    assert mixed.isfinite().all()


def test_a_cache_begun_with_padding_goes_on_without_documents():
    inputs = drawn(9, rows=1)
    padded, cache = torch.tensor([[-1, -1, 0, 0, 0, 0]]), LayerCache()
    local_attention(*times(inputs, slice(6)), Visibility(True, padded, padded), window=8, dropout=0.0, cache=cache)
    rest = local_attention(*times(inputs, slice(6, None)), Visibility(True), window=8, dropout=0.0, cache=cache)
    alone = dense(*times(inputs, slice(2, None)), Visibility(True), 8)
    torch.testing.assert_close(rest, alone[:, :, 4:], rtol=1e-12, atol=1e-12)


@causality
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_low_precision_is_kept_and_close(dtype: torch.dtype, tolerance: float, causal: bool):
    inputs, bias = drawn(50, dtype=dtype), Alibi(2)
    for visibility in (Visibility(causal), Visibility(causal, bias=bias)):
        mixed = local_attention(*inputs, visibility, window=8, dropout=0.0)
        assert mixed.dtype is dtype
        query, key, value = inputs
        expected = dense(query.double(), key.double(), value.double(), visibility, 8)
        torch.testing.assert_close(mixed.double(), expected, rtol=tolerance, atol=tolerance)


@causality
def test_dropout_of_weights_keeps_the_mean(causal: bool):
    torch.manual_seed(0)
    query, key = torch.zeros(2, 1, 1, 1000, 4)
    mixed = local_attention(query, key, torch.ones(1, 1, 1000, 4), Visibility(causal), window=50, dropout=0.25)
    assert mixed.std() > 0.01
    assert abs(mixed.mean().item() - 1) < 0.02


def kept_for_the_backward_pass(time: int, causal: bool, dropout: float, bias: Alibi | None) -> int:
    """The bytes that a forward pass keeps."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    query, key, value = (x.requires_grad_() for x in drawn(time, dtype=torch.float32))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mixed = local_attention(query, key, value, Visibility(causal, bias=bias), window=16, dropout=dropout)
    assert mixed.requires_grad
    return sum(kept.values())


@causality
@pytest.mark.parametrize(("dropout", "bias"), [(0.0, None), (0.1, None), (0.0, Alibi(2)), (0.1, Alibi(2))])
def test_memory_is_linear_in_the_length(causal: bool, dropout: float, bias: Alibi | None):
    small, large = (kept_for_the_backward_pass(time, causal, dropout, bias) for time in (512, 4096))
    assert 7 * small < large < 9 * small
