"""The prior from which the model's magnitudes start inverts the mel filters."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from vaak.audio.features.mel import MelSpectrogram
from vaak.audio.mel_config import MelConfig
from vaak.tasks.vocoder.model import LEAST_STRENGTH, PseudoInverse


@pytest.mark.parametrize("spectrum", ["magnitude", "power"])
@pytest.mark.parametrize("log", ["natural", "base10", "none"])
def test_the_prior_finds_magnitudes_that_the_filters_span(
    spectrum: Literal["magnitude", "power"], log: Literal["natural", "base10", "none"]
):
    config = MelConfig(sampling_rate=8000, n_fft=256, win_length=256, hop_length=64, n_mels=16, f_max=3000.0)
    layer = MelSpectrogram(config.model_copy(update={"spectrum": spectrum, "log": log})).double()
    weights = 1 + torch.rand(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    strengths = 1000 * weights @ layer.filters
    found = PseudoInverse(layer).double()(layer.to_mel(strengths))
    expected = strengths.clamp(min=LEAST_STRENGTH).log() * (0.5 if spectrum == "power" else 1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
