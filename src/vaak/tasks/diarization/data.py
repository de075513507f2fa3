"""Examples of a diarizer: features of a recording, or of a window of it, and who speaks when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaak.audio.augmentation import augmented, longest_factor
from vaak.audio.config import AudioConfig, AugmentationConfig, DatasetConfig
from vaak.audio.cut_source import CutSource, WindowSource
from vaak.audio.features import Features, dithered
from vaak.audio.labelled import AudioSource
from vaak.audio.simulation import SimulatedConversations, at_speeds
from vaak.audio.sources import Sources
from vaak.audio.spec_augment import masked
from vaak.audio.utterances import CutUtterances
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.files import fingerprint_of
from vaak.tasks.diarization.config import DiarizationDataConfig
from vaak.tasks.diarization.labels import DiarizationCollator, DiarizationExample
from vaak.tasks.diarization.prepare import Prepared


def audio_source(
    prepared: Prepared, split: str, datasets: Sequence[DatasetConfig], audio: AudioConfig, data: DiarizationDataConfig
) -> AudioSource:
    """The recordings of a split, those of all datasets one after another: in windows for training, else whole."""
    sources: list[AudioSource] = []
    for number, store in prepared.stores(split):
        dataset = datasets[number]
        if dataset.conversations is not None:
            utterances = CutUtterances(store, audio, find_speech=dataset.find_speech)
            sources.append(SimulatedConversations(utterances, dataset.conversations, split))
        elif split == "train":
            sources.append(WindowSource(store, audio, data.window, data.shift_windows))
        else:
            sources.append(CutSource(store, audio))
    return sources[0] if len(sources) == 1 else Sources(sources)


def training_speakers(prepared: Prepared, datasets: Sequence[DatasetConfig]) -> tuple[str, ...]:
    """The names of all speakers of training, sorted; one whose speed is changed has a name for each speed."""
    names: set[str] = set()
    for number, store in prepared.stores("train"):
        conversations = datasets[number].conversations
        names |= set(store.speakers if conversations is None else at_speeds(store.speakers, conversations.speed))
    return tuple(sorted(names))


class DiarizationDataset:
    """A split's recordings with their features; an example's length is its duration in seconds, at most."""

    strata: np.ndarray | None = None
    row_capacity: int | None = None
    draws_globally = False

    def __init__(
        self,
        source: AudioSource,
        features: Features,
        collator: DiarizationCollator,
        augmentation: AugmentationConfig | None,
    ) -> None:
        """Without ``augmentation`` features are those of the recordings as they are, and nothing is drawn."""
        self.source, self.features, self.collator, self.augmentation = source, features, collator, augmentation
        self.lengths = source.durations * (1.0 if augmentation is None else longest_factor(augmentation))
        options = [] if augmentation is None else [augmentation.model_dump(mode="json")]
        self.fingerprint = fingerprint_of([source.fingerprint, features.config.model_dump(mode="json"), options])

    def example(self, index: int, rng: np.random.Generator) -> DiarizationExample:
        audio, options = self.source.load(index, rng), self.augmentation
        if options is None:
            found = self.features(audio.samples)
        else:
            audio = augmented(audio, options, rng)
            found = self.features(dithered(audio.samples, self.features.config.dither, rng))
            if options.spec_augment is not None:
                found = masked(found, options.spec_augment, self.features.frame_shift, rng)
        return DiarizationExample(audio.name, found, audio.segments, audio.duration, audio.uem)

    def collate(self, rows: list[list[DiarizationExample]]) -> Batch:
        return self.collator([row[0] for row in rows])

    def difficulty(self, measure: str) -> np.ndarray:
        raise UserError(f"there is no difficulty {measure}; choose length")

    def describe(self, index: int) -> str:
        return self.source.describe(index)
