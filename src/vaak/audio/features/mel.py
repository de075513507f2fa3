"""Mel spectrograms for speech synthesis: acoustic model's target, vocoder's input; and back, by Griffin–Lim or F0.

::

    samples  ┆‹─ n_fft / 2 ─›│                    audio mirrored at its ends, the last sample once
    frame 0  ‹──────n_fft────┼─›                  frame t is centred at sample t * hop_length
    frame 1      ‹───────n_fft──────›

The window is a periodic Hann window. Values are librosa's (``center=True, pad_mode="reflect"``): in float64 to 1e-5; in
float32 so before the logarithm, which magnifies what rounding leaves in the quietest bins of loud frames (of LJ Speech,
2 % of the logarithms are more than 1e-5 off, none more than 1e-3).

Sources: Griffin and Lim 1984, "Signal Estimation from Modified Short-Time Fourier Transform"; Perraudin et al. 2013, "A
Fast Griffin-Lim Algorithm" (phases); Lee and Seung 2001, "Algorithms for Non-negative Matrix Factorization"
(magnitudes).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vaak.audio.mel_config import MelConfig
from vaak.core.batch import send

SMALLEST_WEIGHT = 1e-8
"""The smallest weight of a sample in the inverse transform, where the windows of all frames are almost 0."""


def mel_filters(config: MelConfig) -> np.ndarray:
    """Return the weights of the triangular filters, ``(n_mels, n_fft // 2 + 1)`` float64."""
    edges = np.array(config.edges())
    bins = np.linspace(0, config.sampling_rate / 2, config.num_bins)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    filters: np.ndarray = np.minimum(rising, falling).clip(min=0)
    return filters * (2 / (edges[2:] - edges[:-2]))[:, None] if config.norm == "slaney" else filters


class MelSpectrogram(nn.Module):
    """Turns samples ``(..., time)`` into mel spectrograms ``(..., frame, n_mels)``; it can be differentiated.

    Rows of a batch have the same length: padding would change the last frames of a row.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.config = config
        # Computed in float64 and rounded once, below. A window shorter than the FFT is centred in it, as in librosa.
        window = torch.hann_window(config.win_length, dtype=torch.float64)
        left = (config.n_fft - config.win_length) // 2
        window = functional.pad(window, (left, config.n_fft - config.win_length - left))
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("filters", torch.from_numpy(mel_filters(config)).float(), persistent=False)
        self._inverse_filters: Tensor | None = None

    def inverse_filters(self) -> Tensor:
        """Return the pseudoinverse of the filters, ``(n_fft // 2 + 1, n_mels)``; computing it synchronizes a GPU."""
        if self._inverse_filters is None or self._inverse_filters.device != self.filters.device:
            self._inverse_filters = torch.linalg.pinv(self.filters)
        return self._inverse_filters

    def forward(self, samples: Tensor) -> Tensor:
        return self.to_mel(self.linear(samples))

    def linear(self, samples: Tensor) -> Tensor:
        """Magnitudes or powers, as ``config.spectrum`` says: ``(..., frame, n_fft // 2 + 1)``."""
        return self.strengths(self.stft(samples))

    def energy(self, samples: Tensor) -> Tensor:
        """Return the norm of each frame's magnitudes, ``(..., frame)``.

        Source: Ren et al. 2021, "FastSpeech 2: Fast and High-Quality End-to-End Text to Speech", section 2.3.
        """
        return compute_energy(self.stft(samples))

    def strengths(self, spectra: Tensor) -> Tensor:
        """Magnitudes or powers of complex spectra."""
        magnitudes = spectra.abs()
        return magnitudes.square() if self.config.spectrum == "power" else magnitudes

    def to_mel(self, linear: Tensor) -> Tensor:
        """Return the mel spectrogram of a linear one."""
        # The logarithm magnifies rounding errors in quiet bins, so no half precision here.
        with torch.autocast(linear.device.type, enabled=False):
            mel = linear.to(self.filters.dtype) @ self.filters.T
        if self.config.log == "none":
            return mel
        mel = mel.clamp(min=self.config.floor)
        return mel.log() if self.config.log == "natural" else mel.log10()

    def without_log(self, mel: Tensor) -> Tensor:
        """Return the inverse of the logarithm of ``to_mel``, above the floor."""
        if self.config.log == "none":
            return mel
        return mel.exp() if self.config.log == "natural" else 10**mel

    def stft(self, samples: Tensor) -> Tensor:
        """Return the complex spectrum ``(..., frame, n_fft // 2 + 1)``; without samples, it has 0 frames."""
        if not samples.shape[-1]:
            none = (*samples.shape[:-1], 0, self.config.num_bins)
            return samples.new_zeros(none, dtype=self.window.dtype.to_complex())
        padded = reflected(samples.to(self.window.dtype), self.config.n_fft // 2)
        return self.spectra(padded.unfold(-1, self.config.n_fft, self.config.hop_length))

    def spectra(self, frames: Tensor) -> Tensor:
        """Return the complex spectra of sections of ``n_fft`` samples, ``(..., frame, n_fft)``."""
        with torch.autocast(frames.device.type, enabled=False):
            spectra: Tensor = torch.fft.rfft(frames * self.window)
        return spectra

    def inverse(self, spectra: Tensor, num_samples: int | None = None) -> Tensor:
        """Samples ``(..., time)`` whose spectrum is nearest to ``spectra``, ``(..., frame, n_fft // 2 + 1)``.

        There are ``num_samples``, or as many as end at the centre of the last frame. It can be differentiated.

        Source: Griffin and Lim 1984, "Signal Estimation from Modified Short-Time Fourier Transform", equation 6.
        """
        config, (*rows, num_frames, _) = self.config, spectra.shape
        with torch.autocast(spectra.device.type, enabled=False):
            frames = torch.fft.irfft(spectra, config.n_fft) * self.window
        together = self._overlapped(frames.reshape(-1, num_frames, config.n_fft))
        # Equation 6: the window was applied twice, so divide by the sum of its squares.
        weight = self._overlapped(self.window.square().expand(1, num_frames, -1))
        first, shift = config.n_fft // 2, config.hop_length
        last = first + (shift * (num_frames - 1) if num_samples is None else num_samples)
        samples = together[:, first:last] / weight[:, first:last].clamp(min=SMALLEST_WEIGHT)
        return samples.reshape(*rows, -1)

    def _overlapped(self, frames: Tensor) -> Tensor:
        """Frames ``(batch, frame, n_fft)`` added at their places, ``(batch, time)``."""
        length = self.config.n_fft + self.config.hop_length * (frames.shape[1] - 1)
        kernel, stride = (1, self.config.n_fft), (1, self.config.hop_length)
        return functional.fold(frames.transpose(1, 2), (1, length), kernel, stride=stride)[:, 0, 0]


def compute_energy(spectra: Tensor) -> Tensor:
    """Return the norm of each frame's magnitudes, ``(..., frame)``, of complex spectra ``(..., frame, bin)``."""
    energy: Tensor = torch.linalg.vector_norm(spectra, dim=-1)
    return energy


def reflected(samples: Tensor, width: int) -> Tensor:
    """``samples`` ``(..., time)`` mirrored at both ends, without the last sample itself: ``(..., time + 2 * width)``.

    What is shorter than ``width`` is mirrored again and again; a single sample is repeated.
    """
    length = samples.shape[-1]
    rows = samples.reshape(-1, length)
    if length == 1:
        return rows.expand(-1, 1 + 2 * width).reshape(*samples.shape[:-1], -1)
    while width:
        step = min(width, rows.shape[-1] - 1)
        rows = functional.pad(rows, (step, step), mode="reflect")
        width -= step
    return rows.reshape(*samples.shape[:-1], -1)


MOMENTUM = 0.99
"""How far each estimate continues the last change; 0 is the algorithm of 1984."""
NUM_UPDATES = 30
"""Steps of least squares; more of them change the waveform's mel spectrogram by less than Griffin–Lim's own error."""
SMALLEST_DIVISOR = 1e-12


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
    # Drawn on the CPU: a GPU's generator gives other numbers for the same seed.
    phases = 2 * torch.pi * torch.rand(magnitudes.shape, generator=generator)
    estimate = torch.polar(magnitudes, send(phases.to(magnitudes.dtype), magnitudes.device))
    before: Tensor | None = None
    for _ in range(num_iterations):
        rebuilt = layer.stft(layer.inverse(estimate, num_samples))
        # Perraudin et al. 2013: move each estimate further in the direction of its last change.
        direction = rebuilt if before is None else rebuilt + MOMENTUM * (rebuilt - before)
        estimate = magnitudes * direction / direction.abs().clamp(min=SMALLEST_DIVISOR)
        before = rebuilt
    return layer.inverse(estimate, num_samples)


@torch.no_grad()
def invert_mel(mel: Tensor, layer: MelSpectrogram) -> Tensor:
    """Magnitudes ``(..., frame, n_fft // 2 + 1)`` that have about this mel spectrogram, ``(..., frame, n_mels)``.

    They are the least ones that have it, made positive, and then improved by updates that keep them so.
    """
    with torch.autocast(mel.device.type, enabled=False):
        filters, target = layer.filters, layer.without_log(mel.to(layer.filters))
        # Keep it above 0: the updates are multiplicative, so a zero would stay zero.
        linear = (target @ layer.inverse_filters().T).clamp(min=SMALLEST_DIVISOR)
        for _ in range(NUM_UPDATES):
            linear = linear * (target @ filters) / (linear @ filters.T @ filters).clamp(min=SMALLEST_DIVISOR)
    magnitudes: Tensor = linear.sqrt() if layer.config.spectrum == "power" else linear
    return magnitudes


def reconstruct_waveform(
    mel: Tensor, layer: MelSpectrogram, num_iterations: int = 32, seed: int = 0, num_samples: int | None = None
) -> Tensor:
    """Samples ``(..., time)`` with about this mel spectrogram, ``(..., frame, n_mels)``.

    ``layer`` has made it, or could; ``num_iterations``, ``seed`` and ``num_samples`` are those of ``griffin_lim``.
    """
    return griffin_lim(invert_mel(mel, layer), layer, num_iterations, seed, num_samples)


@torch.no_grad()
def excite(f0: np.ndarray, config: MelConfig, seed: int = 0) -> Tensor:
    """Pulses at F0 and noise elsewhere, ``(time,)`` up to the centre of the last frame, of power 1.

    ``f0`` ``(frame,)`` is in Hz, 0 where the voice is silent or hisses. It goes in a straight line of its logarithm
    between voiced frames. A pulse has all harmonics below half of the sampling rate, equally strong; noise is drawn by
    ``seed``.
    """
    voiced, frames = f0 > 0, np.arange(len(f0))
    places = np.arange(config.hop_length * max(len(f0) - 1, 0)) / config.hop_length
    noise = torch.randn(len(places), generator=torch.Generator().manual_seed(seed))
    if not voiced.any():
        return noise
    frequency = np.exp(np.interp(places, frames[voiced], np.log(f0[voiced].astype(np.float64))))
    # float64, and whole periods left out: after minutes, a float32 wouldn't know the phase.
    half_phase = np.pi * (np.cumsum(frequency / config.sampling_rate) % 1)
    number = np.maximum(np.floor(config.sampling_rate / 2 / frequency), 1)
    # The sum of cos(k * phase) over all harmonics k in closed form; it is their number where the phase is 0.
    sine = np.sin(half_phase)
    is_peak = np.abs(sine) < SMALLEST_DIVISOR
    ratio = np.sin((2 * number + 1) * half_phase) / np.where(is_peak, 1.0, 2 * sine)
    pulses = np.where(is_peak, number, ratio - 0.5) * np.sqrt(2 / number)
    share = torch.from_numpy(np.interp(places, frames, voiced.astype(np.float64))).float()
    return share.sqrt() * torch.from_numpy(pulses).float() + (1 - share).sqrt() * noise


@torch.no_grad()
def reconstruct_voice(mel: Tensor, layer: MelSpectrogram, f0: np.ndarray, seed: int = 0) -> Tensor:
    """Samples ``(time,)`` with about this mel spectrogram ``(frame, n_mels)``, periodic where ``f0`` isn't 0.

    ``f0`` ``(frame,)`` is in Hz, 0 where unvoiced. Phases are those of ``excite``, drawn by ``seed``. They stay: to a
    predicted spectrogram, whose harmonics are blurred, Griffin–Lim's iterations find audio without a period.
    """
    magnitudes = invert_mel(mel, layer)
    spectrum = layer.stft(excite(f0, layer.config, seed).to(magnitudes))
    if not spectrum.shape[-2]:
        return magnitudes.new_zeros(0)
    return layer.inverse(magnitudes * spectrum / spectrum.abs().clamp(min=SMALLEST_DIVISOR))
