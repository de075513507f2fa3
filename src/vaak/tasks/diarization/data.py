"""The data of a diarizer: cut stores (vaak.tasks.speech_task); features of recordings, and who speaks when.

Features may be kept in ``global_config.storage_path``: made once before training, read by every epoch. What isn't
stored is computed on demand: simulated conversations, recordings of test, and those of train if their audio is
augmented.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaak.audio.augmentation.pipeline import augmented, drawn_masks, longest_factor, make_voices, masked
from vaak.audio.config import AudioConfig, AugmentationConfig, DatasetConfig
from vaak.audio.corpora.folders import labelled_cut
from vaak.audio.cuts.sources import BoundedCache, CutSource, UtteranceSources, WindowSource
from vaak.audio.features.extractors import Features, dithered
from vaak.audio.features.store import LabelledFeatures, StoredSource, extract_cuts, feature_fingerprint, stored_cuts
from vaak.audio.segments import AudioSource
from vaak.audio.simulation.conversations import CutUtterances, SimulatedConversations, at_speeds
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import MOST_AUDIO_WORKERS, Dataset, Padding
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.diarization.config import DiarizationDataConfig
from vaak.tasks.diarization.labels import DiarizationCollator, DiarizationExample
from vaak.tasks.diarization.pyannote import SampleFrames
from vaak.tasks.speech_task import PreparedCuts


@dataclass(frozen=True)
class PreparedRecordings(PreparedCuts):
    """Cut stores, by split and dataset."""

    def most_speakers(self, split: str) -> int:
        """The greatest number of speakers in one recording."""
        return int(self.about["statistics"][split].get("most_speakers", 0))


def audio_source(
    prepared: PreparedRecordings,
    split: str,
    datasets: Sequence[DatasetConfig],
    audio: AudioConfig,
    data: DiarizationDataConfig,
) -> AudioSource:
    """The recordings of a split, of all datasets: in windows for training, otherwise whole.

    ``prepared`` has the cuts of ``datasets``; ``audio`` says how audio is read, and ``data`` how long windows are.
    """
    sources: list[AudioSource] = []
    conversations = make_conversations(prepared, split, datasets, audio)
    for number, store in prepared.stores(split):
        dataset = datasets[number]
        if number in conversations:
            sources.append(conversations[number])
            continue
        cuts: CutSource | WindowSource
        if split == "train":
            options = {"find_speech": dataset.find_speech, "alignments": False}
            cuts = WindowSource(store, audio, data.window, data.shift_windows, **options)
        else:
            # Their features are kept, so their audio isn't.
            cuts = CutSource(store, audio.model_copy(update={"cache_gigabytes": 0.0}), find_speech=dataset.find_speech)
        sources.append(with_stored_features(cuts, split, data))
    return sources[0] if len(sources) == 1 else UtteranceSources(sources)


def make_conversations(
    prepared: PreparedRecordings, split: str, datasets: Sequence[DatasetConfig], audio: AudioConfig
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


def training_speakers(prepared: PreparedRecordings, datasets: Sequence[DatasetConfig]) -> tuple[str, ...]:
    """The names of all speakers of training, sorted; if speed is changed, a name for each speed."""
    names: set[str] = set()
    for number, store in prepared.stores("train"):
        conversations = datasets[number].conversations
        names |= set(store.speakers if conversations is None else at_speeds(store.speakers, conversations.speed))
    return tuple(sorted(names))


def reads_audio(source: AudioSource) -> bool:
    """Whether some features are computed from audio, rather than all read from where they are stored."""
    parts = source.sources if isinstance(source, UtteranceSources) else [source]
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
        features: Features | SampleFrames,
        collator: DiarizationCollator,
        augmentation: AugmentationConfig | None,
        *,
        on_device: bool = False,
        with_audio: bool = False,
    ) -> None:
        """Without ``augmentation`` features are those of the unchanged recordings, and nothing is random.

        They are then kept in memory, up to ``cache_gigabytes``, for the next evaluation by this process. With
        ``on_device`` examples have samples in place of features; with ``with_audio`` those of unchanged recordings can
        read theirs, for a speaker encoder.
        """
        self.source, self.features, self.collator, self.augmentation = source, features, collator, augmentation
        self.on_device = on_device
        self.with_audio = augmentation is None and (with_audio or collator.has_own_call())
        self.length_of_position = collator.options.frame_seconds
        self.lengths = source.durations * (1.0 if augmentation is None else longest_factor(augmentation))
        drawn = [] if augmentation is None else [augmentation.model_dump(mode="json"), features.config.dither]
        self.useful_workers = 0 if augmentation is None else MOST_AUDIO_WORKERS * reads_audio(source)
        kind = [] if isinstance(features, Features) else [type(features).__name__]
        self.fingerprint = compute_fingerprint([feature_fingerprint(source, features.config), drawn, *kind])
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
        source, within = self.source.find(index) if isinstance(self.source, UtteranceSources) else (self.source, index)
        stored = source if isinstance(source, StoredSource) else None
        found, read = (stored.load_features(within, rng), None) if stored else self._from_audio(index, rng)
        frames, samples, masks = found.features, None, None
        if self.on_device:
            assert isinstance(self.features, Features)
            samples = frames
            frames = np.zeros((self.features.num_windows(len(samples)), 0), np.float32)
        if self.augmentation is not None and self.augmentation.spec_augment is not None:
            changes = self.augmentation.spec_augment, self.features.frame_shift, rng
            if self.on_device:
                masks = drawn_masks((len(frames), self.features.dims), *changes)
            else:
                frames = masked(frames, *changes)
        if not len(frames):
            # Shorter than half a frame.
            frames = np.zeros((1, 0 if self.on_device else self.features.dims), dtype=np.float32)
        # Without a UEM, all of it was annotated.
        uem = found.uem or ((0.0, found.duration),)
        audio, computed = partial(self._samples, index) if self.with_audio else None, None
        if read is not None and audio is None and self.collator.has_own_call():
            audio, computed = partial(np.asarray, read), partial(self.features, read) if self.on_device else None
        made = (found.name, frames, found.segments, found.duration, uem, samples, masks, audio)
        return DiarizationExample(*made, self.features.frame_shift, self.features.config.sampling_rate, computed)

    def _samples(self, index: int) -> np.ndarray:
        """The samples of a recording that isn't changed, so that nothing is drawn."""
        return self.source.load(index, np.random.default_rng(0)).samples

    def _from_audio(self, index: int, rng: np.random.Generator) -> tuple[LabelledFeatures, np.ndarray]:
        """Features, or the input from which a device computes them, and the samples."""
        audio, options = self.source.load(index, rng), self.augmentation
        samples = audio.samples
        if options is not None:
            if options.changes_audio:
                audio = augmented(audio, options, rng, make_voices(self.source))
            samples = dithered(audio.samples, self.features.config.dither, rng)
        if self.on_device:
            assert isinstance(self.features, Features)
            made = self.features.extract_section(samples)
        else:
            made = self.features(samples)
        return LabelledFeatures(audio.name, made, audio.duration, audio.segments, audio.uem), samples

    def collate(self, rows: list[list[DiarizationExample]]) -> Batch:
        """A batch; in training, where workers pass it on, its examples come without features."""
        batch = self.collator.batch([row[0] for row in rows])
        if self.augmentation is None:
            return batch
        return replace(batch, extra={"examples": [replace(row[0].without_features(), audio=None) for row in rows]})

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """How a batch is made longer; features that are made on the device have as many frames as ``feature_mask``."""
        features, label = Padding(step=self.collator.options.subsampling), IGNORED if batch["labels"].ndim == 2 else 0
        return {
            "features": features,
            "feature_mask": features,
            "mask": Padding(),
            "labels": Padding(label),
            "activity": Padding(),
            "sets": Padding(),
        }

    def describe(self, index: int) -> str:
        return self.source.describe(index)

    def list_bytes(self, indices: Sequence[int]) -> Iterable[tuple[Path, int, int]]:
        # Simulated conversations and stored features aren't read from the cuts' files.
        return self.source.list_bytes(indices) if isinstance(self.source, CutSource | WindowSource) else ()


log = logging.getLogger("vaak")
READ_EVERY_EPOCH = ("train", "valid")


def store_features(
    prepared: PreparedRecordings,
    datasets: Sequence[DatasetConfig],
    audio: AudioConfig,
    data: DiarizationDataConfig,
    device: torch.device,
    skip_bad: bool,
) -> None:
    """Make the features that training will read, unless they are there: on the ``device`` if that is CUDA.

    ``prepared`` has the cuts of ``datasets``; ``audio`` says where features are stored, and ``data`` which splits read
    them. ``skip_bad`` leaves out recordings that can't be read.
    """
    for split in READ_EVERY_EPOCH:
        if split not in prepared.about["statistics"] or _is_drawn_anew(split, data):
            continue
        for number, store in prepared.stores(split):
            if datasets[number].conversations is None:
                extract_cuts(store, audio, "cuda" if device.type == "cuda" else "cpu", skip_bad=skip_bad)


def with_stored_features(source: CutSource | WindowSource, split: str, data: DiarizationDataConfig) -> AudioSource:
    """The source with its stored features, if there are any; otherwise unchanged."""
    if source.audio.storage_path is None or _is_drawn_anew(split, data):
        return source
    store = stored_cuts(source.store, source.audio)
    if store is not None:
        return StoredSource(source, store, Features(source.audio))
    if split == "train":
        log.warning(
            "the features of train are no longer in %s (global_config.storage_path); recomputed ones differ at the "
            "edges of windows from those in training",
            source.audio.storage_path,
        )
    return source


def _is_drawn_anew(split: str, data: DiarizationDataConfig) -> bool:
    return split == "train" and (data.augmentation.changes_audio or data.features_on == "device")
