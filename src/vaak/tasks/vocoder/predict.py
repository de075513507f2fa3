"""A trained vocoder in use: audio files by way of their spectrograms, and an ONNX file without discriminators."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vaak.audio.audio_file import AudioFile
from vaak.audio.formats.annotation_lines import name_recordings
from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, write_onnx
from vaak.tasks.batches import Batches
from vaak.tasks.vocoder.metrics import Distances, by_griffin_lim, distances, read_distances
from vaak.tasks.vocoder.model import VocoderModel
from vaak.tasks.vocoding import synthesize

AT_FIRST = 4
"""Recordings that are vocoded together where nobody says how many."""


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
        """Return the distances, without the audio."""
        return {"name": self.name, "vocoder": self.own._asdict(), "griffin_lim": self.other._asdict()}


def vocode_files(
    model: VocoderModel, paths: Sequence[Path], num_iterations: int, batch_size: int | None = None
) -> Iterator[tuple[Path, Vocoded | UserError]]:
    """Yield each audio file, several at a time; at the end those that can't be read, with the reason."""
    batches = Batches(next(model.parameters()).device, batch_size, AT_FIRST)
    together = partial(vocode, model, num_iterations)
    names, failed, read = name_recordings(paths), dict[Path, UserError](), deque[Path]()

    def recordings() -> Iterator[tuple[str, np.ndarray]]:
        for path in paths:
            try:
                with AudioFile(path, model.mel.config.sampling_rate) as file:
                    samples = file.samples(0, file.num_samples)
            except UserError as error:
                failed[path] = error
                continue
            # Results come in the order of what could be read, so this queue says whose each is.
            read.append(path)
            yield names[path], samples

    for found in batches.results(recordings(), lambda one: len(one[1]), together):
        yield read.popleft(), found
    yield from failed.items()


@torch.no_grad()
def vocode(model: VocoderModel, num_iterations: int, recordings: Sequence[tuple[str, np.ndarray]]) -> list[Vocoded]:
    """Resynthesize named recordings ``(time,)`` by the model and by ``num_iterations`` of Griffin–Lim."""
    device = next(model.parameters()).device
    reals = [torch.tensor(samples, device=device) for _, samples in recordings]
    made = synthesize(model.generator, [model.to_mel(real[None])[0] for real in reals])
    found = []
    for (name, samples), real, row in zip(recordings, reals, made, strict=True):
        ours, theirs = row[: len(real)], by_griffin_lim(model, real, num_iterations)
        own, other = read_distances([distances(model, one, real) for one in (ours, theirs)])
        found.append(Vocoded(name, samples, ours.cpu().numpy(), theirs.cpu().numpy(), own, other))
    return found


ONNX_FILE = "model.onnx"


def export_onnx(model: VocoderModel, folder: Path) -> None:
    """Write the generator to ``folder``; the options of its spectrograms are in the file's metadata.

    ``mel`` is ``(row, frame, bin)``, ``samples`` ``(row, frame * hop_length)``. Raises UserError if the outputs
    differ from PyTorch's.
    """
    config = model.mel.config
    generator = torch.Generator().manual_seed(0)
    first, *others = (
        {"mel": torch.randn(*shape, config.n_mels, generator=generator)} for shape in ((2, 50), (1, 7), (3, 120))
    )
    axes = {"mel": {0: "row", 1: "frame"}}
    module = ExportWrapper(model.generator, lambda generator, mel: (generator(mel),))
    exported = OnnxModule(module, first, axes, ("samples",), others, {"mel": config.model_dump_json()})
    with whole_folder(folder) as temporary:
        write_onnx(temporary / ONNX_FILE, exported)
