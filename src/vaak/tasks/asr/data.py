"""Examples of speech recognition: Whisper's features of an utterance, and its transcript.

features   log-mel of the audio, padded to the whole of what the encoder reads
inputs     prompt … t1 t2 … tn
targets    -100 …   t1 t2 … tn end      (the prompt is given, not learned)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from vaak.audio.augmentation.pipeline import augmented, voices_of
from vaak.audio.augmentation.spec_augment import masked
from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.labelled import LabelledAudio
from vaak.audio.sources.cut_source import CutSource
from vaak.audio.waveforms.bounded_cache import BoundedCache
from vaak.core.batch import Batch
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset
from vaak.engine.objective.cross_entropy import IGNORED
from vaak.tasks.asr.base import FRAMES_PER_SECOND, PURPOSE, positions_of
from vaak.tasks.asr.utterances import Utterances
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.hub import transformers_of

SAMPLING_RATE = 16_000


class WhisperFeatures:
    """Whisper's features, by transformers: ``(bin, frame)`` float32, of audio padded to ``seconds``."""

    def __init__(self, num_mel_bins: int, seconds: float) -> None:
        self.num_mel_bins, self.seconds = num_mel_bins, seconds
        self.num_samples = round(seconds * SAMPLING_RATE)

    @cached_property
    def _extractor(self) -> Any:
        return transformers_of(PURPOSE, "asr").WhisperFeatureExtractor(feature_size=self.num_mel_bins)

    @property
    def num_frames(self) -> int:
        return round(self.seconds * FRAMES_PER_SECOND)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Of samples ``(time,)`` at 16 kHz; what is beyond ``seconds`` is cut off."""
        found = self._extractor(samples, sampling_rate=SAMPLING_RATE, max_length=self.num_samples, return_tensors="np")
        features: np.ndarray = found["input_features"][0]
        return features


@dataclass(frozen=True)
class AsrExample:
    """An utterance: ``features`` ``(bin, frame)``, and the ``ids`` of its transcript ``(token,)``."""

    name: str
    text: str
    group: str
    features: np.ndarray
    ids: np.ndarray
    is_transcribed: bool
    """Whether an evaluation transcribes it."""


class AsrDataset(Dataset):
    """A split's utterances; the length of each is the seconds that the encoder reads, for all are padded to them."""

    draws_globally = False

    def __init__(
        self,
        utterances: Utterances,
        vocabulary: Vocabulary,
        features: WhisperFeatures,
        audio: AudioConfig,
        augmentation: AugmentationConfig | None = None,
        num_transcribed: int | None = None,
    ) -> None:
        """``features`` are those of audio that is read as ``audio`` says, and changed by ``augmentation``.

        ``utterances`` are read with the ``vocabulary``; an evaluation transcribes the first ``num_transcribed`` of
        them (None: all).
        """
        self.utterances, self.vocabulary, self.features, self.augmentation = (
            utterances, vocabulary, features, augmentation,
        )  # fmt: skip
        changes = {"sampling_rate": SAMPLING_RATE, "cache_gigabytes": 0.0}  # features are kept, instead of audio
        self.source = CutSource(utterances.cuts, audio.model_copy(update=changes))
        self.num_transcribed = len(utterances) if num_transcribed is None else num_transcribed
        self.lengths = np.full(len(utterances), features.seconds)
        self.strata = utterances.groups
        self.fingerprint = fingerprint_of([utterances.fingerprint, features.num_mel_bins, features.seconds])
        num_bytes = 4 * len(utterances) * features.num_mel_bins * features.num_frames
        changes_audio = augmentation is not None and augmentation.changes_audio
        self.useful_workers = 2 if changes_audio or num_bytes > audio.cache_gigabytes * 2**30 else 0
        self._cache = BoundedCache(audio.cache_gigabytes * 2**30)
        self._voices = voices_of(self.source)

    def example(self, index: int, rng: np.random.Generator) -> AsrExample:
        """Utterance ``index``. Raises DataError, naming the file, where it can't be read."""
        changes, place = self.augmentation, self.source.place(int(self.utterances.used[index]), rng)
        if changes is not None and changes.changes_audio:
            features = self.features(self._changed(self.source.at(place), changes, rng).samples)
        else:
            features = self._cache.get(index, lambda: self.features(self.source.at(place).samples))
        if changes is not None and changes.spec_augment is not None:
            features = masked(features.T, changes.spec_augment, 1 / FRAMES_PER_SECOND, rng).T
        spoken = self.source.spoken(place)
        group = self.utterances.group_names[self.utterances.groups[index]]
        ids = np.array(self.vocabulary.encode(spoken.text or ""), np.int64)
        return AsrExample(spoken.name, spoken.text or "", group, features, ids, index < self.num_transcribed)

    def _changed(self, audio: LabelledAudio, changes: AugmentationConfig, rng: np.random.Generator) -> LabelledAudio:
        """Augmented audio, or unchanged where it would be longer than what the encoder reads."""
        found = augmented(audio, changes, rng, self._voices)
        return found if found.duration <= max(self.features.seconds, audio.duration) else audio

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """A batch; each row is one utterance."""
        return collate([row[0] for row in rows], self.vocabulary)

    def difficulty(self, measure: str) -> np.ndarray:
        return self.utterances.durations if measure == "length" else super().difficulty(measure)

    def describe(self, index: int) -> str:
        return self.utterances.describe(index)


def collate(examples: Sequence[AsrExample], vocabulary: Vocabulary) -> Batch:
    """A batch of utterances, transcripts padded on the right.

    Its tensors: ``features`` ``(row, bin, frame)``, ``inputs`` and ``targets`` ``(row, token)``.
    """
    prompt, end, pad = list(vocabulary.ids.prompt), vocabulary.ids.end, vocabulary.ids.pad
    longest = max(len(one.ids) for one in examples) + len(prompt)
    inputs = torch.full((len(examples), longest), pad)
    targets = torch.full((len(examples), longest), IGNORED)
    for row, one in enumerate(examples):
        first, ids = len(prompt) - 1, torch.from_numpy(one.ids)
        inputs[row, : len(prompt)] = torch.tensor(prompt)
        inputs[row, len(prompt) : len(prompt) + len(ids)] = ids
        targets[row, first : first + len(ids)] = ids
        targets[row, first + len(ids)] = end
    features = torch.from_numpy(np.stack([one.features for one in examples]))
    numbers = torch.tensor([len(one.ids) + 1 for one in examples])
    of_audio = positions_of(features.shape[2] / FRAMES_PER_SECOND)
    counts = {
        "token": numbers,
        "position": of_audio + len(prompt) - 1 + numbers,
        "example": torch.ones(len(examples)),
    }
    extra: dict[str, Any] = {
        name: [getattr(one, attribute) for one in examples]
        for name, attribute in {"names": "name", "texts": "text", "groups": "group"}.items()
    }
    extra["transcribed"] = [one.is_transcribed for one in examples]
    return Batch({"features": features, "inputs": inputs, "targets": targets}, counts, extra=extra)
