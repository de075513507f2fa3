"""AdamW with moments in 8 bits: against float64, block by block, and against AdamW on a small model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vaak.engine.optim.adamw_8bit import AdamW8bit, dequantise, dynamic_levels, quantise

LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.99), 1e-8, 0.1


def quantised(values: np.ndarray, *, signed: bool) -> np.ndarray:
    """Every block of 256 as multiples of its largest magnitude, each the nearest level, in float64."""
    levels = np.array(dynamic_levels(signed), np.float32).astype(np.float64)
    flat, found = values.reshape(-1), np.zeros(values.size)
    for start in range(0, flat.size, 256):
        block = flat[start : start + 256]
        scale = np.abs(block).max()
        if scale == 0:
            continue
        nearest = np.abs(block[:, None] / scale - levels).argmin(1)
        if not signed:
            nearest = np.maximum(nearest, block > 0)
        found[start : start + 256] = levels[nearest] * scale
    return found.reshape(values.shape)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("shape", [(3, 256), (5, 77), (1, 1), (2, 3, 4)])
def test_a_number_becomes_the_nearest_multiple_of_its_blocks_scale(signed: bool, shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator) * 10 ** torch.empty(shape).uniform_(-9, 3, generator=generator)
    values = values if signed else values.abs()
    codes, scale = torch.zeros(shape, dtype=torch.uint8), torch.zeros(-(-values.numel() // 256))
    quantise(values, codes, scale, signed=signed)
    found = dequantise(codes, scale, signed=signed).double().numpy()
    np.testing.assert_allclose(found, quantised(values.double().numpy(), signed=signed), rtol=1e-6)
    if not signed:
        assert ((found > 0) == (values.numpy() > 0)).all(), "its square root is what a first moment is divided by"


def test_nothing_is_what_zeros_stand_for():
    codes, scale = torch.zeros(2, 9, dtype=torch.uint8), torch.zeros(1)
    assert not dequantise(codes, scale, signed=True).any()
    quantise(torch.zeros(2, 9), codes, scale, signed=True)
    assert not dequantise(codes, scale, signed=True).any()


def test_updates_are_adamws_in_float64_with_quantised_moments():
    generator = torch.Generator().manual_seed(1)
    weight = nn.Parameter(torch.randn(20, 33, generator=generator))
    rule = AdamW8bit([weight], LR, BETAS, EPS, DECAY)
    expected = weight.detach().double().numpy().copy()
    mean, square = np.zeros_like(expected), np.zeros_like(expected)
    for step in range(1, 8):
        weight.grad = torch.randn(20, 33, generator=generator) * (torch.rand(20, 33, generator=generator) < 0.5)
        rule.step()
        gradient = weight.grad.double().numpy()
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        update = mean / (1 - BETAS[0] ** step) / (np.sqrt(square / (1 - BETAS[1] ** step)) + EPS)
        expected = expected * (1 - LR * DECAY) - LR * update
        mean, square = quantised(mean, signed=True), quantised(square, signed=False)
        np.testing.assert_allclose(weight.detach().numpy(), expected, atol=2e-4)
    assert np.abs(weight.detach().numpy() - expected).mean() < 1e-6, "but where a number is between two levels"


def test_it_takes_a_quarter_of_the_memory():
    weight = nn.Parameter(torch.zeros(64, 256))
    weight.grad = torch.ones_like(weight)
    rule = AdamW8bit([weight])
    rule.step()
    kept = sum(tensor.nbytes for tensor in rule.state[weight].values())
    assert kept == 2 * 64 * 256 + 2 * 64 * 4 + 4


def test_a_small_model_learns_as_by_adamw():
    found = []
    for make in (torch.optim.AdamW, AdamW8bit):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3))
        inputs = torch.randn(256, 20)
        classes = (inputs @ torch.randn(20, 3)).argmax(1)
        rule = make(model.parameters(), lr=0.01)
        for _ in range(60):
            loss = nn.functional.cross_entropy(model(inputs), classes)
            rule.zero_grad()
            loss.backward()
            rule.step()
        found.append(float(loss.detach()))
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert found[0] < 0.2
