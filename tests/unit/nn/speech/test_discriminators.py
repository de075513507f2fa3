"""Discriminators see what they are there to see, rows apart; their losses against direct formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.batch import Term
from vaak.nn.speech.waveform_losses import (
    DiscriminatorOutput,
    Discriminators,
    Kind,
    PeriodDiscriminator,
    Resolution,
    ResolutionDiscriminator,
    discriminator_loss,
    feature_matching_loss,
    generator_loss,
)

SMALL = Resolution(64, 16, 64)


def made(seed: int = 0) -> Discriminators:
    torch.manual_seed(seed)
    return Discriminators((2, 3), (SMALL, Resolution(32, 8, 24)), period_channels=2, resolution_channels=4).double()


def waveforms(rows: int = 3, samples: int = 200) -> Tensor:
    return torch.randn(rows, samples, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def tensors(judgements: list[DiscriminatorOutput]) -> list[Tensor]:
    return [tensor for one in judgements for tensor in (one.scores, *one.features)]


def test_the_batch_changes_no_row():
    discriminators, true = made(), waveforms()
    together = tensors(discriminators(true))
    assert len(together) == 4 * 6
    for row in range(3):
        for whole, alone in zip(together, tensors(discriminators(true[row : row + 1])), strict=True):
            torch.testing.assert_close(whole[row : row + 1], alone, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("period", [2, 3, 7])
def test_a_period_discriminator_convolves_each_phase_of_its_period(period: int):
    torch.manual_seed(0)
    discriminator, true = PeriodDiscriminator(period, 2).double(), waveforms(samples=180)
    scores = discriminator(true).scores
    for phase in range(period):
        x = F.pad(true, (0, -180 % period))[:, None, phase::period]
        for number, layer in enumerate((*discriminator.layers, discriminator.output)):
            assert isinstance(layer, nn.Conv2d)
            x = F.conv1d(x, layer.weight[..., 0], layer.bias, layer.stride[0], layer.padding[0])
            x = F.leaky_relu(x, 0.1) if number < 5 else x
        torch.testing.assert_close(scores[..., phase], x, rtol=1e-11, atol=1e-11)


def test_a_resolution_discriminator_reads_magnitudes_alone():
    """A signal and its negative have other samples, but the same magnitudes."""
    torch.manual_seed(0)
    discriminator, true = ResolutionDiscriminator(SMALL, 4).double(), waveforms()
    assert torch.equal(discriminator(true).scores, discriminator(-true).scores)
    assert not torch.allclose(discriminator(true).scores, discriminator(true.flip(1)).scores)
    assert discriminator(true).features[0].shape == (3, 4, 17, 7), "33 bins and 13 frames, halved"


def judgements(seed: int) -> list[DiscriminatorOutput]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (((1, 5, 2), [(4, 9, 2), (4, 5, 2)]), ((1, 3, 3), [(2, 6, 6), (2, 3, 3)]))
    return [
        DiscriminatorOutput(
            2 * torch.randn(3, *scores, generator=generator),
            [torch.randn(3, *feature, generator=generator).requires_grad_() for feature in features],
        )
        for scores, features in sizes
    ]


@pytest.mark.parametrize("kind", ["hinge", "least_squares"])
def test_adversarial_losses_are_those_of_the_papers(kind: Kind):
    true, fake = judgements(1), judgements(2)
    high, low = ((lambda s: max(0.0, 1 - s), lambda s: max(0.0, 1 + s)), (lambda s: (1 - s) ** 2, lambda s: s**2))[
        kind == "least_squares"
    ]

    def mean(scores: Tensor, loss: object) -> float:
        assert callable(loss)
        return float(sum(loss(score) for score in scores.flatten().tolist()) / scores.numel())

    expected = sum(
        mean(theirs.scores[row], high) + mean(ours.scores[row], low)
        for row in range(3)
        for theirs, ours in zip(true, fake, strict=True)
    )
    term = discriminator_loss(true, fake, kind)
    assert term.per == "example"
    assert term.total.item() == pytest.approx(expected / 2, rel=1e-5)
    term = generator_loss(fake, kind)
    assert term.per == "example"
    expected = sum(mean(ours.scores[row], high) for row in range(3) for ours in fake) / 2
    assert term.total.item() == pytest.approx(expected, rel=1e-5)


def test_features_are_matched_layer_by_layer():
    true, fake = judgements(1), judgements(2)
    term = feature_matching_loss(true, fake)
    pairs = [pair for t, f in zip(true, fake, strict=True) for pair in zip(t.features, f.features, strict=True)]
    expected = sum((a - b).abs().mean() for a, b in pairs) * 3 / 2  # all rows of one size: a mean, times 3 rows
    assert term.per == "example"
    torch.testing.assert_close(term.total, expected)
    leaves = [feature for one in (*fake, *true) for feature in one.features]
    gradients = torch.autograd.grad(term.total, leaves, allow_unused=True)
    assert [gradient is not None for gradient in gradients] == [True] * 4 + [False] * 4


@pytest.mark.parametrize("loss", [discriminator_loss, feature_matching_loss])
def test_losses_of_rows_add_up(loss: Callable[..., Term]):
    discriminators, true, fake = made(), waveforms(), waveforms().flip(0) + 0.1
    whole = loss(discriminators(true), discriminators(fake)).total
    parts = [loss(discriminators(true[row][None]), discriminators(fake[row][None])).total for row in range(3)]
    torch.testing.assert_close(whole, torch.stack(parts).sum(), rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_they_learn_to_tell_two_kinds_of_signals_apart():
    """Sines of one amplitude against noise of the same power."""
    torch.manual_seed(0)
    discriminators = made().float()
    optimizer = torch.optim.Adam(discriminators.parameters(), 5e-3)
    for _ in range(30):
        phases, noise = torch.rand(8, 1), torch.randn(8, 200) * 0.5**0.5
        sines = torch.sin(0.3 * torch.arange(200) + 6.3 * phases)
        loss = discriminator_loss(discriminators(sines), discriminators(noise)).total / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5, "2 is what scores of 0 give"


def test_weights_are_a_function_of_the_seed():
    first, again, other = (made(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
