"""How far generated waveforms are from real ones, by their spectra at several resolutions.

Rows are crops of one length, so a row's loss is the mean over its frames and bins, and rows are summed.

Sources: Yamamoto et al. 2020, "Parallel WaveGAN", section 2.2 (multi-resolution STFT loss); Kong et al. 2020,
"HiFi-GAN", section 2.3.2 (mel loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vaak.core.batch import Term
from vaak.nn.speech.masks import exact

LEAST_MAGNITUDE = 1e-5
"""What magnitudes are raised to before their logarithm."""
QUIET = 0.05
"""The root mean square of magnitudes that convergence is relative to at least: that of noise at about -50 decibels."""


class Resolution(NamedTuple):
    """Sizes of a short-time Fourier transform, in samples."""

    n_fft: int
    hop_length: int
    win_length: int


RESOLUTIONS = (Resolution(1024, 120, 600), Resolution(2048, 240, 1200), Resolution(512, 50, 240))
"""Those of Parallel WaveGAN."""


def magnitudes(waveforms: Tensor, resolution: Resolution) -> Tensor:
    """Magnitudes ``(batch, bin, frame)`` of ``waveforms`` ``(batch, samples)``: centred frames, Hann window.

    Beyond the ends is silence: the gradient of a reflection differs from run to run on CUDA.
    """
    with torch.autocast(waveforms.device.type, enabled=False):
        waveforms = exact(waveforms)
        window = torch.hann_window(resolution.win_length, dtype=waveforms.dtype, device=waveforms.device)
        spectra = torch.stft(
            waveforms,
            resolution.n_fft,
            resolution.hop_length,
            resolution.win_length,
            window,
            pad_mode="constant",
            return_complex=True,
        )
        return spectra.abs()


def stft_loss(generated: Tensor, real: Tensor, resolutions: Iterable[Resolution] = RESOLUTIONS) -> Term:
    """Spectral convergence and the absolute error of log magnitudes, a mean over ``resolutions``, per example.

    ``generated`` and ``real`` are ``(batch, samples)``. A quiet row converges relative to QUIET.
    """
    of_rows = []
    for resolution in resolutions:
        ours, theirs = magnitudes(generated, resolution), magnitudes(real, resolution)
        size = theirs.flatten(1).norm(dim=1).clamp(min=QUIET * math.sqrt(theirs[0].numel()))
        convergence = (theirs - ours).flatten(1).norm(dim=1) / size
        logs = theirs.clamp(min=LEAST_MAGNITUDE).log() - ours.clamp(min=LEAST_MAGNITUDE).log()
        of_rows.append(convergence + row_means(logs.abs()))
    return Term(torch.stack(of_rows).mean(0).sum(), per="example")


def spectrogram_loss(generated: Tensor, real: Tensor, transforms: Sequence[Callable[[Tensor], Tensor]]) -> Term:
    """The absolute error of spectrograms, a mean over ``transforms``, per example.

    Each makes a (log mel) spectrogram ``(batch, frame, bin)`` of waveforms ``(batch, samples)``.
    """
    of_rows = [row_means((transform(generated) - transform(real)).abs()) for transform in transforms]
    return Term(torch.stack(of_rows).mean(0).sum(), per="example")


def row_means(values: Tensor) -> Tensor:
    """``(batch,)``, in 32 bits at least: the mean over all but the first dimension."""
    return exact(values).flatten(1).mean(1)
