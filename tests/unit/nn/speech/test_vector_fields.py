"""Networks of velocities: padding and batch change nothing, time and condition do; one learns a known field."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.config import StackConfig
from vaak.nn.initialisation import initialise
from vaak.nn.speech.flow_matching import TransformerField, UNetField, flow_matching_loss, integrate, row_draws
from vaak.nn.speech.masks import length_mask

BINS, CONDITION, LENGTHS = 5, 3, (7, 4, 1)


def transformer() -> nn.Module:
    config = StackConfig(d_model=16, num_layers=2, num_heads=2, dropout=0.0, position_type="convolutional")
    return TransformerField(config, BINS, CONDITION)


def unet() -> nn.Module:
    return UNetField(BINS, CONDITION, width=16, num_levels=3, blocks_per_level=1, kernel_size=3)


every = pytest.mark.parametrize("make", [transformer, unet])
Make = Callable[[], nn.Module]


def drawn(make: Make, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    network = make()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network.double()


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, condition = (torch.randn(3, 7, width, dtype=torch.float64, generator=generator) for width in (BINS, CONDITION))
    return x, torch.tensor([0.0, 0.4, 0.9], dtype=torch.float64), condition, length_mask(torch.tensor(LENGTHS))


@every
@pytest.mark.parametrize("more", [1, 4])
def test_neither_padding_nor_the_batch_changes_a_row(make: Make, more: int):
    network, (x, times, condition, mask) = drawn(make), inputs()
    together = network(x, times, condition, mask)
    assert not together[~mask].any()
    wider = [
        F.pad(one.masked_fill(~mask[..., None], torch.nan), (0, 0, 0, more), value=torch.nan) for one in (x, condition)
    ]
    padded = network(wider[0], times, wider[1], F.pad(mask, (0, more)))
    torch.testing.assert_close(padded[:, :7], together, rtol=1e-11, atol=1e-11)
    for row, length in enumerate(LENGTHS):
        here = slice(row, row + 1), slice(length)
        alone = network(x[here], times[row : row + 1], condition[here], mask[here])
        torch.testing.assert_close(together[here], alone, rtol=1e-11, atol=1e-11)


@every
def test_every_input_counts_and_every_parameter_learns(make: Make):
    network, (x, times, condition, mask) = drawn(make), inputs()
    leaves = [one.requires_grad_() for one in (x, times, condition)]
    gradients = torch.autograd.grad(
        network(*leaves, mask).square().sum(), [*leaves, *network.parameters()], materialize_grads=True
    )
    assert all(gradient.any() for gradient in gradients)
    for gradient in (gradients[0], gradients[2]):
        assert gradient.ne(0).any(-1).equal(mask)


def test_a_unet_reads_far_frames_at_its_lower_rates():
    network, (x, times, condition, _) = drawn(unet), inputs()
    x = x[:1].requires_grad_()
    (gradient,) = torch.autograd.grad(
        network(x, times[:1], condition[:1], torch.ones(1, 7, dtype=torch.bool))[0, 0].sum(), x
    )
    assert gradient[0, 6].any(), "six frames away, with kernels that reach one frame to each side"


@every
def test_weights_are_a_function_of_the_seed(make: Make):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        network = make()
        initialise(network)
        states.append(network.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    drawn_names = [name for name in states[0] if states[0][name].ndim > 1]
    assert not any(torch.equal(states[0][name], states[2][name]) for name in drawn_names)


@pytest.mark.slow
@pytest.mark.parametrize("make", [transformer, pytest.param(unet, marks=pytest.mark.slow)])
def test_learns_to_make_what_the_condition_says(make: Make):
    """Targets are the condition times a matrix: from noise, ten steps must come near them."""
    torch.manual_seed(0)
    network = make()
    initialise(network)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    matrix = torch.randn(CONDITION, BINS, generator=torch.Generator().manual_seed(0))
    mask = length_mask(torch.tensor([7] * 32))
    for step in range(100):
        generator = torch.Generator().manual_seed(step)
        condition = torch.randn(32, 7, CONDITION, generator=generator)
        draws = row_draws(range(32 * step, 32 * step + 32), [7] * 32, BINS)

        def field(x: Tensor, times: Tensor, condition: Tensor = condition) -> Tensor:
            velocity: Tensor = network(x, times, condition, mask)
            return velocity

        optimizer.zero_grad()
        (flow_matching_loss(field, condition @ matrix, draws, mask).total / (32 * 7 * BINS)).backward()
        optimizer.step()
    with torch.no_grad():
        made = integrate(field, row_draws(range(32), [7] * 32, BINS).noise, 10)
    assert (made - condition @ matrix).square().mean() < 0.2 * (condition @ matrix).square().mean()
