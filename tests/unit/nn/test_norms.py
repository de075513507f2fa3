"""RMSNorm is its formula, and is never less precise than float32."""

import torch

from vaak.nn.norms import RMSNorm


def test_equals_the_formula():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = RMSNorm(8, eps=1e-3).double()
    torch.nn.init.normal_(norm.weight)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)


def test_low_precision_input_is_normalised_in_float32():
    x = torch.randn(4, 16).bfloat16()
    norm = RMSNorm(16)
    assert norm(x).dtype is torch.float32
    torch.testing.assert_close(norm(x), norm(x.float()))


def test_zeros_stay_finite():
    x = torch.zeros(2, 4, requires_grad=True)
    RMSNorm(4)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
