"""Metrics of a vocoder: how far its audio is from the recording, next to that of Griffin–Lim on the same spectrograms.

mel_distance              absolute error of the mel spectrogram, per frame and bin, a mean over parts
spectral_distance         spectral convergence plus absolute error of log magnitudes, at three resolutions
griffin_lim_…             the same of Griffin–Lim's audio
…_vs_griffin_lim          the vocoder's distance over Griffin–Lim's: below 1, the vocoder is better
loss                      mel_distance + spectral_distance
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from vaak.audio.features.mel import reconstruct_waveform
from vaak.core.batch import Batch, read_together
from vaak.core.summaries import ExampleLog, keep_scores
from vaak.core.task import Meters
from vaak.nn.speech.waveform_losses import spectrogram_loss, stft_loss
from vaak.tasks.vocoder.model import VocoderModel


class Distances(NamedTuple):
    """The distances of generated audio from a recording."""

    mel: float
    spectral: float


def read_distances(measured: Sequence[tuple[Tensor, Tensor]]) -> list[Distances]:
    """Return the results of ``distances``, read from the device at once."""
    values = [float(one) for one in read_together(*(tensor for one in measured for tensor in one))]
    return [Distances(*pair) for pair in zip(values[::2], values[1::2], strict=True)]


def distances(model: VocoderModel, generated: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return both distances of samples ``(time,)`` from those of a recording."""
    rows = generated[None], real[None]
    return spectrogram_loss(*rows, [model.to_mel]).total, stft_loss(*rows).total


def by_griffin_lim(model: VocoderModel, samples: Tensor, num_iterations: int) -> Tensor:
    """Return the audio ``(time,)`` that Griffin–Lim makes of the spectrogram of samples ``(time,)``."""
    mel = model.to_mel(samples[None])[0]
    return reconstruct_waveform(mel, model.mel, num_iterations, num_samples=len(samples))


class VocoderMeters(Meters):
    """Distances of each part of a recording, by itself."""

    def __init__(self, split: str, window: float, num_iterations: int, known: dict[int, Distances]) -> None:
        """``known`` keeps Griffin–Lim's distances, by example, for the next evaluation; ``window`` is in seconds.

        ``split`` and ``num_iterations`` of Griffin–Lim are conditions of the metrics.
        """
        self.protocol = {"split": split, "window": f"{window:g} s", "griffin_lim": f"{num_iterations} iterations"}
        self._num_iterations, self._known = num_iterations, known
        self._log = ExampleLog("mel_distance")
        self._sums = dict.fromkeys(("parts", "mel", "spectral", "griffin_lim_mel", "griffin_lim_spectral"), 0.0)

    def update(self, model: nn.Module, batch: Batch) -> None:
        # The model may be a compiled one.
        own, indices = cast("VocoderModel", model), [index for [index] in batch.indices]
        rows = [batch["samples"][row, :length] for row, length in enumerate(batch["lengths"].tolist())]
        # Griffin–Lim's audio doesn't change between evaluations: it is made once for each part and kept.
        new = {index: real for index, real in zip(indices, rows, strict=True) if index not in self._known}
        measured = [distances(own, own(own.to_mel(real[None]))[0, : len(real)], real) for real in rows]
        measured += [distances(own, by_griffin_lim(own, one, self._num_iterations), one) for one in new.values()]
        read = read_distances(measured)
        self._known.update(zip(new, read[len(rows) :], strict=True))
        found = dict(self._sums)
        for index, ours in zip(indices, read[: len(rows)], strict=True):
            found["parts"] += 1
            for prefix, one in (("", ours), ("griffin_lim_", self._known[index])):
                found[f"{prefix}mel"] += one.mel
                found[f"{prefix}spectral"] += one.spectral
        self._sums = found
        for index, ours in zip(indices, read[: len(rows)], strict=True):
            self._log.add(index, ours.mel, (ours.mel, 1), str(index), {})

    def seen(self) -> dict[str, list[Any]]:
        return self._log.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        return keep_scores(self._log.figure, seen)

    def sums(self) -> dict[str, float]:
        return self._sums

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        means = {f"{name}_distance": total / sums["parts"] for name, total in sums.items() if name != "parts"}
        ratios = {
            f"{kind}_vs_griffin_lim": sums[kind] / other if (other := sums[f"griffin_lim_{kind}"]) else math.nan
            for kind in ("mel", "spectral")
        }
        return {**means, **ratios, "loss": means["mel_distance"] + means["spectral_distance"]}
