"""Linear attention against the formula with all pairs written out, and what a result may depend on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels import device_paths
from vaak.nn.kernels import linear_attention as linear
from vaak.nn.kernels.device_paths import PATHS
from vaak.nn.kernels.linear_attention import linear_attention
from vaak.nn.kernels.random_features import RandomFeatures
from vaak.nn.kernels.visibility import Visibility

HEADS, WIDTH = 2, 4


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    """Chunks and chunks so small that few tokens have several, and examples several groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "CHUNK_TOKENS", 4)
        patch.setattr(device_paths, "FEWEST_TOKENS", 4)
        patch.setattr(device_paths, "FEWEST_AT_ONCE", 4)
        patch.setitem(PATHS, "cpu", replace(PATHS["cpu"], features_at_once=160))
        yield


Inputs = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""


def drawn(time: int, batch: int = 3, dtype: torch.dtype = torch.float64, key_time: int | None = None) -> Inputs:
    generator = torch.Generator().manual_seed(time)
    times = (time, key_time or time, key_time or time)
    shapes = [(batch, HEADS, length, WIDTH) for length in times]
    return each(lambda shape: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(), shapes)


def each(change: Callable[[Any], Tensor], of: Sequence[Any]) -> Inputs:
    """Apply a function to query, key and value."""
    query, key, value = map(change, of)
    return query, key, value


def compute_features(kernel: Any = "softmax", width: int = WIDTH, dtype: torch.dtype = torch.float64) -> RandomFeatures:
    features = RandomFeatures(width, 10, kernel=kernel).to(dtype)
    features.redraw_features(3)
    return features


def reference(features: RandomFeatures, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Weights of all pairs from the explicit feature matrices."""
    weights = (features(query) @ features(key).transpose(-1, -2)) * visible
    return (weights / weights.sum(-1, keepdim=True)) @ value


def visible_pairs(visibility: Visibility, queries: int, keys: int) -> Tensor:
    visible = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if visibility.causal:
        visible = visible.tril(keys - queries)
    if visibility.documents is not None:
        own = visibility.documents[:, None, :, None] == visibility.documents[:, None, None, :]
        visible = visible & own
    elif visibility.key_documents is not None:
        visible = visible & (visibility.key_documents >= 0)[:, None, None]
    return visible


PACKED = torch.tensor([[0] * 7 + [1] * 2 + [2] * 9 + [-1] * 4, [0] * 22, [-1] * 5 + [4] * 17])
PADDED = torch.where(torch.arange(22) < torch.tensor([[22], [9], [1]]), 0, -1)
VISIBILITIES = {
    "causal": Visibility(True),
    "bidirectional": Visibility(False),
    "packed causal": Visibility(True, PACKED, PACKED),
    "packed bidirectional": Visibility(False, PACKED, PACKED),
    "masked": Visibility(False, None, PADDED),
}


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("name", VISIBILITIES)
def test_equals_the_explicit_feature_matrices_with_its_gradients(name: str, kernel: str):
    features, visibility, inputs = compute_features(kernel), VISIBILITIES[name], drawn(22)
    found = linear_attention(features, *inputs, visibility)
    expected = reference(features, *inputs, visible_pairs(visibility, 22, 22).double())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    for one, other in zip(
        torch.autograd.grad(found, inputs, towards), torch.autograd.grad(expected, inputs, towards), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("key_time", [1, 5, 30])
def test_cross_attention_equals_the_explicit_feature_matrices(key_time: int):
    features, inputs = compute_features(), drawn(13, key_time=key_time)
    key_documents = torch.zeros(3, key_time, dtype=torch.long)
    key_documents[1, 3:] = -1
    visibility = Visibility(False, None, key_documents)
    found = linear_attention(features, *inputs, visibility)
    expected = reference(features, *inputs, visible_pairs(visibility, 13, key_time).double())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("name", VISIBILITIES)
def test_gradients_are_those_of_finite_differences(name: str, kernel: str):
    features, visibility = compute_features(kernel), VISIBILITIES[name]
    cut = Visibility(
        visibility.causal,
        None if visibility.documents is None else visibility.documents[:1, 2:13],
        None if visibility.key_documents is None else visibility.key_documents[:1, 2:13],
    )

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return linear_attention(features, query, key, value, cut)

    assert torch.autograd.gradcheck(attend, tuple(drawn(11, batch=1)), fast_mode=True)


@given(
    time=st.integers(1, 23),
    causal=st.booleans(),
    cuts=st.lists(st.integers(1, 22), max_size=4),
    padding=st.integers(0, 5),
)
def test_packed_documents_equal_separate_ones(time: int, causal: bool, cuts: list[int], padding: int):
    features, (query, key, value) = compute_features(), drawn(time, batch=1)
    starts = sorted({0, *(cut for cut in cuts if cut < time)})
    ends = [*starts[1:], time]
    lengths = torch.tensor(ends) - torch.tensor(starts)
    documents = torch.arange(len(lengths)).repeat_interleave(lengths)[None]
    documents[:, max(time - padding, 0) :] = -1
    packed = linear_attention(features, query, key, value, Visibility(causal, documents, documents))
    assert packed.isfinite().all()
    for number in documents.unique().tolist():
        own = (documents[0] == number).nonzero()[:, 0]
        alone = linear_attention(features, query[:, :, own], key[:, :, own], value[:, :, own], Visibility(causal))
        torch.testing.assert_close(packed[:, :, own], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["causal", "packed causal"])
def test_later_tokens_change_no_bit(name: str, dtype: torch.dtype):
    features, visibility = compute_features(dtype=dtype), VISIBILITIES[name]
    inputs = each(Tensor.detach, drawn(22, dtype=dtype))
    found = linear_attention(features, *inputs, visibility)
    for first_changed in (1, 6, 8, 15, 21):
        changed = each(Tensor.clone, inputs)
        for x in changed:
            x[:, :, first_changed:] = 100 * torch.randn_like(x[:, :, first_changed:])
        again = linear_attention(features, *changed, visibility)
        assert torch.equal(again[:, :, :first_changed], found[:, :, :first_changed])
        assert not torch.equal(again[:, :, first_changed:], found[:, :, first_changed:])


@pytest.mark.parametrize(
    "visibility",
    [
        Visibility(False, None, torch.tensor([[0] * 9 + [-1] * 6])),
        Visibility(False, torch.tensor([[0] * 9 + [-1] * 6]), torch.tensor([[0] * 9 + [-1] * 6])),
        Visibility(True, torch.tensor([[0] * 9 + [-1] * 6]), torch.tensor([[0] * 9 + [-1] * 6])),
        Visibility(True, None, torch.tensor([[0] * 9 + [-1] * 6])),
    ],
)
def test_padding_changes_nothing_and_gets_no_gradient(visibility: Visibility):
    features, inputs = compute_features(), drawn(15, batch=1)
    short = each(lambda x: x[:, :, :9], inputs)
    padded = linear_attention(features, *inputs, visibility)
    assert padded.isfinite().all()
    torch.testing.assert_close(
        padded[:, :, :9], linear_attention(features, *short, Visibility(visibility.causal)), rtol=1e-10, atol=1e-12
    )
    for gradient in torch.autograd.grad(padded[:, :, :9].square().sum(), inputs):
        assert gradient[:, :, :9].abs().sum() > 0
        assert (gradient[:, :, 9:] == 0).all()


@given(time=st.integers(1, 20), steps=st.lists(st.integers(1, 7), max_size=5), padding=st.integers(0, 6))
def test_token_by_token_from_a_cache_equals_the_whole(time: int, steps: list[int], padding: int):
    features, inputs = compute_features(), each(Tensor.detach, drawn(time))
    documents = torch.zeros(3, time, dtype=torch.long)
    documents[1, : min(padding, time)] = -1
    documents[2, time // 2 :] = 1
    for get_visibility in (
        lambda own: Visibility(True),
        lambda own: Visibility(True, documents[:, own], documents[:, : own.stop]),
    ):
        whole = linear_attention(features, *inputs, get_visibility(slice(0, time)))
        cache, place, found = LayerCache(), 0, []
        for step in [*steps, *[1] * time]:
            own = slice(place, min(place + step, time))
            if own.start < own.stop:
                found.append(
                    linear_attention(
                        features, *each(itemgetter((..., own, slice(None))), inputs), get_visibility(own), cache
                    )
                )
            place = own.stop
        torch.testing.assert_close(torch.cat(found, 2), whole, rtol=1e-10, atol=1e-12)


def test_a_cache_is_of_constant_size_with_rows_first():
    features, cache, sizes = compute_features(), LayerCache(), set()
    for time in (5, 1, 30):
        inputs = each(Tensor.detach, drawn(time))
        documents = torch.zeros(3, time, dtype=torch.long)
        linear_attention(features, *inputs, Visibility(True, documents, documents), cache)
        sizes.add(tuple((name, tensor.shape) for name, tensor in sorted(cache.tensors.items())))
    assert sizes == {(("document", (3,)), ("state", (3, HEADS, 10, WIDTH + 1)))}


def test_a_memory_is_summed_once():
    features, (query, key, value) = compute_features(), drawn(6, key_time=9)
    mask = torch.tensor([[0] * 9, [0] * 4 + [-1] * 5, [0] * 9])
    whole = linear_attention(features, query, key, value, Visibility(False, None, mask))
    cache, nothing = LayerCache(), torch.full_like(key[:, :, :1], torch.nan)
    first = linear_attention(features, query[:, :, :2], key, value, Visibility(False, None, mask), cache)
    rest = linear_attention(features, query[:, :, 2:], nothing, nothing, Visibility(False, None, mask), cache)
    torch.testing.assert_close(torch.cat((first, rest), 2), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("width", [4, 64, 160])
@pytest.mark.parametrize("name", VISIBILITIES)
@pytest.mark.parametrize("norm", [1e-6, 30.0, 1e4, 1e12])
def test_results_and_gradients_are_finite_at_any_norm(name: str, width: int, norm: float, kernel: str):
    features = compute_features(kernel, width, torch.float32)
    generator = torch.Generator().manual_seed(2)
    norms = (norm, norm, 1.0)
    inputs = each(lambda n: (torch.randn(3, HEADS, 22, width, generator=generator) * n).requires_grad_(), norms)
    found = linear_attention(features, *inputs, VISIBILITIES[name])
    assert found.isfinite().all()
    for gradient in torch.autograd.grad(found.sum(), inputs):
        assert gradient.isfinite().all()


def test_keys_as_long_as_the_features_rows_do_not_overflow():
    """Keys that meet a feature's largest exponent, and queries of any length along them."""
    features = compute_features(width=64, dtype=torch.float32)
    rows = features.projection.detach() * 64**0.25
    key = rows.expand(1, HEADS, 10, 64).clone().requires_grad_()
    for norm in (0.1, 1.0, 100.0):
        found = linear_attention(features, key * norm, key, key, Visibility(True))
        assert found.isfinite().all()
        assert torch.autograd.grad(found.sum(), key)[0].isfinite().all()


def test_no_query_is_so_long_that_its_features_vanish():
    """The longer a query, the more its result is the value of the key that shares its largest feature."""
    features = compute_features(dtype=torch.float32)
    query, key, value = (x.detach().float() for x in drawn(8, batch=1))
    found = linear_attention(features, 1e6 * query, key, value, Visibility(False))
    largest = (query @ features.projection.mT).argmax(-1)
    of_keys = features(key)
    for head in range(HEADS):
        weights = of_keys[0, head][:, largest[0, head]].mT
        expected = (weights / weights.sum(-1, keepdim=True)) @ value[0, head]
        torch.testing.assert_close(found[0, head], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", VISIBILITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_costs_only_the_rounding_of_inputs_and_results(name: str, dtype: torch.dtype):
    features, visibility = compute_features(), VISIBILITIES[name]
    low = each(lambda x: x.detach().to(dtype).requires_grad_(), drawn(22))
    precise = each(lambda x: x.detach().double().requires_grad_(), low)
    expected = linear_attention(features, *precise, visibility)
    single = compute_features(dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        found = linear_attention(single, *low, visibility)
        towards = torch.ones_like(found)
        gradients = torch.autograd.grad(found, low, towards)  # inside autocast, as some do
    assert found.dtype is dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=unit, atol=unit / 100)
    for one, other in zip(gradients, torch.autograd.grad(expected, precise, towards.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2 * unit, atol=unit / 10)


def saved_by(run: Callable[[], object]) -> int:
    """Elements that a forward pass keeps for the backward one, each storage counted once."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    assert result is not None
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values())


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_kept_for_the_backward_pass_is_linear_in_length(causal: bool):
    features = compute_features()
    inputs = [drawn(time) for time in (64, 128, 256)]
    sizes = [saved_by(partial(linear_attention, features, *one, Visibility(causal))) for one in inputs]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    features_alone = 2 * 3 * HEADS * 128 * 10
    assert sizes[2] - sizes[1] < 128 * 3 * HEADS * 10 * (WIDTH + 1) + features_alone, "no state for each token"


def test_it_refuses_a_bias():
    with pytest.raises(AssertionError, match="no scores"):
        linear_attention(compute_features(), *drawn(3), Visibility(True, bias=lambda distance: distance))
