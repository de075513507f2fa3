"""Waveforms of spectrograms without a vocoder: phases by Griffin–Lim, magnitudes of a mel spectrogram by least squares.

Sources: Griffin and Lim 1984, "Signal Estimation from Modified Short-Time Fourier Transform"; Perraudin et al. 2013,
"A Fast Griffin-Lim Algorithm"; Lee and Seung 2001, "Algorithms for Non-negative Matrix Factorization".
"""

from __future__ import annotations

import torch
from torch import Tensor

from vaak.audio.features.mel import MelSpectrogram

MOMENTUM = 0.99
"""How far each estimate continues the last change; 0 is the algorithm of 1984."""
NUM_UPDATES = 30
"""Of least squares; more of them change the waveform's mel spectrogram by less than Griffin–Lim's own error."""
SMALLEST = 1e-12


@torch.no_grad()
def griffin_lim(
    magnitudes: Tensor, layer: MelSpectrogram, num_iterations: int = 32, seed: int = 0, num_samples: int | None = None
) -> Tensor:
    """Samples ``(..., time)`` whose spectrum has about these magnitudes, ``(..., frame, n_fft // 2 + 1)``.

    ``layer`` has window and shift. The first phases are drawn by ``seed``, the same on every device. Each of
    ``num_iterations`` takes an inverse transform and a transform. There are ``num_samples``, or as many as end at the
    centre of the last frame. Raises ValueError if that many samples have another number of frames.
    """
    num_frames = magnitudes.shape[-2]
    if num_samples is None:
        num_samples = layer.config.hop_length * max(num_frames - 1, 0)
    if not num_samples:
        return magnitudes.new_zeros(*magnitudes.shape[:-2], 0)
    if layer.config.num_frames(num_samples) != num_frames:
        raise ValueError(f"{num_samples} samples have {layer.config.num_frames(num_samples)} frames, not {num_frames}")
    generator = torch.Generator().manual_seed(seed)
    phases = 2 * torch.pi * torch.rand(magnitudes.shape, generator=generator)
    estimate = torch.polar(magnitudes, phases.to(magnitudes))
    before: Tensor | None = None
    for _ in range(num_iterations):
        rebuilt = layer.stft(layer.inverse(estimate, num_samples))
        direction = rebuilt if before is None else rebuilt + MOMENTUM * (rebuilt - before)
        estimate = magnitudes * direction / direction.abs().clamp(min=SMALLEST)
        before = rebuilt
    return layer.inverse(estimate, num_samples)


@torch.no_grad()
def magnitudes_of(mel: Tensor, layer: MelSpectrogram) -> Tensor:
    """Magnitudes ``(..., frame, n_fft // 2 + 1)`` that have about this mel spectrogram, ``(..., frame, n_mels)``.

    They are the least ones that have it, made positive, and then improved by updates that keep them so.
    """
    with torch.autocast(mel.device.type, enabled=False):
        filters, target = layer.filters, layer.without_log(mel.to(layer.filters))
        linear = (target @ torch.linalg.pinv(filters).T).clamp(min=SMALLEST)
        for _ in range(NUM_UPDATES):
            linear = linear * (target @ filters) / (linear @ filters.T @ filters).clamp(min=SMALLEST)
    magnitudes: Tensor = linear.sqrt() if layer.config.spectrum == "power" else linear
    return magnitudes


def waveform_of(
    mel: Tensor, layer: MelSpectrogram, num_iterations: int = 32, seed: int = 0, num_samples: int | None = None
) -> Tensor:
    """Samples ``(..., time)`` with about this mel spectrogram, ``(..., frame, n_mels)``.

    ``layer`` has made it, or could; ``num_iterations``, ``seed`` and ``num_samples`` are those of ``griffin_lim``.
    """
    return griffin_lim(magnitudes_of(mel, layer), layer, num_iterations, seed, num_samples)
