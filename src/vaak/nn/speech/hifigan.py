"""HiFi-GAN's generator: a mel spectrogram, brought to the rate of samples in a few steps.

    mel ──convolution──▶ ┌ × rate, half the channels ──▶ mean of residual blocks ┐ … ──convolution──▶ tanh ──▶ waveform
                         └      (a transposed convolution)  (kernels × dilations)┘

The published generator's frame t is centred at ``t · hop_length + hop_length / 2``: recordings are padded by
``(n_fft - hop_length) / 2``. Here frames are centred at ``t · hop_length``, as everywhere else. Nothing but the time of
the samples depends on that, so the first half hop is left out:

    frames        0    1    2            published  ├────┼────┼────┤        T · hop_length samples
                  ↓    ↓    ↓            here         ├────┼────┼──··┤      and half a hop of silence
    samples     ├────┼────┼────┤

Source: Kong et al. 2020, "HiFi-GAN: Generative Adversarial Networks for Efficient and High Fidelity Speech Synthesis",
section 2.2 and appendix A; weights have the names of the authors' code. Differs: without weight normalisation.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.speech.config import HifiGanConfig

SLOPE = 0.1
"""Slope of leaky ReLUs for negative numbers; the last one has 0.01."""
_LAST_SLOPE = 0.01


class HifiGan(nn.Module):
    """Waveforms of mel spectrograms."""

    def __init__(self, num_bins: int, config: HifiGanConfig) -> None:
        """Weights are drawn from torch's default generator. ``num_bins`` are those of the mel spectrogram."""
        super().__init__()
        self.rates = config.upsample_rates
        widths = [config.upsample_initial_channel >> level for level in range(len(self.rates) + 1)]
        self.conv_pre = nn.Conv1d(num_bins, widths[0], 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(wide, narrow, kernel, rate, padding=(kernel - rate) // 2)
            for wide, narrow, kernel, rate in zip(
                widths[:-1], widths[1:], config.upsample_kernel_sizes, self.rates, strict=True
            )
        )
        block = ResidualBlock1 if config.resblock == "1" else ResidualBlock2
        self.resblocks = nn.ModuleList(
            block(width, kernel, dilations)
            for width in widths[1:]
            for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.conv_post = nn.Conv1d(widths[-1], 1, 7, padding=3)

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """Samples ``(batch, frames · hop_length)``, 0 in padding; those of the last half hop are 0.

        ``mel`` is ``(batch, frame, num_bins)``, real where ``mask`` ``(batch, frame)`` is True.
        """
        real = None if mask is None else mask[:, None]
        x = _kept(self.conv_pre(_kept(mel.transpose(1, 2), real)), real)
        each = len(self.resblocks) // len(self.ups)
        for level, (up, rate) in enumerate(zip(self.ups, self.rates, strict=True)):
            real = None if real is None else real.repeat_interleave(rate, -1)
            x = _kept(up(F.leaky_relu(x, SLOPE)), real)
            x = sum(block(x, real) for block in self.resblocks[each * level : each * (level + 1)]) / each
        samples = _kept(self.conv_post(F.leaky_relu(x, _LAST_SLOPE)).tanh(), real)[:, 0]
        early = (math.prod(self.rates) + 1) // 2
        return F.pad(samples[:, early:], (0, early))


class ResidualBlock1(nn.Module):
    """Adds, for each dilation, what two convolutions make of ``x`` ``(batch, channel, time)``."""

    def __init__(self, width: int, kernel_size: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_convolution(width, kernel_size, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(_convolution(width, kernel_size, 1) for _ in dilations)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            inner = _kept(dilated(F.leaky_relu(x, SLOPE)), real)
            x = x + _kept(plain(F.leaky_relu(inner, SLOPE)), real)
        return x


class ResidualBlock2(nn.Module):
    """Adds, for each dilation, what one convolution makes of ``x`` ``(batch, channel, time)``."""

    def __init__(self, width: int, kernel_size: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(_convolution(width, kernel_size, dilation) for dilation in dilations)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        for dilated in self.convs:
            x = x + _kept(dilated(F.leaky_relu(x, SLOPE)), real)
        return x


def _convolution(width: int, kernel_size: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(width, width, kernel_size, dilation=dilation, padding=dilation * (kernel_size - 1) // 2)


def _kept(x: Tensor, real: Tensor | None) -> Tensor:
    """``x`` ``(batch, channel, time)`` with 0 where ``real`` ``(batch, 1, time)`` is False, as beyond a row's ends."""
    return x if real is None else x.masked_fill(~real, 0.0)
