"""Spectral losses against direct formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vaak.nn.speech.waveform_losses import Resolution, magnitudes, spectrogram_loss, stft_loss

SIZES = (Resolution(64, 16, 48), Resolution(32, 8, 32))


def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, 300, dtype=torch.float64, generator=generator) for _ in range(2))  # type: ignore[return-value]


def direct_magnitudes(samples: np.ndarray, size: Resolution) -> np.ndarray:
    """``(bin, frame)``: each frame cut out, windowed and transformed."""
    padded = np.pad(samples, size.n_fft // 2)
    gap = (size.n_fft - size.win_length) // 2
    window = np.pad(0.5 - 0.5 * np.cos(2 * math.pi * np.arange(size.win_length) / size.win_length), gap)
    starts = range(0, len(samples) + 1, size.hop_length)
    return np.abs([np.fft.rfft(window * padded[start : start + size.n_fft]) for start in starts]).T


@pytest.mark.parametrize("size", SIZES)
def test_magnitudes_are_those_of_windowed_frames(size: Resolution):
    waveforms = pair()[0]
    expected = np.stack([direct_magnitudes(row, size) for row in waveforms.numpy()])
    np.testing.assert_allclose(magnitudes(waveforms, size), expected, rtol=1e-9, atol=1e-9)


def test_the_stft_loss_is_convergence_and_log_magnitudes():
    made, true = pair()
    expected = 0.0
    for size in SIZES:
        for ours, theirs in zip(made.numpy(), true.numpy(), strict=True):
            a, b = direct_magnitudes(ours, size), direct_magnitudes(theirs, size)
            expected += np.linalg.norm(b - a) / np.linalg.norm(b) + np.abs(np.log(b) - np.log(a)).mean()
    term = stft_loss(made, true, SIZES)
    assert term.per == "example"
    assert term.total.item() == pytest.approx(expected / len(SIZES), rel=1e-9)


def test_silence_is_neither_infinite_nor_without_gradient():
    made, true = pair()[0].requires_grad_(), torch.zeros(3, 300, dtype=torch.float64)
    for ours in (made, true.clone().requires_grad_()):
        (gradient,) = torch.autograd.grad(stft_loss(ours, true, SIZES).total, ours)
        assert gradient.isfinite().all()
    assert stft_loss(true, true, SIZES).total.item() == 0
    assert stft_loss(1e-3 * made, true, SIZES).total.item() < 3 * 10, "a silent row weighs more than others"


def test_spectrograms_are_compared_by_their_absolute_difference():
    made, true = pair()
    transforms = [lambda x: magnitudes(x, SIZES[0]).transpose(1, 2), lambda x: x[:, :, None]]
    expected = sum((transform(made) - transform(true)).abs().mean() * 3 for transform in transforms) / 2
    term = spectrogram_loss(made, true, transforms)
    assert term.per == "example"
    torch.testing.assert_close(term.total, expected)
