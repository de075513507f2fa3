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
    """Whisper's features, by transformers: ``(bin, frame)`` float32, of audio padded to ``seconds``."""

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
        options = {"sampling_rate": SAMPLING_RATE, "max_length": self.num_samples, "return_tensors": "np"}
        with torch.autocast("cpu", enabled=False):
            # They multiply matrices, too.
            features: np.ndarray = self._extractor(samples, **options)["input_features"][0]
        return features

    def of_all(self, samples: np.ndarray) -> np.ndarray:
        """Return features ``(bin, frame)`` of all samples ``(time,)``, however many; nothing is padded."""
        if not len(samples):
            return np.zeros((self.num_mel_bins, 0), np.float32)
        options = {"sampling_rate": SAMPLING_RATE, "return_tensors": "np", "truncation": False, "padding": "longest"}
        with torch.autocast("cpu", enabled=False):
            features: np.ndarray = self._extractor(samples, **options)["input_features"][0]
        return features


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
            hann = torch.hann_window(self._extractor.n_fft)
            mel = torch.from_numpy(self._extractor.mel_filters.T).float()
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
