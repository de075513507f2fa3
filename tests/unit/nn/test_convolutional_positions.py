"""Convolutional positions against loops over taps; documents, padding and a cache change nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.positional_encodings import ConvolutionalPositions

WIDTH = 3
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
causality = pytest.mark.parametrize("causal", [True, False])


def made(causal: bool, kernel_size: int = 5) -> ConvolutionalPositions:
    torch.manual_seed(0)
    module = ConvolutionalPositions(WIDTH, causal, kernel_size).double()
    torch.nn.init.normal_(module.bias)
    return module


def drawn(time: int, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(time)
    return torch.randn(rows, time, WIDTH, dtype=torch.float64, generator=generator)


def formula(module: ConvolutionalPositions, x: torch.Tensor, documents: list[int]) -> torch.Tensor:
    """``x + gelu(bias + sum over taps)`` of one row, in which a tap reaches its own real document only."""
    size, time = module.kernel_size, x.shape[1]
    first = -(size - 1) if module.causal else -(size // 2)
    rows = []
    for place in range(time):
        mixed: torch.Tensor = module.bias
        for tap in range(size):
            other = place + first + tap
            if 0 <= other < time and documents[other] == documents[place] >= 0:
                mixed = mixed + module.weight[:, 0, tap] * x[0, other]
        rows.append(x[0, place] + F.gelu(mixed))
    return torch.stack(rows)[None]


@given(LENGTHS, st.integers(0, 6), st.integers(0, 6), st.booleans(), st.sampled_from([1, 3, 5]))
def test_equals_the_formula_for_packed_and_padded_rows(
    lengths: list[int], before: int, after: int, causal: bool, kernel_size: int
):
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    documents = [-1] * before + numbers + [-1] * after
    module, x = made(causal, kernel_size), drawn(len(documents))
    real = torch.tensor(documents) >= 0
    spoilt = x.masked_fill(~real[:, None], float("inf"))  # what is padding must not even be read
    ours = module(spoilt, torch.tensor([documents]))[:, real]
    torch.testing.assert_close(ours, formula(module, x, documents)[:, real], rtol=1e-12, atol=1e-12)


@causality
def test_without_documents_a_row_is_one(causal: bool):
    module, x = made(causal), drawn(12, rows=2)
    torch.testing.assert_close(module(x, None), module(x, torch.zeros(2, 12, dtype=torch.long)), rtol=0, atol=1e-12)
    torch.testing.assert_close(module(x, None)[:1], formula(module, x[:1], [0] * 12), rtol=0, atol=1e-12)


@causality
def test_gradients_equal_the_formulas(causal: bool):
    documents = [0, 0, 0, 0, 1, 1, 2, 2, 2, -1]
    module, x = made(causal), drawn(10)
    gradients = []
    for compute in (lambda x: module(x, torch.tensor([documents])), lambda x: formula(module, x, documents)):
        leaf = x.clone().requires_grad_()
        inputs = (leaf, module.weight, module.bias)
        gradients.append(torch.autograd.grad(compute(leaf)[:, :9].square().sum(), inputs))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@given(st.integers(0, 7), st.lists(st.integers(1, 6), min_size=1, max_size=6), st.booleans())
def test_decoding_in_pieces_equals_the_whole_for_rows_padded_on_the_left(
    padding: int, pieces: list[int], with_documents: bool
):
    """One row begins with padding, the other doesn't; a new document may begin in the middle."""
    time = sum(pieces)
    module, x = made(causal=True), drawn(time, rows=2)
    documents = None
    if with_documents:
        documents = torch.zeros(2, time, dtype=torch.long)
        documents[0, :padding] = -1
        documents[1, time // 2 :] = 1
    cache, parts, start = LayerCache(), [], 0
    for piece in pieces:
        now = slice(start, start + piece)
        parts.append(module(x[:, now], None if documents is None else documents[:, now], cache))
        start += piece
    assert cache.tensors["inputs"].shape[1] == min(time, module.kernel_size - 1)
    torch.testing.assert_close(torch.cat(parts, 1), module(x, documents), rtol=0, atol=1e-12)


def test_a_cache_begun_with_padding_goes_on_without_documents():
    module, x = made(causal=True), drawn(8)
    cache = LayerCache()
    module(x[:, :5], torch.tensor([[-1, -1, 0, 0, 0]]), cache)
    rest = module(x[:, 5:], None, cache)
    torch.testing.assert_close(rest, module(x[:, 2:], None)[:, 3:], rtol=0, atol=1e-12)


def test_the_type_of_the_stream_is_kept_under_autocast():
    module, x = ConvolutionalPositions(8, causal=True), torch.randn(2, 6, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        positioned = module(x, torch.tensor([[0, 0, 0, 1, 1, -1]] * 2))
    positioned.sum().backward()
    assert positioned.dtype is torch.float32
    torch.testing.assert_close(positioned, module(x, torch.tensor([[0, 0, 0, 1, 1, -1]] * 2)), rtol=0, atol=0.05)


def test_kernels_begin_as_noise_that_keeps_the_variance():
    torch.manual_seed(0)
    module = ConvolutionalPositions(256, causal=False)
    x = torch.randn(1, 400, 256)
    convolved = F.conv1d(x.transpose(1, 2), module.weight, module.bias, groups=256)
    assert 0.9 < convolved.std().item() < 1.1
    assert module.bias.eq(0).all()
