"""FAVOR+: the mean of the features' products is the softmax kernel, and their error is what the paper says."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from quick_cases import mostly_slow
from vaak.nn.kernels.linear_attention import linear_attention
from vaak.nn.kernels.random_features import RELU_FLOOR, RandomFeatures, draw_projection
from vaak.nn.kernels.visibility import Visibility


def pairs(norm: float, head_width: int = 8, count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys whose scaled norms are ``norm``."""
    generator = torch.Generator().manual_seed(2**31)  # no draw has this key: it would draw the pairs themselves
    drawn = torch.randn(2, count, head_width, generator=generator, dtype=torch.float64)
    query, key = drawn / drawn.norm(dim=-1, keepdim=True) * norm * head_width**0.25
    return query, key


def estimates(
    num_features: int, orthogonal: bool, draws: int = 600, norm: float = 0.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kernels of the pairs by every draw, ``(draw, pair)``, and the exact ones."""
    query, key = pairs(norm)
    features = RandomFeatures(8, num_features, orthogonal=orthogonal).double()
    found = []
    for number in range(draws):
        features.redraw_features(number)
        found.append((features(query) * features(key)).sum(-1))
    return torch.stack(found), ((query * key).sum(-1) / math.sqrt(8)).exp()


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("norm", mostly_slow((0.4, 0.8), 0.8))
def test_the_mean_over_draws_is_the_softmax_kernel(orthogonal: bool, norm: float):
    found, exact = estimates(20, orthogonal, norm=norm)
    standard_error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - exact).abs() < 4 * standard_error).all()
    assert (standard_error < 0.1 * exact).all()


@pytest.mark.parametrize("orthogonal", mostly_slow((True, False), True))
def test_the_squared_error_falls_as_one_over_the_number_of_features(orthogonal: bool):
    errors = []
    for num_features in (16, 64, 256):
        found, exact = estimates(num_features, orthogonal)
        errors.append(((found - exact) / exact).square().mean().item())
    assert 3.2 < errors[0] / errors[1] < 5
    assert 3.2 < errors[1] / errors[2] < 5


@pytest.mark.slow
def test_orthogonal_features_err_less_than_independent_ones():
    for num_features in (8, 32):
        errors = []
        for orthogonal in (True, False):
            found, exact = estimates(num_features, orthogonal, draws=300, norm=0.7)
            errors.append(((found - exact) / exact).square().mean())
        assert errors[0] < 0.95 * errors[1]


def test_the_relative_variance_of_independent_features_is_the_papers():
    """Lemma 2: ``(exp(|q + k|²) − 1) / m`` times the squared kernel, for scaled ``q`` and ``k``."""
    found, exact = estimates(64, orthogonal=False, draws=1500, norm=0.5)
    query, key = (x * 8**-0.25 for x in pairs(0.5))
    expected = ((query + key).square().sum(-1).exp() - 1) / 64
    torch.testing.assert_close((found / exact).var(0), expected, rtol=0.25, atol=0)


def test_rows_are_orthogonal_within_blocks_and_as_long_as_gaussian_ones():
    drawn = draw_projection(20, 8, 3, orthogonal=True)
    for block in drawn.split(8):
        products = block @ block.mT
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-12)
    lengths = torch.cat([draw_projection(64, 8, key, orthogonal=True).square().sum(-1) for key in range(100)])
    assert abs(lengths.mean().item() - 8) < 4 * math.sqrt(2 * 8 / 6400)
    assert abs(lengths.var().item() / 16 - 1) < 0.15


def test_directions_are_uniform():
    """Without the sign of R's diagonal, coordinates would have a mean."""
    drawn = torch.cat([draw_projection(4, 4, key, orthogonal=True) for key in range(2000)])
    assert (drawn.mean(0).abs() < 4 / math.sqrt(8000)).all()
    first_rows = drawn.view(-1, 4, 4)
    assert (first_rows.mean(0).abs() < 4 / math.sqrt(2000)).all()


def test_a_redraw_is_a_function_of_its_key():
    one, other = RandomFeatures(8, 20), RandomFeatures(8, 20)
    assert not torch.equal(one.projection, other.projection)
    buffer = one.projection
    one.redraw_features(7)
    torch.rand(3)
    other.redraw_features(7)
    assert torch.equal(one.projection, other.projection)
    assert one.projection is buffer
    other.redraw_features(8)
    assert not torch.equal(one.projection, other.projection)


def test_the_first_draw_is_a_function_of_the_default_generator():
    projections = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        projections.append(RandomFeatures(8, 20).projection)
    assert torch.equal(projections[0], projections[1])
    assert not torch.equal(projections[0], projections[2])


def test_the_projection_is_stored_with_the_model_and_is_no_parameter():
    features = RandomFeatures(8, 20)
    assert list(features.state_dict()) == ["projection"]
    assert not list(features.parameters())


def test_their_number_is_d_ln_d_unless_said():
    assert RandomFeatures(64).projection.shape == (266, 64)
    assert RandomFeatures(1).projection.shape == (1, 1)
    assert RandomFeatures(64, 30).projection.shape == (30, 64)


def test_relu_features_are_the_formulas():
    features = RandomFeatures(8, 20, kernel="relu").double()
    x = pairs(2.0)[0]
    expected = ((x * 8**-0.25) @ features.projection.mT).relu() + RELU_FLOOR
    torch.testing.assert_close(features(x), expected / math.sqrt(20), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_features_are_float32_under_autocast(dtype: torch.dtype):
    features = RandomFeatures(8, 20)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = features(x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, features.double()(x.double()).float(), rtol=1e-5, atol=0)


def test_keys_without_weight_are_warned_of_once_and_in_evaluation_only(caplog: pytest.LogCaptureFixture):
    """Heads of width 256 with a deviation of 4 gave exactly 0 in all rows, in silence."""
    torch.manual_seed(0)
    query, key, value = 4 * torch.randn(1, 1, 100, 256), 4 * torch.randn(1, 1, 100, 256), torch.ones(1, 1, 100, 256)
    kernel: Literal["softmax", "relu"]
    for kernel, factor, expected in (("softmax", 1.0, 1), ("softmax", 0.25, 0), ("relu", 1.0, 0)):
        caplog.clear()
        features = RandomFeatures(256, kernel=kernel)
        linear_attention(features, query * factor, key * factor, value, Visibility(causal=False))
        assert not caplog.messages, "a step of training doesn't wait for the device"
        for _ in range(3):
            features.train().eval()
            mixed = linear_attention(features, query * factor, key * factor, value, Visibility(causal=False))
        assert len(caplog.messages) == expected
        assert bool((mixed == 0).all()) == bool(expected)
        if expected:
            assert "heads of width 256" in caplog.text
            assert "100 % of the keys have no weight" in caplog.text
            assert "qk_norm: true" in caplog.text
