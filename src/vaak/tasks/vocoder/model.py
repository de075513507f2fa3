"""The vocoder with its discriminators, and the spectrograms that both sides of training are given.

    samples ──▶ mel ──▶ generator ──▶ samples ──┬──▶ spectra: how far from the recording's
                                                └──▶ discriminators: how far from any recording's

Source: Siuzdak 2024, "Vocos: Closing the gap between time-domain and Fourier-based neural vocoders". Differs: the mel
spectrogram is that of the acoustic model, and its distance is measured up to half of the sampling rate; magnitudes are
corrections of those that have the spectrogram, as in Lv et al. 2024, "FreeV: Free Lunch For Vocoders Through Pseudo
Inversed Mel Filter".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vaak.audio.features.mel import MelSpectrogram
from vaak.audio.mel_config import MelConfig
from vaak.nn.speech.hifigan import HifiGan
from vaak.nn.speech.vocos import InverseSTFT, Vocos
from vaak.nn.speech.waveform_losses import Discriminators, Resolution, magnitudes
from vaak.tasks.vocoder.config import VocoderModelConfig

LEAST_STRENGTH = 1e-4
"""The lowest value of the pseudo-inverse: it is negative for some frequencies."""


class VocoderModel(nn.Module):
    """Makes audio of spectrograms, which ``mel`` computes; without adversarial training ``discriminators`` is None."""

    def __init__(self, config: VocoderModelConfig, mel: MelConfig) -> None:
        """Weights are drawn from torch's default generator."""
        super().__init__()
        self.mel = MelSpectrogram(mel)
        # The loss compares all frequencies, also those above the input's f_max, which the generator has to find by
        # itself.
        whole = {"f_max": None, "log": "natural", "spectrum": "magnitude"}
        self.whole_mel = MelSpectrogram(mel.model_copy(update=whole))
        self.generator: HifiGan | Vocos
        if config.hifigan is not None:
            self.generator = HifiGan(mel.n_mels, config.hifigan)
        else:
            transform = InverseSTFT(mel.n_fft, mel.hop_length, mel.win_length)
            prior = PseudoInverse(self.mel) if config.prior == "pseudo_inverse" else None
            self.generator = Vocos(mel.n_mels, transform, config.width, config.num_layers, config.inner_width, prior)
        self.discriminators: Discriminators | None = None
        if (own := config.discriminators) is not None:
            resolutions = [Resolution(length, length // 4, length) for length in own.resolutions]
            self.discriminators = Discriminators(own.periods, resolutions, own.period_channels, own.resolution_channels)

    def forward(self, mel: Tensor) -> Tensor:
        """Samples ``(batch, frame · hop_length)`` of mel spectrograms ``(batch, frame, bin)``."""
        samples: Tensor = self.generator(mel)
        return samples

    def to_mel(self, samples: Tensor) -> Tensor:
        """Return the spectrogram ``(batch, frame, bin)`` that the generator reads, of samples ``(batch, time)``."""
        return self.mel.to_mel(self.mel.linear(samples))

    def compared(self, samples: Tensor) -> Tensor:
        """Return the log-mel spectrogram of all frequencies, ``(batch, frame, bin)``.

        Beyond the ends is silence: the gradient of a reflection differs from run to run on CUDA.
        """
        mel = self.mel.config
        linear = magnitudes(samples, Resolution(mel.n_fft, mel.hop_length, mel.win_length))
        return self.whole_mel.to_mel(linear.transpose(1, 2))


class PseudoInverse(nn.Module):
    """Log magnitudes ``(batch, frame, frequency)`` that about have a mel spectrogram ``(batch, frame, bin)``."""

    inverse: Tensor

    def __init__(self, layer: MelSpectrogram) -> None:
        super().__init__()
        self.undo_log, self.power = layer.without_log, 0.5 if layer.config.spectrum == "power" else 1.0
        self.register_buffer("inverse", torch.linalg.pinv(layer.filters.double()).T.float(), persistent=False)

    def forward(self, mel: Tensor) -> Tensor:
        linear = self.undo_log(mel) @ self.inverse
        return self.power * linear.clamp(min=LEAST_STRENGTH).log()
