"""What a CTC model reads and is to say: features of any number of frames, and the tokens of the transcript.

features         (row, bin, frame), 0 in padding
feature_lengths  (row,) frames that are real
targets          (row, token), padded by IGNORED
target_lengths   (row,) tokens

The blank is the vocabulary's token for padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.features.extractors import Features
from vaak.audio.segments import LabelledAudio
from vaak.core.batch import Batch
from vaak.nn.conformer import frames_of
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.ctc import frames_needed
from vaak.tasks.asr.data import AsrDataset, AsrExample, TokenLimit
from vaak.tasks.asr.prepare import AsrSources
from vaak.tasks.asr.whisper import SpecialIds, Vocabulary
from vaak.tasks.base import pad_rows
from vaak.text.tokenizer import Tokenizer

TOO_FEW_FRAMES = "utterances with more tokens than the encoder has frames for"


class FrameFeatures:
    """The features of ``global_config``, and how many of the encoder's frames there are in samples."""

    def __init__(self, audio: AudioConfig, seconds: float, subsampling: int) -> None:
        self.extract, self.seconds, self.subsampling = Features(audio), seconds, subsampling
        self.sampling_rate, self.frame_shift = audio.sampling_rate, self.extract.frame_shift
        self.key: list[Any] = [audio.model_dump(mode="json", exclude={"corpus_dir", "output_dir"}), seconds]

    @property
    def num_bins(self) -> int:
        return self.extract.dims

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return features ``(bin, frame)`` of samples ``(time,)``; of fewer than a frame, zeros."""
        found = self.extract(samples)
        return (found if len(found) else np.zeros((1, self.num_bins), np.float32)).T

    def lengths(self, durations: np.ndarray) -> np.ndarray:
        return durations

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * self.num_bins * float(durations.sum()) / self.frame_shift

    def frames(self, num_samples: int) -> int:
        """Return the number of the encoder's frames."""
        return frames_of(max(1, self.extract.num_frames(num_samples)), self.subsampling)

    def limit(self) -> TokenLimit:
        """Return how many tokens can be placed in an utterance's frames."""

        def excess(ids: list[int], seconds: float) -> str | None:
            there, needed = self.frames(round(seconds * self.sampling_rate)), frames_needed(ids)
            if needed <= there:
                return None
            return (
                f"{len(ids)} tokens, which need {needed} frames of the encoder (a blank between equal ones) of {there}"
            )

        return TokenLimit(TOO_FEW_FRAMES, excess, depends_on_audio=True)


class CtcSources(AsrSources):
    """Everything that utterances are made of, and their features, which decide what fits."""

    @property
    def features(self) -> FrameFeatures:
        return FrameFeatures(self.audio, self.data.max_duration, self.model.conformer.subsampling)

    def vocabulary_of(self, tokenizer: Tokenizer) -> Vocabulary:
        return vocabulary_of(tokenizer)

    def token_limit(self, vocabulary: Vocabulary, folder: Any) -> TokenLimit:
        return self.features.limit()

    def data_options(self) -> dict[str, Any]:
        framing = {"channels", "sampling_rate", "frame_shift", "frame_length", "snip_edges"}
        options = {
            **super().data_options(),
            "architecture": "ctc",
            "audio": self.audio.model_dump(mode="json", include=framing),
            "subsampling": self.model.conformer.subsampling,
        }
        del options["max_target_length"]
        return options


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer; its other special tokens are never said."""
    blank, special = tokenizer.pad_id, {tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id}
    ids = SpecialIds((blank,), tokenizer.eos_id, blank, tokenizer.vocab_size, tuple(sorted(special)))
    return Vocabulary(tokenizer.to_json(), ids)


class CtcDataset(AsrDataset):
    """A split's utterances; the length of each is its duration in seconds."""

    features: FrameFeatures

    def changed(
        self, audio: LabelledAudio, ids: np.ndarray, changes: AugmentationConfig, rng: np.random.Generator
    ) -> LabelledAudio:
        """Augmented audio, or unchanged where its tokens would not fit the frames that are left of it."""
        found = super().changed(audio, ids, changes, rng)
        fits = frames_needed(ids.tolist()) <= self.features.frames(len(found.samples))
        return found if fits else audio

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """A batch; each row is one utterance."""
        return collate([row[0] for row in rows], self.features)


def collate(examples: Sequence[AsrExample], features: FrameFeatures) -> Batch:
    """A batch of utterances, features and transcripts padded on the right."""
    padded, lengths = padded_features([one.features for one in examples])
    tokens = torch.tensor([len(one.ids) for one in examples])
    tensors = {
        "features": padded,
        "feature_lengths": lengths,
        "targets": torch.from_numpy(pad_rows([one.ids for one in examples], IGNORED)),
        "target_lengths": tokens,
    }
    counts = {
        "token": tokens,
        "position": torch.tensor([frames_of(one.features.shape[1], features.subsampling) for one in examples]),
        "example": torch.ones(len(examples)),
    }
    extra: dict[str, Any] = {
        name: [getattr(one, attribute) for one in examples]
        for name, attribute in {"names": "name", "texts": "text", "groups": "group"}.items()
    }
    extra["transcribed"] = [one.is_transcribed for one in examples]
    return Batch(tensors, counts, extra=extra)


def padded_features(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows ``(bin, frame)`` as one tensor ``(row, bin, frame)``, and their numbers of frames ``(row,)``."""
    padded = torch.from_numpy(pad_rows([row.T for row in rows])).transpose(1, 2)
    return padded.contiguous(), torch.tensor([row.shape[1] for row in rows])


def longest_example(features: FrameFeatures) -> AsrExample:
    """Return an utterance of silence, with as many tokens as may be in half of its frames."""
    silence = np.zeros((features.num_bins, max(1, round(features.seconds / features.frame_shift))), np.float32)
    most = frames_of(silence.shape[1], features.subsampling) // 2
    return AsrExample("sketch", "", "all", silence, np.ones(most, np.int64), True)
