"""Audio files by way of their spectrograms: what a vocoder makes of the best spectrogram there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vaak.audio.waveforms.audio_file import AudioFile
from vaak.tasks.vocoder.metrics import Distances, by_griffin_lim, distances, vocoded
from vaak.tasks.vocoder.model import VocoderModel


class Vocoded(NamedTuple):
    """Samples ``(time,)`` of a recording, of the vocoder and of Griffin–Lim, with their distances from it."""

    name: str
    recording: np.ndarray
    samples: np.ndarray
    griffin_lim: np.ndarray
    own: Distances
    other: Distances

    def __str__(self) -> str:
        better = "the vocoder" if self.own.spectral < self.other.spectral else "Griffin–Lim"
        return (
            f"{self.name}: spectral distance {self.own.spectral:.3f} (Griffin–Lim {self.other.spectral:.3f}), mel "
            f"distance {self.own.mel:.3f} (Griffin–Lim {self.other.mel:.3f}): by spectra, {better} is better"
        )

    def to_json(self) -> dict[str, Any]:
        """The distances, without the audio."""
        return {"name": self.name, "vocoder": self.own._asdict(), "griffin_lim": self.other._asdict()}


@torch.no_grad()
def vocode(model: VocoderModel, name: str, samples: np.ndarray, num_iterations: int) -> Vocoded:
    """What a model and ``num_iterations`` of Griffin–Lim make of the samples ``(time,)`` called ``name``."""
    real = torch.tensor(samples).to(next(model.parameters()))
    ours, theirs = vocoded(model, real), by_griffin_lim(model, real, num_iterations)
    own, other = (distances(model, made, real) for made in (ours, theirs))
    return Vocoded(name, samples, ours.cpu().numpy(), theirs.cpu().numpy(), own, other)


def vocode_files(model: VocoderModel, paths: Iterable[str], num_iterations: int) -> Iterator[Vocoded]:
    """Each audio file. Raises DataError for one that can't be read."""
    for path in paths:
        with AudioFile(Path(path), model.mel.config.sampling_rate) as file:
            yield vocode(model, str(path), file.samples(0, file.num_samples), num_iterations)
