"""The examples that are made of utterances: Whisper's features, and the transcript.

features   log-mel of the audio, padded to the whole of what the encoder reads
inputs     prompt … t1 t2 … tn
targets    -100 …   t1 t2 … tn end      (the prompt is given, not learned)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.audio.augmentation.pipeline import (
    augmented,
    drawn_masks,
    longest_factor,
    masked,
    masked_on_device,
    voices_of,
)
from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.cuts.sources import BoundedCache, CutSource
from vaak.audio.segments import LabelledAudio
from vaak.core.batch import Batch, send
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.asr.utterances import Utterances
from vaak.tasks.asr.whisper import FRAMES_PER_SECOND, PURPOSE, Vocabulary, positions_of
from vaak.tasks.base import pad_rows
from vaak.tasks.pretrained import transformers_of

SAMPLING_RATE = 16_000


class AudioFeatures(Protocol):
    """Features that a model reads of audio of at most ``seconds``: ``(bin, frame)`` float32 of samples ``(time,)``.

    ``key`` is what they depend on, and ``lengths`` are the seconds that a model reads of utterances of ``durations``.
    """

    seconds: float
    sampling_rate: int
    frame_shift: float
    key: list[Any]

    def __call__(self, samples: np.ndarray) -> np.ndarray: ...

    def lengths(self, durations: np.ndarray) -> np.ndarray: ...

    def num_bytes(self, durations: np.ndarray) -> float: ...


class WhisperFeatures:
    """Whisper's features, by transformers: ``(bin, frame)`` float32, of audio padded to ``seconds``."""

    sampling_rate, frame_shift = SAMPLING_RATE, 1 / FRAMES_PER_SECOND

    def __init__(self, num_mel_bins: int, seconds: float) -> None:
        self.num_mel_bins, self.seconds = num_mel_bins, seconds
        self.num_samples = round(seconds * SAMPLING_RATE)
        self.key = [num_mel_bins, seconds]

    def lengths(self, durations: np.ndarray) -> np.ndarray:
        return np.full(len(durations), self.seconds)

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * len(durations) * self.num_mel_bins * self.num_frames

    @cached_property
    def _extractor(self) -> Any:
        return transformers_of(PURPOSE, "asr").WhisperFeatureExtractor(feature_size=self.num_mel_bins)

    @property
    def num_frames(self) -> int:
        return round(self.seconds * FRAMES_PER_SECOND)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return features ``(bin, frame)`` of samples ``(time,)`` at 16 kHz; those beyond ``seconds`` are cut off."""
        options = {"sampling_rate": SAMPLING_RATE, "max_length": self.num_samples, "return_tensors": "np"}
        with torch.autocast("cpu", enabled=False):  # they multiply matrices, too
            features: np.ndarray = self._extractor(samples, **options)["input_features"][0]
        return features


class WhisperSamples(WhisperFeatures):
    """Samples ``(time,)`` in place of features, of which a device makes the features of a whole batch."""

    def __init__(self, num_mel_bins: int, seconds: float) -> None:
        super().__init__(num_mel_bins, seconds)
        self._of_devices: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples that features are made of."""
        return np.asarray(samples[: self.num_samples], np.float32)

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * SAMPLING_RATE * float(durations.sum())

    @torch.no_grad()
    def of_batch(self, samples: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return the features of ``(row, time)``, up to rounding, on its device: ``(row, bin, frame)``.

        ``masks`` are those of ``vaak.audio.augmentation.pipeline.masked_on_device``.
        """
        window, filters = (constant.to(samples.dtype) for constant in self._constants(samples.device))
        samples = F.pad(samples, (0, self.num_samples - samples.shape[1]))
        with torch.autocast(samples.device.type, enabled=False):
            spectra = torch.stft(
                samples, self._extractor.n_fft, self._extractor.hop_length, window=window, return_complex=True
            )
            logs = (filters @ spectra[..., :-1].abs().square()).clamp(min=1e-10).log10()
        features = (logs.maximum(logs.amax((1, 2), keepdim=True) - 8) + 4) / 4
        return features if masks is None else masked_on_device(features.mT, masks).mT

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The window, and the mel filters ``(bin, frequency)``."""
        if device not in self._of_devices:
            window = torch.hann_window(self._extractor.n_fft)
            filters = torch.from_numpy(self._extractor.mel_filters.T).float()
            self._of_devices[device] = send(window, device), send(filters, device)
        return self._of_devices[device]


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


class AsrDataset(Dataset):
    """A split's utterances; the length of each is the seconds that the encoder reads (all that Whisper reads)."""

    draws_globally = False

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
        changes = {
            "sampling_rate": features.sampling_rate,
            "cache_gigabytes": 0.0,
        }  # features are kept, instead of audio
        self.source = CutSource(utterances.cuts, audio.model_copy(update=changes))
        self.num_transcribed = len(utterances) if num_transcribed is None else num_transcribed
        factor = 1.0 if augmentation is None else longest_factor(augmentation)
        self.lengths = features.lengths(utterances.durations * factor)
        self.strata = utterances.groups
        self.fingerprint = fingerprint_of([utterances.fingerprint, *features.key])
        num_bytes = features.num_bytes(utterances.durations)
        changes_audio = augmentation is not None and augmentation.changes_audio
        self.useful_workers = 2 if changes_audio or num_bytes > audio.cache_gigabytes * 2**30 else 0
        self._cache = BoundedCache(audio.cache_gigabytes * 2**30)
        self._voices = voices_of(self.source)

    def example(self, index: int, rng: np.random.Generator) -> AsrExample:
        """Utterance ``index``. Raises DataError, naming the file, where it can't be read."""
        changes, place = self.augmentation, self.source.place(int(self.utterances.used[index]), rng)
        spoken = self.source.spoken(place)
        ids = np.array(self.vocabulary.encode(spoken.text or ""), np.int64)
        if changes is not None and changes.changes_audio:
            changed = self.changed(self.source.at(place), ids, changes, rng)
            features = self.features(changed.samples)
        else:
            features = self._cache.get(index, lambda: self.features(self.source.at(place).samples))
        spec_augment, masks = None if changes is None else changes.spec_augment, None
        if spec_augment is not None and isinstance(self.features, WhisperSamples):
            shape = self.features.num_frames, self.features.num_mel_bins
            masks = drawn_masks(shape, spec_augment, self.features.frame_shift, rng)
        elif spec_augment is not None:
            features = masked(features.T, spec_augment, self.features.frame_shift, rng).T
        group = self.utterances.group_names[self.utterances.groups[index]]
        return AsrExample(spoken.name, spoken.text or "", group, features, ids, index < self.num_transcribed, masks)

    def features_of(self, example: AsrExample) -> np.ndarray:
        """Return an example's features ``(bin, frame)``, made here where a device would make them."""
        if not isinstance(self.features, WhisperSamples):
            return example.features
        audio = _audio([example])
        features: np.ndarray = self.features.of_batch(audio["samples"], audio.get("masks"))[0].numpy()
        return features

    def changed(
        self, audio: LabelledAudio, ids: np.ndarray, changes: AugmentationConfig, rng: np.random.Generator
    ) -> LabelledAudio:
        """Augmented audio of these tokens, or unchanged where it would be longer than what the encoder reads."""
        found = augmented(audio, changes, rng, self._voices)
        return found if found.duration <= max(self.features.seconds, audio.duration) else audio

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """A batch; each row is one utterance."""
        examples = [row[0] for row in rows]
        return collate(examples, self.vocabulary, round(self.features.seconds * FRAMES_PER_SECOND))

    def difficulty(self, measure: str) -> np.ndarray:
        return self.utterances.durations if measure == "length" else super().difficulty(measure)

    def describe(self, index: int) -> str:
        return self.utterances.describe(index)


def collate(examples: Sequence[AsrExample], vocabulary: Vocabulary, num_frames: int) -> Batch:
    """A batch of utterances, transcripts padded on the right.

    Its tensors: ``inputs`` and ``targets`` ``(row, token)``; ``features`` ``(row, bin, frame)``, or what examples have
    in their place: ``samples`` ``(row, time)``, padded with zeros, and ``masks`` ``(row, mask, 4)``.
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
    numbers = torch.tensor([len(one.ids) + 1 for one in examples])
    of_audio = positions_of(num_frames / FRAMES_PER_SECOND)
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
    return Batch({**_audio(examples), "inputs": inputs, "targets": targets}, counts, extra=extra)


def _audio(examples: Sequence[AsrExample]) -> dict[str, Tensor]:
    """The tensors of a batch's audio."""
    if examples[0].features.ndim > 1:
        return {"features": torch.from_numpy(np.stack([one.features for one in examples]))}
    found = {"samples": torch.from_numpy(pad_rows([one.features for one in examples], dtype=np.float32))}
    masks = [one.masks for one in examples if one.masks is not None]
    if masks:  # an empty one masks nothing
        most = max(map(len, masks))
        found["masks"] = torch.from_numpy(np.stack([np.pad(one, ((0, most - len(one)), (0, 0))) for one in masks]))
    return found
