"""The examples made of utterances: features of audio, and the transcript. Each model makes its batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaak.audio.audio_file import MAX_AUDIO_SECONDS, NUM_WITH_AUDIO, encode_wav
from vaak.audio.augmentation.pipeline import (
    augmented,
    drawn_masks,
    longest_factor,
    make_voices,
    masked,
    padded_masks,
)
from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.cuts.sources import BoundedCache, CutSource
from vaak.audio.segments import Alignment, LabelledAudio
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import MOST_AUDIO_WORKERS, Dataset
from vaak.tasks.asr.features import AudioFeatures
from vaak.tasks.asr.utterances import Utterances
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.base import pad_rows


@dataclass(frozen=True)
class AsrExample:
    """An utterance: ``features`` ``(bin, frame)``, and the ``ids`` of its transcript ``(token,)``.

    Where a device makes the features, they are samples ``(time,)``, with the ``masks`` ``(mask, 4)`` that it is to set.
    """

    name: str
    text: str
    group: str
    features: np.ndarray
    ids: np.ndarray
    is_transcribed: bool
    """Whether an evaluation transcribes it."""
    masks: np.ndarray | None = None
    has_times: bool = False
    """Whether there are times among its ids, so that the prompt doesn't say that there are none."""


class AsrDataset(Dataset):
    """A split's utterances; the length of each is the seconds that the encoder reads."""

    draws_globally, length_of_position = False, 0.0

    def __init__(
        self,
        utterances: Utterances,
        vocabulary: Vocabulary,
        features: AudioFeatures,
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
        # Features are kept in memory instead of audio.
        changes = {
            "sampling_rate": features.sampling_rate,
            "cache_gigabytes": 0.0,
        }
        self.source = CutSource(utterances.cuts, audio.model_copy(update=changes))
        self.num_transcribed = len(utterances) if num_transcribed is None else num_transcribed
        # Batches are planned by these lengths before speeds are drawn: the slowest speed decides what fits in memory.
        factor = 1.0 if augmentation is None else longest_factor(augmentation)
        self.lengths = features.lengths(utterances.durations * factor)
        self.strata = utterances.groups
        self.fingerprint = compute_fingerprint([utterances.fingerprint, *features.key])
        num_bytes = features.num_bytes(utterances.durations)
        changes_audio = augmentation is not None and augmentation.changes_audio
        # Where all features fit in the cache, they are computed once, and handing them over would cost more than
        # reading them.
        self.useful_workers = MOST_AUDIO_WORKERS if changes_audio or num_bytes > audio.cache_gigabytes * 2**30 else 0
        self._cache = BoundedCache(audio.cache_gigabytes * 2**30)
        self._voices = make_voices(self.source)

    def example(self, index: int, rng: np.random.Generator) -> AsrExample:
        """Utterance ``index``. Raises DataError, naming the file, where it can't be read."""
        changes = self.augmentation
        place = self.source.place(int(self.utterances.used[index]), rng)
        spoken = self.source.spoken(place)
        ids = np.array(self.vocabulary.encode(spoken.text or ""), np.int64)
        if changes is not None and changes.changes_audio:
            changed = self.changed(self.source.at(place), ids, changes, rng)
            features = self.features(changed.samples)
            alignment, seconds = changed.alignment, changed.duration
        else:
            alignment, seconds = spoken.alignment, float(self.utterances.durations[index])
            # Only features of unchanged audio are worth keeping: changed audio is another one in each epoch.
            features = self._cache.get(index, lambda: self.features(self.source.at(place).samples))
        spec_augment, masks = None if changes is None else changes.spec_augment, None
        if spec_augment is not None and self.features.on_device:
            masks = drawn_masks(self.features.shape(features), spec_augment, self.features.frame_shift, rng)
        elif spec_augment is not None:
            features = masked(features.T, spec_augment, self.features.frame_shift, rng).T
        group = self.utterances.group_names[self.utterances.groups[index]]
        ids, has_times = self.add_times(ids, spoken.text or "", alignment or {}, seconds, rng)
        is_transcribed = index < self.num_transcribed
        return AsrExample(spoken.name, spoken.text or "", group, features, ids, is_transcribed, masks, has_times)

    def add_times(
        self, ids: np.ndarray, text: str, alignment: Alignment, seconds: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, bool]:
        """The tokens of a text, with times among them if the model learns to write them here; and whether it does."""
        return ids, False

    def compute_features(self, example: AsrExample) -> np.ndarray:
        """Return an example's features ``(bin, frame)``, made here where a device would make them."""
        if not self.features.on_device:
            return example.features
        features: np.ndarray = self.features.of_batch(stack_samples([example]))[0].numpy()
        return features

    def changed(
        self, audio: LabelledAudio, ids: np.ndarray, changes: AugmentationConfig, rng: np.random.Generator
    ) -> LabelledAudio:
        """Augmented audio of these tokens, or unchanged audio if it would be too long for the encoder."""
        found = augmented(audio, changes, rng, self._voices)
        return found if found.duration <= max(self.features.seconds, audio.duration) else audio

    def difficulty(self, measure: str) -> np.ndarray:
        return self.utterances.durations if measure == "length" else super().difficulty(measure)

    def describe(self, index: int) -> str:
        return self.utterances.describe(index)

    def list_bytes(self, indices: Sequence[int]) -> Iterator[tuple[Path, int, int]]:
        return self.source.list_bytes([int(self.utterances.used[index]) for index in indices])

    def list_audio(self) -> list[Callable[[], bytes]]:
        """Readers of the audio of the first utterances that are transcribed, as WAV files."""
        number = min(NUM_WITH_AUDIO, self.num_transcribed, len(self.utterances))
        return [partial(self._wav, index) for index in range(number)]

    def _wav(self, index: int) -> bytes:
        samples = self.source.load(int(self.utterances.used[index]), np.random.default_rng(0)).samples
        return encode_wav(samples[: MAX_AUDIO_SECONDS * self.features.sampling_rate], self.features.sampling_rate)


def stack_samples(examples: Sequence[AsrExample]) -> dict[str, Tensor]:
    """Return the tensors from which a device computes features: ``samples``, and ``masks`` if any."""
    found = {"samples": torch.from_numpy(pad_rows([one.features for one in examples], dtype=np.float32))}
    masks = [one.masks for one in examples if one.masks is not None]
    if masks:
        found["masks"] = torch.from_numpy(padded_masks(masks))
    return found
