"""Features of audio for models of speech, made by the loader, or on the device of samples that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.audio.augmentation.pipeline import masked_on_device
from vaak.core.batch import send
from vaak.tasks.asr.model import PURPOSE
from vaak.tasks.asr.whisper.network import FRAMES_PER_SECOND
from vaak.tasks.fetching import import_transformers

SAMPLING_RATE = 16_000


class WhisperFeatures:
    """Whisper's features, to the bit those of transformers: ``(bin, frame)`` float32, of audio padded to ``seconds``.

    Only frames that reach into the audio are transformed: the power of all others is 0.
    """

    sampling_rate, frame_shift, on_device = SAMPLING_RATE, 1 / FRAMES_PER_SECOND, False

    def __init__(self, num_mel_bins: int, seconds: float) -> None:
        self.num_mel_bins, self.seconds = num_mel_bins, seconds
        self.num_samples = round(seconds * SAMPLING_RATE)
        self.key = [num_mel_bins, seconds]

    def lengths(self, durations: np.ndarray) -> np.ndarray:
        return np.full(len(durations), self.seconds)

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * len(durations) * self.num_mel_bins * self.num_frames

    @cached_property
    def _extractor(self) -> Any:
        return import_transformers(PURPOSE, "asr").WhisperFeatureExtractor(feature_size=self.num_mel_bins)

    @property
    def num_frames(self) -> int:
        return round(self.seconds * FRAMES_PER_SECOND)

    def shape(self, found: np.ndarray) -> tuple[int, int]:
        return self.num_frames, self.num_mel_bins

    def of_batch(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors["features"]

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return features ``(bin, frame)`` of samples ``(time,)`` at 16 kHz, cut off after ``seconds``."""
        return self._log_mel(samples[: self.num_samples], self.num_samples)

    def of_all(self, samples: np.ndarray) -> np.ndarray:
        """Return features ``(bin, frame)`` of all samples ``(time,)``, however many; nothing is padded."""
        if not len(samples):
            return np.zeros((self.num_mel_bins, 0), np.float32)
        return self._log_mel(samples, len(samples))

    @torch.no_grad()
    def _log_mel(self, samples: np.ndarray, num_samples: int) -> np.ndarray:
        """Return features ``(bin, frame)`` of samples ``(time,)`` padded by zeros to ``num_samples``."""
        size, hop, (window, filters) = self._extractor.n_fft, self._extractor.hop_length, self._constants
        num_frames = num_samples // hop
        # a frame is centred on its first sample, and this many reach into the audio
        heard = min(num_frames, -(-(len(samples) + size // 2) // hop))
        padded = torch.zeros(min(num_samples, heard * hop + size))
        padded.numpy()[: len(samples)] = samples
        # torch's autocast would multiply matrices in 16 bits
        with torch.autocast("cpu", enabled=False):
            powers = torch.stft(padded, size, hop, window=window, return_complex=True)[:, :heard].abs().square_()
            if heard < num_frames:
                # of whole size: smaller products of matrices may round in another way
                powers = F.pad(powers, (0, num_frames - heard))
            logs = (filters @ powers.contiguous()).clamp_(min=1e-10).log10_()
        logs = torch.maximum(logs, logs.max() - 8, out=logs)
        features: np.ndarray = logs.add_(4).div_(4).numpy()
        return features

    @cached_property
    def _constants(self) -> tuple[Tensor, Tensor]:
        """The window ``(size,)`` and the filters ``(bin, frequency)``."""
        return torch.hann_window(self._extractor.n_fft), torch.from_numpy(self._extractor.mel_filters).float().T


class WhisperSamples(WhisperFeatures):
    """Samples ``(time,)`` in place of features, of which a device makes the features of a whole batch."""

    on_device = True

    def __init__(self, num_mel_bins: int, seconds: float) -> None:
        super().__init__(num_mel_bins, seconds)
        self._of_devices: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples that features are made of."""
        return np.asarray(samples[: self.num_samples], np.float32)

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * SAMPLING_RATE * float(durations.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.num_mel_bins, self.seconds)

    @torch.no_grad()
    def of_batch(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the features of ``samples`` ``(row, time)``, up to rounding, on its device: ``(row, bin, frame)``.

        ``masks`` are those of ``vaak.audio.augmentation.pipeline.masked_on_device``.
        """
        samples, masks = tensors["samples"], tensors.get("masks")
        device = samples.device
        # The constants are sent once to each device and kept: a copy in every step would be waited for.
        if device not in self._of_devices:
            hann, mel = self._constants
            self._of_devices[device] = send(hann, device), send(mel, device)
        window, filters = (constant.to(samples.dtype) for constant in self._of_devices[device])
        samples = F.pad(samples, (0, self.num_samples - samples.shape[1]))
        # In 16 bits, the power of quiet bands would be rounded to 0, and the logarithm that follows is of all of them.
        with torch.autocast(samples.device.type, enabled=False):
            spectra = torch.stft(
                samples, self._extractor.n_fft, self._extractor.hop_length, window=window, return_complex=True
            )
            # As Whisper: the last frame, centred on the end of the audio, is left out; everything more than 8 decades
            # (80 dB) below the loudest point is cut off.
            logs = (filters @ spectra[..., :-1].abs().square()).clamp(min=1e-10).log10()
        features = (logs.maximum(logs.amax((1, 2), keepdim=True) - 8) + 4) / 4
        return features if masks is None else masked_on_device(features.mT, masks).mT
