"""Examples of a vocoder: crops of recordings, from which the model computes spectrograms itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vaak.audio.config import AudioConfig, Range
from vaak.audio.labelled import AudioSource
from vaak.audio.mel_config import MelConfig
from vaak.audio.sources.concatenation import Sources
from vaak.audio.sources.cut_source import WindowSource
from vaak.audio.sources.cut_store import CutStore
from vaak.core.batch import Batch
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset

BATCH_SECONDS = 300.0
"""Of an evaluation: rows times the longest of them."""
WORKERS_FOR_FILES = 4
"""Processes of use where recordings are read again each time."""


@dataclass(frozen=True)
class VocoderExample:
    """Samples ``(time,)`` of a recording, or of a part of it."""

    name: str
    samples: np.ndarray


@dataclass(frozen=True)
class Crops:
    """How training examples are made: their length in samples, and the range of their gain in decibels."""

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
        self.source: AudioSource = own[0] if len(own) == 1 else Sources(own)
        self.lengths = self.source.durations if crops is None else np.full(len(self.source.durations), seconds)
        self._of_recordings = np.concatenate([one.store.durations[one.cuts] for one in own])
        self.useful_workers = 0 if crops is None or all(one.all_fit for one in own) else WORKERS_FOR_FILES
        drawn = None if crops is None else [crops.num_samples, crops.gain]
        self.fingerprint = fingerprint_of([self.source.fingerprint, drawn])

    def example(self, index: int, rng: np.random.Generator) -> VocoderExample:
        """Part ``index``; of a crop, ``rng`` draws place and gain, and zeros follow a recording that is shorter."""
        audio = self.source.load(index, rng)
        samples = audio.samples
        if self.crops is not None:
            samples = np.pad(samples, (0, self.crops.num_samples - len(samples)))
            if self.crops.gain is not None:
                samples = samples * np.float32(10 ** (rng.uniform(*self.crops.gain) / 20))
        return VocoderExample(audio.name, samples)

    def collate(self, rows: list[list[VocoderExample]]) -> Batch:
        """A batch; each row is one example."""
        return collate([row[0] for row in rows], self.mel)

    def difficulty(self, measure: str) -> np.ndarray:
        """By ``length``: that of its recording, since crops are equally long."""
        return self._of_recordings if measure == "length" else super().difficulty(measure)

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def collate(examples: Sequence[VocoderExample], mel: MelConfig) -> Batch:
    """A batch: ``samples`` ``(row, time)``, padded with zeros, and their ``lengths`` ``(row,)``."""
    lengths = [len(one.samples) for one in examples]
    samples = np.zeros((len(examples), max(lengths)), np.float32)
    for row, one in zip(samples, examples, strict=True):
        row[: len(one.samples)] = one.samples
    frames = torch.tensor([mel.num_frames(length) for length in lengths])
    counts = {"mel_bin": frames * mel.n_mels, "position": frames, "example": torch.ones(len(examples))}
    tensors = {"samples": torch.from_numpy(samples), "lengths": torch.tensor(lengths)}
    return Batch(tensors, counts, extra={"names": [one.name for one in examples]})
