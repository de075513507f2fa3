"""Metrics of a vocoder: how far its audio is from the recording, next to that of Griffin–Lim on the same spectrograms.

mel_distance              absolute error of the mel spectrogram, per frame and bin, a mean over parts
spectral_distance         spectral convergence plus absolute error of log magnitudes, at three resolutions
griffin_lim_…             the same of Griffin–Lim's audio
…_vs_griffin_lim          the vocoder's distance over Griffin–Lim's: below 1, the vocoder is better
loss                      mel_distance + spectral_distance
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

from torch import Tensor, nn

from vaak.audio.features.mel import waveform_of
from vaak.core.batch import Batch
from vaak.core.task import Meters
from vaak.nn.speech.waveform_losses import spectrogram_loss, stft_loss
from vaak.tasks.vocoder.model import VocoderModel


class Distances(NamedTuple):
    """The distances of generated audio from a recording."""

    mel: float
    spectral: float


def distances(model: VocoderModel, generated: Tensor, real: Tensor) -> Distances:
    """Return the distances of samples ``(time,)`` from those of a recording."""
    rows = generated[None], real[None]
    return Distances(float(spectrogram_loss(*rows, [model.mel_of]).total), float(stft_loss(*rows).total))


def vocoded(model: nn.Module, samples: Tensor) -> Tensor:
    """The audio ``(time,)`` that a model makes of the spectrogram of samples ``(time,)``."""
    model = cast("VocoderModel", model)  # or what torch.compile has made of it
    generated: Tensor = model(model.mel_of(samples[None]))[0, : len(samples)]
    return generated


def by_griffin_lim(model: VocoderModel, samples: Tensor, num_iterations: int) -> Tensor:
    """The audio ``(time,)`` that Griffin–Lim makes of the same spectrogram."""
    mel = model.mel_of(samples[None])[0]
    return waveform_of(mel, model.mel, num_iterations, num_samples=len(samples))


class VocoderMeters(Meters):
    """Distances of each part of a recording, by itself."""

    def __init__(self, split: str, window: float, num_iterations: int, known: dict[int, Distances]) -> None:
        """``known`` keeps Griffin–Lim's distances, by example, for the next evaluation; ``window`` is in seconds.

        ``split`` and ``num_iterations`` of Griffin–Lim are conditions of the figures.
        """
        self.protocol = {"split": split, "window": f"{window:g} s", "griffin_lim": f"{num_iterations} iterations"}
        self._num_iterations, self._known = num_iterations, known
        self._sums = dict.fromkeys(("parts", "mel", "spectral", "griffin_lim_mel", "griffin_lim_spectral"), 0.0)

    def update(self, model: nn.Module, batch: Batch) -> None:
        own = cast("VocoderModel", model)
        found = dict(self._sums)
        for row, [index] in enumerate(batch.indices):
            real = batch["samples"][row, : int(batch["lengths"][row])]
            ours = distances(own, vocoded(model, real), real)
            if index not in self._known:
                self._known[index] = distances(own, by_griffin_lim(own, real, self._num_iterations), real)
            found["parts"] += 1
            for prefix, one in (("", ours), ("griffin_lim_", self._known[index])):
                found[f"{prefix}mel"] += one.mel
                found[f"{prefix}spectral"] += one.spectral
        self._sums = found

    def sums(self) -> dict[str, float]:
        return self._sums

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        means = {f"{name}_distance": total / sums["parts"] for name, total in sums.items() if name != "parts"}
        ratios = {
            f"{kind}_vs_griffin_lim": sums[kind] / other if (other := sums[f"griffin_lim_{kind}"]) else math.nan
            for kind in ("mel", "spectral")
        }
        return {**means, **ratios, "loss": means["mel_distance"] + means["spectral_distance"]}
