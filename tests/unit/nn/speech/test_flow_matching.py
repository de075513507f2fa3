"""Flow matching between two normal distributions, where the field and its flow are known in closed form."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor

from vaak.nn.speech.flow_matching import (
    Draws,
    flow_matching_loss,
    integrate,
    path,
    row_draws,
)
from vaak.nn.speech.masks import length_mask

MEAN, DEVIATION, SIGMA_MIN = 1.5, 0.6, 0.05


def variance(times: Tensor) -> Tensor:
    """Of x(t), where the targets are normal with MEAN and DEVIATION."""
    return (1 - (1 - SIGMA_MIN) * times).square() + (DEVIATION * times).square()


def field(x: Tensor, times: Tensor) -> Tensor:
    """The mean velocity of all paths through x at that time: a regression of one normal on another."""
    t = times[:, None, None]
    covariance = t * DEVIATION**2 - (1 - SIGMA_MIN) * (1 - (1 - SIGMA_MIN) * t)
    return MEAN + covariance / variance(t) * (x - t * MEAN)


def test_the_regression_on_drawn_paths_is_the_field():
    generator = torch.Generator().manual_seed(0)
    target = MEAN + DEVIATION * torch.randn(1, 100_000, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(target.shape, generator=generator, dtype=torch.float64)
    for time in (0.0, 0.3, 0.8, 1.0):
        times = torch.tensor([time], dtype=torch.float64)
        x, velocity = path(target, Draws(noise, times), SIGMA_MIN)
        features = torch.cat((torch.ones_like(x[0]), x[0]), 1)
        fitted = torch.linalg.lstsq(features, velocity[0]).solution
        at = torch.tensor([[[-1.0], [0.0], [2.0]]], dtype=torch.float64)
        expected = field(at, times)[0]
        torch.testing.assert_close(fitted[0] + at[0] * fitted[1], expected, rtol=0, atol=0.03)


def test_a_path_leads_from_noise_to_its_target_with_its_velocity():
    target, noise = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    begin, velocity = path(target, Draws(noise, torch.zeros(2)), SIGMA_MIN)
    end, _ = path(target, Draws(noise, torch.ones(2)), SIGMA_MIN)
    torch.testing.assert_close(begin, noise)
    torch.testing.assert_close(end, target + SIGMA_MIN * noise)
    torch.testing.assert_close(begin + velocity, end)


@pytest.mark.parametrize(("method", "error"), [("euler", 0.02), ("midpoint", 1e-6)])
def test_noise_flows_to_the_targets_distribution(method: Literal["euler", "midpoint"], error: float):
    """The exact flow is x(t) = t · mean + sqrt(variance(t)) · noise."""
    noise = torch.linspace(-2, 2, 9, dtype=torch.float64)[None, :, None]
    expected = MEAN + variance(torch.ones(1, dtype=torch.float64)).sqrt().item() * noise
    torch.testing.assert_close(integrate(field, noise, 100, method), expected, rtol=0, atol=error)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2)])
def test_errors_fall_with_the_order_of_the_method(method: Literal["euler", "midpoint"], order: int):
    """Where the field is (1 + 2 t) x, noise grows exp(2)-fold."""
    noise = torch.randn(1, 3, 2, dtype=torch.float64)

    def growth(x: Tensor, times: Tensor) -> Tensor:
        return (1 + 2 * times[:, None, None]) * x

    errors = [(integrate(growth, noise, n, method) - math.exp(2) * noise).abs().max().item() for n in (100, 200, 400)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.05)


def test_temperature_narrows_what_is_drawn():
    noise = torch.randn(1, 500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide, narrow = (integrate(field, noise, 20, temperature=temperature) for temperature in (1.0, 0.5))
    torch.testing.assert_close((narrow - MEAN), 0.5 * (wide - MEAN))
    assert torch.equal(integrate(lambda x, times: torch.zeros_like(x), noise, 3, temperature=0.5), 0.5 * noise)


def test_the_losses_are_sums_over_real_frames_and_bins():
    mask = length_mask(torch.tensor([4, 2]))
    target = torch.randn(2, 4, 3)
    draws = row_draws([1, 2], [4, 2], 3)
    spoilt = torch.where(mask[..., None], target, torch.nan)
    x, velocity = path(target, draws)
    expected = sum(((x - velocity)[row, :length]).square().sum() for row, length in enumerate((4, 2)))
    term = flow_matching_loss(lambda x, times: x, spoilt, draws, mask)
    assert term.per == "mel_bin"
    torch.testing.assert_close(term.total, expected)


def test_draws_are_the_rows_own():
    together = row_draws([3, 1, 2], [5, 40, 17], 8)
    assert together.noise.shape == (3, 40, 8)
    for row, (key, length) in enumerate(((3, 5), (1, 40), (2, 17))):
        alone = row_draws([key], [length], 8)
        assert torch.equal(together.noise[row, :length], alone.noise[0])
        assert torch.equal(together.times[row], alone.times[0])
        assert not together.noise[row, length:].any()
    many = row_draws(range(200), [50] * 200, 10)
    assert many.noise.mean().abs() < 0.02
    assert many.noise.std().item() == pytest.approx(1, abs=0.02)
    assert many.times.min() >= 0
    assert many.times.mean().item() == pytest.approx(0.5, abs=0.06)
