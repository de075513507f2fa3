"""Attention against the formula written with loops over heads, on every path."""

import math

import pytest
import torch

from vaak.nn.kernels import softmax_attention
from vaak.nn.kernels.softmax_attention import attend
from vaak.nn.kernels.visibility import causal_mask


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """The paper's formula, head by head, in float64."""
    rows = []
    group = query.shape[1] // key.shape[1]
    for head in range(query.shape[1]):
        q, k, v = query[:, head].double(), key[:, head // group].double(), value[:, head // group].double()
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
        rows.append(scores.softmax(-1) @ v)
    return torch.stack(rows, 1)


def drawn(dtype: torch.dtype, key_heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 4, 6, 8), (2, key_heads, 6, 8), (2, key_heads, 6, 8)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)]
)
def test_equals_the_formula_with_a_causal_flag_a_mask_and_neither(dtype: torch.dtype, tolerance: float, key_heads: int):
    query, key, value = drawn(dtype, key_heads)
    causal = causal_mask(6, 6, torch.device("cpu"))
    for mask, is_causal, visible in [
        (None, True, causal),
        (causal[None, None], False, causal),
        (None, False, torch.ones_like(causal)),
    ]:
        mixed = attend(query, key, value, mask=mask, is_causal=is_causal, dropout=0.0)
        assert mixed.dtype is dtype
        torch.testing.assert_close(
            mixed.double(), reference(query, key, value, visible), rtol=tolerance, atol=tolerance
        )


def test_the_explicit_path_has_the_kernels_gradients(monkeypatch: pytest.MonkeyPatch):
    gradients = []
    for longest in (1024, 0):
        monkeypatch.setattr(softmax_attention, "LONGEST_EXPLICIT", longest)
        inputs = drawn(torch.bfloat16)
        attend(*inputs, mask=None, is_causal=True, dropout=0.0).float().square().sum().backward()
        gradients.append([tensor.grad for tensor in inputs])
    for explicit, kernel in zip(*gradients, strict=True):
        torch.testing.assert_close(explicit, kernel, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_weights_keeps_the_mean(dtype: torch.dtype):
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 400, 8, dtype=dtype), torch.zeros(1, 1, 400, 8, dtype=dtype)
    mixed = attend(query, key, torch.ones(1, 1, 400, 8, dtype=dtype), mask=None, is_causal=False, dropout=0.25)
    assert mixed.float().std() > 0.01
    assert abs(mixed.float().mean().item() - 1) < 0.02
