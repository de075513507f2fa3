"""Recordings that a vocoder can be trained on, and crops of them as examples; the model makes the spectrograms."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vaak.audio.config import AudioConfig, Range
from vaak.audio.cuts.findings import require_sound
from vaak.audio.cuts.reading import require_frequencies
from vaak.audio.cuts.sources import UtteranceSources, WindowSource
from vaak.audio.cuts.store import CutStore
from vaak.audio.mel_config import MelConfig
from vaak.audio.segments import AudioSource
from vaak.core.batch import Batch
from vaak.core.errors import DataError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import MOST_AUDIO_WORKERS, Dataset, Padding
from vaak.runs.prepared import Recipe
from vaak.tasks import speech_task
from vaak.tasks.base import pad_rows
from vaak.tasks.speech_task import Datasets

log = logging.getLogger("vaak")

BATCH_SECONDS = 300.0
"""The size of an evaluation's batch: rows, times the longest."""


@dataclass(frozen=True)
class VocoderExample:
    """Samples ``(time,)`` of a recording, or of a part of it."""

    name: str
    samples: np.ndarray


@dataclass(frozen=True)
class Crops:
    """Training examples: their length in samples, and the range of their gain in decibels."""

    num_samples: int
    gain: Range | None


class VocoderDataset(Dataset):
    """A split's recordings, in parts of ``window`` seconds or in random crops; an example's length is its seconds."""

    draws_globally = False
    evaluation_budget = BATCH_SECONDS

    def __init__(
        self, stores: Sequence[CutStore], audio: AudioConfig, window: float, crops: Crops | None = None
    ) -> None:
        """With ``crops``, there are as many of them in an epoch as the recordings have, at other places each time."""
        assert audio.mel is not None
        self.mel, self.crops = audio.mel, crops
        seconds = window if crops is None else crops.num_samples / self.mel.sampling_rate
        own = [WindowSource(store, audio, seconds, crops is not None, alignments=False) for store in stores]
        self.source: AudioSource = own[0] if len(own) == 1 else UtteranceSources(own)
        self.lengths = self.source.durations if crops is None else np.full(len(self.source.durations), seconds)
        self._of_recordings = np.concatenate([one.store.durations[one.cuts] for one in own])
        self.useful_workers = 0 if crops is None or all(one.all_fit for one in own) else MOST_AUDIO_WORKERS
        drawn = None if crops is None else [crops.num_samples, crops.gain]
        self.fingerprint = compute_fingerprint([self.source.fingerprint, drawn])

    def example(self, index: int, rng: np.random.Generator) -> VocoderExample:
        """Part ``index``; for a crop, ``rng`` draws place and gain, and zeros follow a recording that is shorter."""
        audio = self.source.load(index, rng)
        samples = audio.samples
        if self.crops is not None:
            samples = np.pad(samples, (0, self.crops.num_samples - len(samples)))
            if self.crops.gain is not None:
                samples = samples * np.float32(10 ** (rng.uniform(*self.crops.gain) / 20))
        return VocoderExample(audio.name, samples)

    def collate(self, rows: list[list[VocoderExample]]) -> Batch:
        """Return a batch; each row is one example."""
        return collate([row[0] for row in rows], self.mel)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """Return no padding, as training examples are crops of one length."""
        return {}

    def difficulty(self, measure: str) -> np.ndarray:
        """Return the length of the recordings for ``length``, since crops are equally long."""
        return self._of_recordings if measure == "length" else super().difficulty(measure)

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def collate(examples: Sequence[VocoderExample], mel: MelConfig) -> Batch:
    """Return a batch: ``samples`` ``(row, time)``, padded with zeros, and their ``lengths`` ``(row,)``."""
    lengths = [len(one.samples) for one in examples]
    samples = pad_rows([one.samples for one in examples], dtype=np.float32)
    frames = torch.tensor([mel.num_frames(length) for length in lengths])
    counts = {"mel_bin": frames * mel.n_mels, "position": frames, "example": torch.ones(len(examples))}
    tensors = {"samples": torch.from_numpy(samples), "lengths": torch.tensor(lengths)}
    return Batch(tensors, counts, extra={"names": [one.name for one in examples]})


def recipe(datasets: Datasets, audio: AudioConfig, skip_bad: bool, splits: tuple[str, ...] | None = None) -> Recipe:
    """Return how the cut stores of ``splits`` (default: all) are made, with or without what can't be used."""

    def usable(cuts: Iterable[Any]) -> Iterator[Any]:
        for cut in cuts:
            try:
                require_frequencies(cut, audio)
                require_sound(cut, audio)
            except DataError as error:
                if not skip_bad:
                    raise
                log.warning("skipped: %s", error)
                continue
            yield cut

    # What usable recordings depend on: a change of these prepares the data again.
    further = {"highest": audio.mel.nyquist if audio.mel is not None else None, "skip_bad": skip_bad}
    return speech_task.recipe(datasets, audio, splits, usable, further, skip_bad)
