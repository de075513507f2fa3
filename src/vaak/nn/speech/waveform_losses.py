"""How far generated waveforms are from real ones: by spectra, and by networks that learn to tell them apart.

    PeriodDiscriminator       every n-th sample, for each period n
    ResolutionDiscriminator   magnitudes of a short-time Fourier transform

Rows are crops of one length. A row's loss is a mean over its frames, bins, places and discriminators, and rows are
summed, so weights of losses depend neither on the number of discriminators nor on the length of crops.

Sources: Yamamoto et al. 2020, "Parallel WaveGAN", section 2.2 (multi-resolution STFT loss); Kong et al. 2020,
"HiFi-GAN" (section 2.3.2: mel loss; periods, least squares, feature matching); Jang et al. 2021, "UnivNet"
(resolutions); Siuzdak 2024, "Vocos" (sizes, hinge).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from vaak.core.batch import Term
from vaak.nn.speech.masks import exact

LEAST_MAGNITUDE = 1e-5
"""Lower magnitudes are raised to this before their logarithm."""
QUIET = 0.05
"""The root mean square of magnitudes that convergence is relative to at least: that of noise at about -50 decibels."""


class Resolution(NamedTuple):
    """Sizes of a short-time Fourier transform, in samples."""

    n_fft: int
    hop_length: int
    win_length: int


RESOLUTIONS = (Resolution(1024, 120, 600), Resolution(2048, 240, 1200), Resolution(512, 50, 240))
"""The resolutions of Parallel WaveGAN."""


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
    """Return the absolute error of spectrograms, a mean over ``transforms``, per example.

    Each makes a (log mel) spectrogram ``(batch, frame, bin)`` of waveforms ``(batch, samples)``.
    """
    of_rows = [row_means((transform(generated) - transform(real)).abs()) for transform in transforms]
    return Term(torch.stack(of_rows).mean(0).sum(), per="example")


def row_means(values: Tensor) -> Tensor:
    """``(batch,)``, in 32 bits at least: the mean over all but the first dimension."""
    return exact(values).flatten(1).mean(1)


SLOPE = 0.1
"""The slope of leaky ReLU below 0."""
PERIODS = (2, 3, 5, 7, 11)
DISCRIMINATOR_RESOLUTIONS = (Resolution(1024, 256, 1024), Resolution(2048, 512, 2048), Resolution(512, 128, 512))


class DiscriminatorOutput(NamedTuple):
    """A discriminator's scores ``(batch, ...)``, higher for what seems real, and the outputs of its layers."""

    scores: Tensor
    features: list[Tensor]


class PeriodDiscriminator(nn.Module):
    """Looks at every ``period``-th sample."""

    def __init__(self, period: int, channels: int = 32) -> None:
        """The first layer has ``channels``, the last 32 times as many."""
        super().__init__()
        self.period = period
        widths = (1, channels, 4 * channels, 16 * channels, 32 * channels, 32 * channels)
        strides = (3, 3, 3, 3, 1)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(entering, leaving, (5, 1), (stride, 1), padding=(2, 0)))
            for (entering, leaving), stride in zip(pairwise(widths), strides, strict=True)
        )
        self.output = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, waveforms: Tensor) -> DiscriminatorOutput:
        """Scores each row of ``(batch, samples)``; zeros fill the last period."""
        filled = F.pad(waveforms, (0, -waveforms.shape[1] % self.period))
        return _output(filled.unflatten(1, (-1, self.period))[:, None], self.layers, self.output)


class ResolutionDiscriminator(nn.Module):
    """Looks at magnitudes of one resolution."""

    def __init__(self, resolution: Resolution, channels: int = 64) -> None:
        super().__init__()
        self.resolution = resolution
        sizes = ((7, 5), (5, 3), (5, 3), (3, 3), (3, 3))  # in bins and frames
        strides = ((2, 2), (2, 1), (2, 2), (2, 1), (2, 2))
        widths = (1, *(channels,) * len(sizes))
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(entering, leaving, size, stride, padding=(size[0] // 2, size[1] // 2)))
            for (entering, leaving), size, stride in zip(pairwise(widths), sizes, strides, strict=True)
        )
        self.output = weight_norm(nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, waveforms: Tensor) -> DiscriminatorOutput:
        """Scores each row of ``(batch, samples)``."""
        return _output(magnitudes(waveforms, self.resolution)[:, None], self.layers, self.output)


class Discriminators(nn.Module):
    """Discriminators of several periods and resolutions."""

    def __init__(
        self,
        periods: Iterable[int] = PERIODS,
        resolutions: Iterable[Resolution] = DISCRIMINATOR_RESOLUTIONS,
        period_channels: int = 32,
        resolution_channels: int = 64,
    ) -> None:
        """Weights are drawn from torch's default generator."""
        super().__init__()
        self.of_periods = nn.ModuleList(PeriodDiscriminator(period, period_channels) for period in periods)
        self.of_resolutions = nn.ModuleList(
            ResolutionDiscriminator(resolution, resolution_channels) for resolution in resolutions
        )

    def forward(self, waveforms: Tensor) -> list[DiscriminatorOutput]:
        """Return each discriminator's output for ``(batch, samples)``."""
        return [one(waveforms) for one in (*self.of_periods, *self.of_resolutions)]


class Criterion(NamedTuple):
    """The loss of each score that should be high, and of each that should be low."""

    high: Callable[[Tensor], Tensor]
    low: Callable[[Tensor], Tensor]


CRITERIA = {
    "hinge": Criterion(lambda scores: (1 - scores).relu(), lambda scores: (1 + scores).relu()),
    "least_squares": Criterion(lambda scores: (1 - scores).square(), Tensor.square),
}
Kind = Literal["hinge", "least_squares"]


def discriminator_loss(
    real: Sequence[DiscriminatorOutput], generated: Sequence[DiscriminatorOutput], kind: Kind = "hinge"
) -> Term:
    """Return by how much real waveforms should score higher and generated ones lower, per example."""
    criterion = CRITERIA[kind]
    return _per_example(
        row_means(criterion.high(theirs.scores)) + row_means(criterion.low(ours.scores))
        for theirs, ours in zip(real, generated, strict=True)
    )


def generator_loss(generated: Sequence[DiscriminatorOutput], kind: Kind = "hinge") -> Term:
    """Return by how much generated waveforms should score higher, per example."""
    return _per_example(row_means(CRITERIA[kind].high(ours.scores)) for ours in generated)


def feature_matching_loss(real: Sequence[DiscriminatorOutput], generated: Sequence[DiscriminatorOutput]) -> Term:
    """Absolute error of the outputs of layers, summed over a discriminator's layers, per example.

    Those of ``real`` waveforms are targets: no gradient flows into them.
    """
    return _per_example(
        torch.stack(
            [
                row_means((ours - theirs.detach()).abs())
                for theirs, ours in zip(truth.features, one.features, strict=True)
            ]
        ).sum(0)
        for truth, one in zip(real, generated, strict=True)
    )


def _output(x: Tensor, layers: nn.ModuleList, output: nn.Module) -> DiscriminatorOutput:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), SLOPE)
        features.append(x)
    return DiscriminatorOutput(output(x), features)


def _per_example(of_rows: Iterable[Tensor]) -> Term:
    """Return the mean over discriminators of what each gives for rows ``(batch,)``, summed over rows."""
    return Term(torch.stack(list(of_rows)).mean(0).sum(), per="example")
