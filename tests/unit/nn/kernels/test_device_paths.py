"""The paths of a CPU and of CUDA give the same numbers: both are computed here, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.kernels.device_paths import PATHS, PATHS_OF_OTHER_DEVICES, paths_on
from vaak.nn.kernels.linear_attention import linear_attention
from vaak.nn.kernels.random_features import RandomFeatures
from vaak.nn.kernels.softmax_attention import attend
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.positional_encodings import ConvolutionalPositions

Ways = Callable[[str], None]


@pytest.fixture
def compute_as_on(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Makes a CPU take the paths of another device."""
    paths = dict(PATHS)
    return lambda device: monkeypatch.setitem(PATHS, "cpu", paths[device])


def with_gradients(compute: Callable[[], Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the result, and the gradients of a weighted sum of it."""
    result = compute()
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
    return [result, *torch.autograd.grad((result * weights).sum(), inputs)]


def test_each_device_has_its_paths():
    assert paths_on(torch.device("cpu")).toeplitz_convolution
    assert paths_on(torch.device("cpu")).explicit_bfloat16_attention
    assert not paths_on(torch.device("cuda", 0)).toeplitz_convolution
    assert not paths_on(torch.device("cuda")).explicit_bfloat16_attention
    assert paths_on(torch.device("mps")) is PATHS_OF_OTHER_DEVICES


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("time", "kernel_size"), [(1, 5), (16, 31), (37, 5), (70, 31)])
def test_convolutions(compute_as_on: Ways, time: int, kernel_size: int, causal: bool, documents: bool):
    torch.manual_seed(0)
    module = ConvolutionalPositions(6, causal, kernel_size).double()
    torch.nn.init.normal_(module.bias)
    x = torch.randn(3, time, 6, dtype=torch.float64, requires_grad=True)
    numbers = torch.arange(time).repeat(3, 1) // 7 if documents else None
    found = []
    for device in ("cpu", "cuda"):
        compute_as_on(device)
        found.append(with_gradients(lambda: module(x, numbers), [x, module.weight, module.bias]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-11, atol=1e-11)


def test_cuda_takes_torchs_kernels(compute_as_on: Ways, monkeypatch: pytest.MonkeyPatch):
    called = []
    for name in ("conv1d", "scaled_dot_product_attention"):
        own = getattr(F, name)
        monkeypatch.setattr(F, name, lambda *a, own=own, name=name, **k: (called.append(name), own(*a, **k))[1])
    query = torch.randn(1, 2, 5, 4, dtype=torch.bfloat16)
    for device in ("cpu", "cuda"):
        compute_as_on(device)
        ConvolutionalPositions(6, True)(torch.randn(1, 9, 6), None)
        attend(query, query, query, mask=None, is_causal=True, dropout=0.0)
        called.append(device)
    assert called == ["cpu", "conv1d", "scaled_dot_product_attention", "cuda"]


@pytest.mark.parametrize("masked", [False, True])
def test_softmax_attention_in_bfloat16(compute_as_on: Ways, masked: bool):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 4, 9, 8, generator=generator).bfloat16().requires_grad_() for _ in range(3)]
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None] if masked else None
    found = []
    for device in ("cpu", "cuda"):
        compute_as_on(device)
        found.append(with_gradients(lambda: attend(*inputs, mask=mask, is_causal=not masked, dropout=0.0), inputs))
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("causal", [False, True])
def test_features_at_once(compute_as_on: Ways, causal: bool):
    torch.manual_seed(0)
    features, visibility = RandomFeatures(8, 4096), Visibility(causal=causal)
    inputs = query, key, value = [torch.randn(2, 2, 300, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    found = []
    for device in ("cpu", "cuda"):
        compute_as_on(device)
        found.append(with_gradients(lambda: linear_attention(features, query, key, value, visibility), inputs))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
