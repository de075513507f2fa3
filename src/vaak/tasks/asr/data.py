"""The examples that are made of utterances: Whisper's features, and the transcript.

features   log-mel of the audio, padded to the whole of what the encoder reads
inputs     prompt … t1 t2 … tn
targets    -100 …   t1 t2 … tn end      (the prompt is given, not learned)

With data.timestamps, some examples have the times of their segments among their tokens: <|0.00|> so it is<|1.20|>.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vaak.audio.audio_file import HEARD, LONGEST_HEARD, encode_wav
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
from vaak.audio.segments import Alignment, Interval, LabelledAudio
from vaak.core.batch import Batch
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Dataset, Padding
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.asr.utterances import SEGMENT, Utterances
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.asr.whisper.features import AudioFeatures
from vaak.tasks.asr.whisper.network import FRAMES_PER_SECOND, count_positions
from vaak.tasks.asr.whisper.times import SECONDS_OF_A_TIME
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


class Timing(NamedTuple):
    """The ``share`` of examples that have the times of segments in them, where they then have ``most_tokens``."""

    share: float
    most_tokens: int


PAUSE = 0.5
"""Seconds without a word after which another segment begins."""


class AsrDataset(Dataset):
    """A split's utterances; the length of each is the seconds that the encoder reads (all that Whisper reads)."""

    draws_globally, length_of_position = False, 0.0
    timing: Timing | None = None
    max_target_positions: int | None = None
    """The maximum number of tokens that the decoder reads."""

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
        self.useful_workers = 2 if changes_audio or num_bytes > audio.cache_gigabytes * 2**30 else 0
        self._cache = BoundedCache(audio.cache_gigabytes * 2**30)
        self._voices = make_voices(self.source)

    def example(self, index: int, rng: np.random.Generator) -> AsrExample:
        """Utterance ``index``. Raises DataError, naming the file, where it can't be read."""
        changes, timing = self.augmentation, self.timing
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
        has_times = timing is not None and rng.random() < timing.share
        if timing is not None and has_times:
            timed = timed_ids(self.vocabulary, split_segments(spoken.text or "", alignment or {}, seconds))
            # Its times may make a text longer than the decoder's table of positions; it is then trained without them.
            has_times = len(timed) <= timing.most_tokens
            ids = np.array(timed, np.int64) if has_times else ids
        is_transcribed = index < self.num_transcribed
        return AsrExample(spoken.name, spoken.text or "", group, features, ids, is_transcribed, masks, has_times)

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

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """A batch; each row is one utterance."""
        examples = [row[0] for row in rows]
        return collate(examples, self.vocabulary, round(self.features.seconds * FRAMES_PER_SECOND))

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """How a batch's transcripts are made longer, which Whisper's decoder reads; all audio is equally long."""
        fills = {"inputs": self.vocabulary.ids.pad, "targets": IGNORED}
        return {name: Padding(fill, longest=self.max_target_positions) for name, fill in fills.items()}

    def difficulty(self, measure: str) -> np.ndarray:
        return self.utterances.durations if measure == "length" else super().difficulty(measure)

    def describe(self, index: int) -> str:
        return self.utterances.describe(index)

    def heard(self) -> list[Callable[[], bytes]]:
        """Readers of the audio of the first utterances that are transcribed, as WAV files."""
        return [partial(self._wav, index) for index in range(min(HEARD, self.num_transcribed, len(self.utterances)))]

    def _wav(self, index: int) -> bytes:
        samples = self.source.load(int(self.utterances.used[index]), np.random.default_rng(0)).samples
        return encode_wav(samples[: LONGEST_HEARD * self.features.sampling_rate], self.features.sampling_rate)


def split_segments(text: str, alignment: Alignment, seconds: float) -> list[Interval]:
    """The segments of an utterance of ``seconds``: the utterances of which it was made, or its phrases.

    >>> words = {"word": (Interval(0.1, 0.3, "so"), Interval(0.3, 0.5, "it"), Interval(1.4, 1.9, "is"))}
    >>> split_segments("So it is.", words, 2.0)
    [Interval(start=0.1, end=0.5, text='So it'), Interval(start=1.4, end=1.9, text='is.')]
    >>> split_segments("So it is.", {}, 2.0)
    [Interval(start=0.0, end=2.0, text='So it is.')]
    """
    if SEGMENT in alignment:
        return list(alignment[SEGMENT])
    words, texts = [word for word in alignment.get("word", ()) if word.text], text.split()
    if not words:
        return [Interval(0.0, seconds, text)]
    begins = [0, *(place for place in range(1, len(words)) if words[place].start - words[place - 1].end >= PAUSE)]
    if len(texts) != len(words):  # then it isn't known which word is which
        return [Interval(words[0].start, words[-1].end, text)]
    return [
        Interval(words[first].start, words[last - 1].end, " ".join(texts[first:last]))
        for first, last in zip(begins, [*begins[1:], len(words)], strict=True)
    ]


def timed_ids(vocabulary: Vocabulary, segments: Sequence[Interval]) -> list[int]:
    """The tokens of segments, each between those of its times, which never go back."""
    times, ids, last = vocabulary.times, list[int](), 0
    for start, end, text in segments:
        first = min(max(last, round(start / SECONDS_OF_A_TIME)), len(times) - 2)
        last = min(max(first + 1, round(end / SECONDS_OF_A_TIME)), len(times) - 1)
        ids += [times[first], *vocabulary.encode(text), times[last]]
    return ids


def collate(examples: Sequence[AsrExample], vocabulary: Vocabulary, num_frames: int) -> Batch:
    """A batch of utterances, transcripts padded on the right.

    Its tensors: ``inputs`` and ``targets`` ``(row, token)``; ``features`` ``(row, bin, frame)``, or what examples have
    in their place: ``samples`` ``(row, time)``, padded with zeros, and ``masks`` ``(row, mask, 4)``.
    """
    whole, end, pad = list(vocabulary.ids.prompt), vocabulary.ids.end, vocabulary.ids.pad
    longest = max(len(one.ids) for one in examples) + len(whole)
    inputs = torch.full((len(examples), longest), pad)
    targets = torch.full((len(examples), longest), IGNORED)
    for row, one in enumerate(examples):
        prompt = whole[:-1] if one.has_times else whole  # without <|notimestamps|>
        first, ids = len(prompt) - 1, torch.from_numpy(one.ids)
        inputs[row, : len(prompt)] = torch.tensor(prompt)
        inputs[row, len(prompt) : len(prompt) + len(ids)] = ids
        # The last token of the prompt predicts the first of the text; the prompt itself isn't predicted.
        targets[row, first : first + len(ids)] = ids
        targets[row, first + len(ids)] = end
    numbers = torch.tensor([len(one.ids) + 1 for one in examples])
    of_audio = count_positions(num_frames / FRAMES_PER_SECOND)
    counts = {
        "token": numbers,
        # The encoder's positions, and what the decoder reads: the prompt and the text. numbers count the end, which is
        # not read.
        "position": of_audio + len(whole) - 1 + numbers,
        "example": torch.ones(len(examples)),
    }
    extra: dict[str, Any] = {
        name: [getattr(one, attribute) for one in examples]
        for name, attribute in {"names": "name", "texts": "text", "groups": "group"}.items()
    }
    extra["transcribed"] = [one.is_transcribed for one in examples]
    if examples[0].features.ndim > 1:
        audio = {"features": torch.from_numpy(np.stack([one.features for one in examples]))}
    else:
        audio = stack_samples(examples)
    return Batch({**audio, "inputs": inputs, "targets": targets}, counts, extra=extra)


def stack_samples(examples: Sequence[AsrExample]) -> dict[str, Tensor]:
    """The tensors from which a device computes features: ``samples``, and ``masks`` if any."""
    found = {"samples": torch.from_numpy(pad_rows([one.features for one in examples], dtype=np.float32))}
    masks = [one.masks for one in examples if one.masks is not None]
    if masks:
        found["masks"] = torch.from_numpy(padded_masks(masks))
    return found
