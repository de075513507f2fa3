"""Predictors read no padding; their losses are sums over what they count."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vaak.nn.speech.masks import length_mask
from vaak.nn.speech.variance_adaptor import (
    SymbolPredictor,
    ValueEmbedding,
    duration_loss,
    energy_loss,
    pitch_loss,
    pitch_values,
    to_frames,
    voicing_loss,
)

LENGTHS = torch.tensor([5, 3, 1])
MASK = length_mask(LENGTHS)
VOICED = MASK & torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool()


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [SymbolPredictor(4, 2, width=6, dropout=0.0).double(), ValueEmbedding(4, 6).double()]


@pytest.mark.parametrize("part", parts(), ids=lambda part: type(part).__name__)
def test_neither_padding_nor_the_batch_changes_a_row(part: nn.Module):
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    padded = F.pad(x, (0, 0, 0, 2)).masked_fill(~length_mask(LENGTHS, 7)[..., None], torch.nan)
    together = part(padded, length_mask(LENGTHS, 7))
    for row, length in enumerate(LENGTHS):
        alone = part(x[row : row + 1, :length], MASK[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=1e-12, atol=1e-12)


def test_a_predictor_is_silent_in_padding():
    predictor = parts()[0]
    predicted = predictor(torch.randn(3, 5, 4, dtype=torch.float64), MASK)
    assert predicted.shape == (3, 5, 2)
    assert (predicted != 0).all(-1).equal(MASK)


def test_a_predictor_is_convolutions_norms_and_a_linear_layer():
    predictor = SymbolPredictor(4, 1, width=6, kernel_size=5, num_layers=2, dropout=0.0)
    state, x = predictor.state_dict(), torch.randn(2, 7, 4)
    expected = x
    for number in range(2):
        weight, bias = state[f"convolutions.{number}.weight"], state[f"convolutions.{number}.bias"]
        expected = F.conv1d(expected.transpose(1, 2), weight, bias, padding=2).transpose(1, 2).relu()
        expected = F.layer_norm(expected, (6,), state[f"norms.{number}.weight"], state[f"norms.{number}.bias"])
    expected = F.linear(expected, state["output.weight"], state["output.bias"])
    torch.testing.assert_close(predictor(x, torch.ones(2, 7, dtype=torch.bool)), expected)


def test_a_duration_is_the_inverse_of_its_logarithm():
    durations = torch.tensor([[0, 1, 7, 250]])
    torch.testing.assert_close(to_frames(durations.double().log1p()), durations.double())
    assert to_frames(torch.tensor([-3.0])).item() == 0


def test_losses_are_sums_with_their_units():
    predicted, targets = torch.randn(3, 5), torch.randn(3, 5)
    durations = torch.randint(1, 9, (3, 5))
    spoilt = torch.where(MASK, predicted, torch.nan)
    squares = (predicted - targets).square()
    terms = [
        duration_loss(spoilt, durations, MASK),
        pitch_loss(spoilt, targets, VOICED),
        voicing_loss(spoilt, VOICED, MASK),
        energy_loss(spoilt, targets, MASK),
    ]
    expected = [
        (predicted - (durations + 1).log()).square()[MASK].sum(),
        squares[VOICED].sum(),
        F.binary_cross_entropy(predicted[MASK].sigmoid(), VOICED[MASK].float(), reduction="sum"),
        squares[MASK].sum(),
    ]
    assert [term.per for term in terms] == ["phoneme"] * 4
    torch.testing.assert_close(torch.stack([term.total for term in terms]), torch.stack(expected))


def test_symbols_without_a_pitch_have_none_whatever_was_predicted():
    values = pitch_values(torch.where(VOICED, 2.0, torch.nan), VOICED)
    assert torch.equal(values, torch.stack((2.0 * VOICED, VOICED.float()), -1))


def test_weights_are_a_function_of_the_seed():
    first, again = parts(), parts()
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
