"""A vocoder that predicts the short-time Fourier transform of speech from its mel spectrogram, and inverts it.

    mel ──convolution──▶ ConvNeXt blocks ──▶ log magnitudes, phases ──inverse transform──▶ waveform

All layers work at the rate of frames; only the transform reaches that of samples. Frame t is centred at sample
``t · hop_length``, as in a centred spectrogram, and a row of T frames gives ``T · hop_length`` samples:

    frame 0     ▁▃█▃▁                 what is before sample 0 is cut off
    frame 1        ▁▃█▃▁
    frame 2           ▁▃█▃▁           the last frame reaches one hop beyond its centre
    samples        |         |

Source: Siuzdak 2024, "Vocos: Closing the gap between time-domain and Fourier-based neural vocoders". Differs: centred
frames; the transform is made of real matrices, for ONNX has neither complex numbers nor overlap-add.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.feed_forward import ConvNeXtBlock, TimeConvolution
from vaak.nn.initialisation import initialise
from vaak.nn.norms import LayerNorm
from vaak.nn.speech.masks import exact, masked

LARGEST_MAGNITUDE = 100.0
"""The largest magnitude; without a limit one wild frame would overflow."""

LEAST_ENVELOPE = 0.1
"""Samples are divided by the sum of squared windows over them, but not by less: after the last frame it falls to 0."""


class InverseSTFT(nn.Module):
    """The waveform of a short-time Fourier transform with a periodic Hann window; nothing is learned."""

    def __init__(self, n_fft: int, hop_length: int, win_length: int) -> None:
        """Sizes are in samples. Raises ValueError if windows would leave gaps between frames."""
        super().__init__()
        if n_fft % 2 or not hop_length <= win_length // 2 <= n_fft // 2:
            raise ValueError(
                f"n_fft {n_fft}, win_length {win_length}, hop_length {hop_length}: expected an even n_fft, win_length "
                "up to n_fft, and hop_length up to half of win_length"
            )
        self.hop_length, self.middle = hop_length, n_fft // 2
        gap = n_fft - win_length
        window = F.pad(torch.hann_window(win_length, dtype=torch.float64), (gap // 2, gap - gap // 2))
        bins = torch.arange(n_fft // 2 + 1)
        # Exact: whole turns are taken out.
        angles = 2 * math.pi / n_fft * (bins[:, None] * torch.arange(n_fft) % n_fft)
        twice = torch.where((bins == 0) | (bins == n_fft // 2), 1.0, 2.0)[:, None].double()
        dtype = torch.get_default_dtype()
        for name, table in (("cosines", angles.double().cos()), ("sines", -angles.double().sin())):
            self.register_buffer(name, (table * twice / n_fft * window).to(dtype), persistent=False)
        self.register_buffer("squared_window", window.square().to(dtype), persistent=False)

    cosines: Tensor
    sines: Tensor
    squared_window: Tensor

    def forward(self, real: Tensor, imaginary: Tensor, mask: Tensor | None = None) -> Tensor:
        """Samples ``(batch, frames · hop_length)``, 0 in padding, from parts of ``(batch, frame, n_fft / 2 + 1)``.

        Frames that are not in ``mask`` ``(batch, frame)`` count for nothing.
        """
        batch, time, _ = real.shape
        if mask is None:
            mask = torch.ones(batch, time, dtype=torch.bool, device=real.device)
        frames = masked(real @ self.cosines + imaginary @ self.sines, mask)
        envelope = self._overlapped(mask[..., None] * self.squared_window)
        samples = self._overlapped(frames) / envelope.clamp(min=LEAST_ENVELOPE)
        return masked(samples.unflatten(1, (time, self.hop_length)), mask).flatten(1)

    def _overlapped(self, frames: Tensor) -> Tensor:
        """Frames ``(batch, frame, n_fft)`` added up where they overlap, from the first one's middle on.

        Each is cut into hops, of which the first of one frame meets the second of the frame before it.
        """
        time, hops = frames.shape[1], -(-frames.shape[2] // self.hop_length)
        cut = F.pad(frames, (0, hops * self.hop_length - frames.shape[2])).unflatten(2, (hops, self.hop_length))
        added = sum(F.pad(cut[:, :, hop], (0, 0, hop, hops - 1 - hop)) for hop in range(hops))
        assert isinstance(added, Tensor)
        return added.flatten(1)[:, self.middle : self.middle + time * self.hop_length]


class Vocos(nn.Module):
    """Waveforms of mel spectrograms."""

    def __init__(
        self,
        num_bins: int,
        transform: InverseSTFT,
        width: int = 512,
        num_layers: int = 8,
        inner_width: int = 1536,
        prior: nn.Module | None = None,
    ) -> None:
        """Weights are drawn from torch's default generator.

        ``num_bins`` are those of the mel spectrogram, whose frames ``transform`` inverts. There are ``num_layers``
        blocks of ``width``, widened to ``inner_width``. ``prior`` gives log magnitudes of a mel spectrogram, to which
        what is predicted is added.
        """
        super().__init__()
        self.transform, self.prior = transform, prior
        self.embedding = TimeConvolution(num_bins, width, 7)
        self.embedding_norm = LayerNorm(width, eps=1e-6)
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(width, inner_width, layer_scale=1 / num_layers) for _ in range(num_layers)
        )
        self.norm = LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 2 * transform.cosines.shape[0])
        initialise(self)

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """Samples ``(batch, frames · hop_length)``, 0 in padding.

        ``mel`` is ``(batch, frame, num_bins)``, real where ``mask`` ``(batch, frame)`` is True.
        """
        x = self.embedding_norm(self.embedding(mel, mask))
        for block in self.blocks:
            x = block(x, mask)
        scores = self.head(self.norm(x))
        with torch.autocast(mel.device.type, enabled=False):
            log_magnitudes, phases = exact(scores).chunk(2, -1)
            if self.prior is not None:
                log_magnitudes = log_magnitudes + self.prior(exact(mel) if mask is None else masked(exact(mel), mask))
            magnitudes = log_magnitudes.clamp(max=math.log(LARGEST_MAGNITUDE)).exp()
            samples: Tensor = self.transform(magnitudes * phases.cos(), magnitudes * phases.sin(), mask)
        return samples
