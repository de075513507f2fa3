"""Examples of a diarizer: features of a recording, or of a window of it, and who speaks when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vaak.audio.augmentation.pipeline import augmented, longest_factor, voices_of
from vaak.audio.augmentation.spec_augment import masked
from vaak.audio.config import AudioConfig, AugmentationConfig, DatasetConfig
from vaak.audio.corpora.annotated_folder import labelled_cut
from vaak.audio.features.extractors import Features, dithered
from vaak.audio.features.store import feature_fingerprint
from vaak.audio.labelled import AudioSource
from vaak.audio.simulation.conversations import SimulatedConversations, at_speeds
from vaak.audio.simulation.utterances import CutUtterances
from vaak.audio.sources.concatenation import Sources
from vaak.audio.sources.cut_source import CutSource, WindowSource
from vaak.audio.sources.stored_source import LabelledFeatures, StoredSource
from vaak.audio.waveforms.bounded_cache import BoundedCache
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset
from vaak.tasks.diarization.config import DiarizationDataConfig
from vaak.tasks.diarization.examples.labels import DiarizationCollator, DiarizationExample
from vaak.tasks.diarization.examples.stored_features import with_stored_features
from vaak.tasks.diarization.prepare import Prepared

WORKERS_FOR_AUDIO = 4
"""Processes of use where features are computed from audio; each has its own cache of audio in memory."""


def audio_source(
    prepared: Prepared, split: str, datasets: Sequence[DatasetConfig], audio: AudioConfig, data: DiarizationDataConfig
) -> AudioSource:
    """The recordings of a split, of all datasets: in windows for training, otherwise whole.

    ``prepared`` has the cuts of ``datasets``; ``audio`` says how audio is read, and ``data`` how long windows are.
    """
    sources: list[AudioSource] = []
    conversations = conversations_of(prepared, split, datasets, audio)
    for number, store in prepared.stores(split):
        dataset = datasets[number]
        if number in conversations:
            sources.append(conversations[number])
            continue
        cuts: CutSource | WindowSource
        if split == "train":
            options = {"find_speech": dataset.find_speech, "alignments": False}
            cuts = WindowSource(store, audio, data.window, data.shift_windows, **options)
        else:  # their features are kept, so their audio isn't
            cuts = CutSource(store, audio.model_copy(update={"cache_gigabytes": 0.0}), find_speech=dataset.find_speech)
        sources.append(with_stored_features(cuts, split, data))
    return sources[0] if len(sources) == 1 else Sources(sources)


def conversations_of(
    prepared: Prepared, split: str, datasets: Sequence[DatasetConfig], audio: AudioConfig
) -> dict[int, SimulatedConversations]:
    """The simulated conversations of a split, by the number of their dataset.

    Raises DataError if there are too few speakers.
    """
    found = {}
    for number, store in prepared.stores(split):
        if (options := datasets[number].conversations) is not None:
            utterances = CutUtterances(store, audio, find_speech=datasets[number].find_speech)
            found[number] = SimulatedConversations(utterances, options, split)
    return found


def training_speakers(prepared: Prepared, datasets: Sequence[DatasetConfig]) -> tuple[str, ...]:
    """The names of all speakers of training, sorted; if speed is changed, a name for each speed."""
    names: set[str] = set()
    for number, store in prepared.stores("train"):
        conversations = datasets[number].conversations
        names |= set(store.speakers if conversations is None else at_speeds(store.speakers, conversations.speed))
    return tuple(sorted(names))


def reads_audio(source: AudioSource) -> bool:
    """Whether some features are computed from audio, rather than all read from where they are stored."""
    parts = source.sources if isinstance(source, Sources) else [source]
    return not all(isinstance(part, StoredSource) for part in parts)


def given_cut(example: Any) -> Any:
    """A cut from a program: one of Lhotse's, or that of an audio file with its annotations."""
    if isinstance(example, str | PathLike):
        return labelled_cut(Path(example))
    if isinstance(example, list | tuple) and len(example) == 2:
        audio, annotations = map(Path, example)
        return labelled_cut(audio, annotations)
    if not (hasattr(example, "supervisions") and hasattr(example, "duration")):
        raise UserError(
            "a diarizer is evaluated on cuts, on audio files with RTTM next to them, or on pairs (audio, rttm), not on "
            f"a {type(example).__name__}"
        )
    return example


class DiarizationDataset(Dataset):
    """A split's recordings with their features; an example's length is an upper bound of its duration in seconds."""

    draws_globally = False
    evaluation_budget = 3600.0
    """Seconds of recordings whose features are in memory together."""

    def __init__(
        self,
        source: AudioSource,
        features: Features,
        collator: DiarizationCollator,
        augmentation: AugmentationConfig | None,
    ) -> None:
        """Without ``augmentation`` features are those of the unchanged recordings, and nothing is random.

        They are then kept in memory, up to ``cache_gigabytes``, for the next evaluation by this process.
        """
        self.source, self.features, self.collator, self.augmentation = source, features, collator, augmentation
        self.lengths = source.durations * (1.0 if augmentation is None else longest_factor(augmentation))
        drawn = [] if augmentation is None else [augmentation.model_dump(mode="json"), features.config.dither]
        self.useful_workers = 0 if augmentation is None else WORKERS_FOR_AUDIO * reads_audio(source)
        self.fingerprint = fingerprint_of([feature_fingerprint(source, features.config), drawn])
        self._features = BoundedCache(features.config.cache_gigabytes * 2**30)
        self._without_features: dict[int, DiarizationExample] = {}

    def example(self, index: int, rng: np.random.Generator) -> DiarizationExample:
        """Example ``index``, from memory, from stored features, or from its audio."""
        if self.augmentation is not None:
            return self._read(index, rng)
        features = self._features.get(index, lambda: self._to_be_kept(index, rng))
        return replace(self._without_features[index], features=features)

    def _to_be_kept(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """The features of an example; everything else is kept here."""
        example = self._read(index, rng)
        self._without_features[index] = example.without_features()
        return example.features

    def _read(self, index: int, rng: np.random.Generator) -> DiarizationExample:
        source, within = self.source.find(index) if isinstance(self.source, Sources) else (self.source, index)
        stored = source if isinstance(source, StoredSource) else None
        found = stored.load_features(within, rng) if stored is not None else self._from_audio(index, rng)
        frames = found.features
        if self.augmentation is not None and self.augmentation.spec_augment is not None:
            frames = masked(frames, self.augmentation.spec_augment, self.features.frame_shift, rng)
        if not len(frames):  # shorter than half a frame
            frames = np.zeros((1, self.features.dims), dtype=np.float32)
        uem = found.uem or ((0.0, found.duration),)  # without a UEM all of it was annotated
        return DiarizationExample(found.name, frames, found.segments, found.duration, uem)

    def _from_audio(self, index: int, rng: np.random.Generator) -> LabelledFeatures:
        audio, options = self.source.load(index, rng), self.augmentation
        samples = audio.samples
        if options is not None:
            if options.changes_audio:
                audio = augmented(audio, options, rng, voices_of(self.source))
            samples = dithered(audio.samples, self.features.config.dither, rng)
        return LabelledFeatures(audio.name, self.features(samples), audio.duration, audio.segments, audio.uem)

    def collate(self, rows: list[list[DiarizationExample]]) -> Batch:
        """A batch; in training, where workers pass it on, its examples come without features."""
        batch = self.collator.batch([row[0] for row in rows])
        if self.augmentation is None:
            return batch
        return replace(batch, extra={"examples": [row[0].without_features() for row in rows]})

    def describe(self, index: int) -> str:
        return self.source.describe(index)
