"""Pitch and energy of symbols: means, losses by their formulas, and what controls change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vaak.audio.features.pitch import phoneme_means
from vaak.nn.speech.masks import length_mask
from vaak.nn.speech.variance_adaptor import VarianceAdaptor, symbol_means

WIDTH = 8
PITCH, ENERGY = (7.5, 0.5), (1.0, 2.0)
DURATIONS = torch.tensor([[2, 0, 3, 4], [1, 4, 0, 0]])
SYMBOLS = length_mask(torch.tensor([4, 2]))
FRAMES = length_mask(DURATIONS.sum(1))


def make() -> VarianceAdaptor:
    torch.manual_seed(0)
    return VarianceAdaptor(WIDTH, PITCH, ENERGY, {"width": 16, "dropout": 0.0}).double().eval()


def frames() -> torch.Tensor:
    """Energy and F0 of some frames, a third of them unvoiced; padding is not a number."""
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(2, 9, 2, generator=generator).double() * torch.tensor([4.0, 200.0]) + torch.tensor([0.1, 90.0])
    values[:, ::3, 1] = 0
    return torch.where(FRAMES[..., None], values, torch.nan)


def test_means_are_those_of_the_stored_features():
    values = frames()[..., 1]
    for row in range(2):
        count = int(DURATIONS[row].sum())
        f0 = values[row, :count].numpy()
        expected = phoneme_means(f0, DURATIONS[row].numpy(), f0 > 0)
        found = symbol_means(values, DURATIONS, FRAMES & (values > 0))[row]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_losses_are_those_of_their_formulas():
    adaptor, encoded = make(), torch.randn(2, 4, WIDTH).double()
    targets = adaptor.targets(frames(), DURATIONS, FRAMES)
    _, used, terms = adaptor(encoded, SYMBOLS, targets)
    f0, energy = torch.zeros(2, 4).double(), torch.zeros(2, 4).double()
    for row, symbol in zip(*np.nonzero(DURATIONS.numpy()), strict=True):
        begun = int(DURATIONS[row, :symbol].sum())
        part = frames()[row, begun : begun + int(DURATIONS[row, symbol])]
        voiced = part[:, 1][part[:, 1] > 0]
        f0[row, symbol] = (voiced.mean().log2() - PITCH[0]) / PITCH[1] if len(voiced) else torch.nan
        energy[row, symbol] = (part[:, 0].mean().log2() - ENERGY[0]) / ENERGY[1]
    has_pitch = (DURATIONS > 0) & f0.isfinite()
    assert adaptor.pitch is not None
    assert adaptor.energy is not None
    pitch, voicing = adaptor.pitch.predictor(encoded, SYMBOLS).unbind(-1)
    first = encoded + adaptor.pitch.embedding(
        torch.stack((f0.masked_fill(~has_pitch, 0.0), has_pitch.double()), -1), SYMBOLS
    )
    expected = {
        "pitch": (pitch - f0)[has_pitch].square().sum(),
        "voicing": F.binary_cross_entropy(voicing[SYMBOLS].sigmoid(), has_pitch[SYMBOLS].double(), reduction="sum"),
        "energy": (adaptor.energy.predictor(first, SYMBOLS)[..., 0] - energy)[SYMBOLS].square().sum(),
    }
    assert {name: term.per for name, term in terms.items()} == dict.fromkeys(expected, "phoneme")
    for name, value in expected.items():
        torch.testing.assert_close(terms[name].total, value)
    assert torch.equal(used.voiced, has_pitch)


def test_an_octave_is_an_octave():
    adaptor, encoded = make(), torch.randn(2, 4, WIDTH).double()
    assert adaptor.pitch is not None
    with torch.no_grad():
        adaptor.pitch.predictor.output.bias[1] = 5.0  # everything is voiced
    usual, high = (adaptor(encoded, SYMBOLS, octaves=octaves) for octaves in (0.0, 1.0))
    torch.testing.assert_close(adaptor.hertz(high[1])[SYMBOLS], 2 * adaptor.hertz(usual[1])[SYMBOLS])
    assert torch.equal(adaptor.hertz(high[1])[~SYMBOLS], torch.zeros(2).double())
    assert not torch.equal(high[0], usual[0])


def test_twice_the_energy_is_one_doubling():
    adaptor, encoded = make(), torch.randn(2, 4, WIDTH).double()
    usual, loud = (adaptor(encoded, SYMBOLS, doublings=doublings)[1].energy for doublings in (0.0, 1.0))
    torch.testing.assert_close((loud - usual) * ENERGY[1], torch.ones(2, 4).double())


@pytest.mark.parametrize("seconds", [0, 5])
def test_padding_changes_nothing(seconds: int):
    """A row alone, and padded with symbols and frames that are not numbers."""
    adaptor, encoded = make(), torch.randn(1, 2, WIDTH).double()
    durations, values = DURATIONS[1:, :2], frames()[1:, :5]
    alone = adaptor(encoded, SYMBOLS[1:, :2], adaptor.targets(values, durations, FRAMES[1:, :5]))[2]
    wider = F.pad(encoded, (0, 0, 0, seconds), value=torch.nan)
    mask = F.pad(SYMBOLS[1:, :2], (0, seconds))
    more = F.pad(values, (0, 0, 0, seconds), value=torch.nan)
    targets = adaptor.targets(more, F.pad(durations, (0, seconds)), F.pad(FRAMES[1:, :5], (0, seconds)))
    padded = adaptor(wider, mask, targets)[2]
    for name, term in alone.items():
        torch.testing.assert_close(padded[name].total, term.total)
