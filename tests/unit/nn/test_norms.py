"""Each norm is its formula, and is never less precise than float32."""

import pytest
import torch
from torch import nn

from vaak.nn.norms import NORMS, LayerNorm, RMSNorm, ScaleNorm, make_norm


def test_rms_norm_equals_the_formula():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = RMSNorm(8, eps=1e-3).double()
    nn.init.normal_(norm.weight)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)


def test_layer_norm_equals_the_formula_and_torch():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = LayerNorm(8, eps=1e-3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)
    reference = nn.LayerNorm(8, eps=1e-3).double()
    reference.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), reference(x))


def test_scale_norm_equals_the_formula():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    x[0, 0] = 1e-4 * x[0, 0] / x[0, 0].square().sum().sqrt()  # shorter than eps
    norm = ScaleNorm(8, eps=1e-3).double()
    torch.testing.assert_close(norm.scale.data, torch.full((1,), 8**0.5).double(), rtol=0, atol=1e-6)
    nn.init.constant_(norm.scale, 3.0)
    expected = 3.0 * x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-3)
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(norm(x)[0, 0].norm().item(), 0.3, rtol=0, atol=1e-9)


def test_scale_norm_gives_every_vector_one_length():
    lengths = ScaleNorm(16)(torch.randn(4, 7, 16) * 100).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 4.0))


@pytest.mark.parametrize("norm_type", NORMS)
def test_gradients(norm_type):
    norm = make_norm(norm_type, 6, 1e-5).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,), fast_mode=True)


@pytest.mark.parametrize("norm_type", NORMS)
def test_low_precision_input_is_normalised_in_float32(norm_type):
    x = torch.randn(4, 16).bfloat16()
    norm = make_norm(norm_type, 16, 1e-5)
    assert norm(x).dtype is torch.float32
    torch.testing.assert_close(norm(x), norm(x.float()))


@pytest.mark.parametrize("norm_type", NORMS)
def test_low_precision_weights_serve_precise_input(norm_type):
    x = torch.randn(4, 16)
    norm = make_norm(norm_type, 16, 1e-5).bfloat16()
    torch.testing.assert_close(norm(x), make_norm(norm_type, 16, 1e-5)(x))


@pytest.mark.parametrize("norm_type", NORMS)
def test_zeros_stay_finite(norm_type):
    x = torch.zeros(2, 4, requires_grad=True)
    make_norm(norm_type, 4, 1e-5)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_eps_reaches_the_norm():
    assert all(make_norm(norm_type, 4, 0.25).eps == 0.25 for norm_type in NORMS)
