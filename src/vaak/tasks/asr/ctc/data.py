"""Examples of CTC: features of any number of frames, and the tokens of the transcript.

features         (row, bin, frame), 0 in padding; or, where a device makes them (Features.of_sections)
samples, masks   (row, time), (row, mask, 4)
feature_lengths  (row,) frames that are real
targets          (row, token), padded by IGNORED
target_lengths   (row,) tokens
time_mask, channel_mask    (row, frame), (row, channel): in training, what of a pretrained base's frames is hidden

The blank is the vocabulary's token for padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.features.extractors import Features, FeaturesOnDevice
from vaak.audio.segments import LabelledAudio
from vaak.core.batch import Batch
from vaak.core.task import Padding
from vaak.nn.conformer import count_frames
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.ctc import frames_needed
from vaak.tasks.asr.bases import Convolutions, count_steps, find_fewest
from vaak.tasks.asr.data import AsrDataset, AsrExample, stack_samples
from vaak.tasks.asr.utterances import TokenLimit
from vaak.tasks.base import pad_rows

TOO_FEW_FRAMES = "utterances with more tokens than the encoder has frames for"


class FrameFeatures:
    """The features of ``global_config``, and how many of the encoder's frames there are in samples."""

    on_device = False

    def __init__(self, audio: AudioConfig, seconds: float, subsampling: int) -> None:
        self.extract, self.seconds, self.subsampling = Features(audio), seconds, subsampling
        self.sampling_rate, self.frame_shift = audio.sampling_rate, self.extract.frame_shift
        self.key: list[Any] = [audio.model_dump(mode="json", exclude={"corpus_dir", "output_dir"}), seconds]

        self.num_bins = self.extract.dims

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return features ``(bin, frame)`` of samples ``(time,)``; of fewer than a frame, zeros."""
        found = self.extract(samples)
        return (found if len(found) else np.zeros((1, self.num_bins), np.float32)).T

    def shape(self, found: np.ndarray) -> tuple[int, int]:
        return found.shape[1], found.shape[0]

    def of_batch(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors["features"]

    def lengths(self, durations: np.ndarray) -> np.ndarray:
        return durations

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * self.num_bins * float(durations.sum()) / self.frame_shift

    def frames(self, num_samples: int) -> int:
        """Return the number of the encoder's frames."""
        return self.encoded(max(1, self.extract.num_frames(num_samples)))

    def encoded(self, num_features: int) -> int:
        """Return the number of the encoder's frames for ``num_features`` of the audio's."""
        return count_frames(num_features, self.subsampling)

    def hideable(self, num_features: int) -> int:
        """Return how many frames a pretrained base has where some are hidden in training."""
        return self.encoded(num_features)

    @property
    def encoded_shift(self) -> float:
        """Seconds from one of the encoder's frames to the next."""
        return self.frame_shift * self.subsampling

    def padding(self) -> Padding:
        """How features ``(row, bin, frame)``, or samples, are made longer: in steps of one of the encoder's frames."""
        return Padding(axis=2, step=self.subsampling)

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


class FrameSections(FrameFeatures):
    """Samples ``(time,)`` of whole windows in place of features, which a device makes."""

    on_device = True

    def __init__(self, audio: AudioConfig, seconds: float, subsampling: int) -> None:
        super().__init__(audio, seconds, subsampling)
        self._on_device = FeaturesOnDevice(audio)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        # Fewer samples than a frame are silence, which is 0 once the model has normalised it.
        found = self.extract.extract_section(samples)
        return found if len(found) else np.zeros(self.extract.num_samples(1), np.float32)

    def shape(self, found: np.ndarray) -> tuple[int, int]:
        return self.extract.num_windows(len(found)), self.num_bins

    def num_bytes(self, durations: np.ndarray) -> float:
        return 4 * self.sampling_rate * float(durations.sum())

    def of_batch(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self._on_device(tensors).mT

    def padding(self) -> Padding:
        return Padding(step=round(self.encoded_shift * self.sampling_rate))


class Waveforms(FrameFeatures):
    """Samples, with mean 0 and deviation 1 over an utterance if ``is_normalised``: a pretrained base's own."""

    num_bins = 1

    def __init__(
        self, layers: tuple[tuple[int, int], ...], sampling_rate: int, is_normalised: bool, seconds: float
    ) -> None:
        """``layers`` are the kernels and strides of the base's convolutions."""
        self.layers, self.is_normalised, self.seconds = layers, is_normalised, seconds
        self.sampling_rate, self.frame_shift = sampling_rate, 1 / sampling_rate
        self.key = [layers, sampling_rate, is_normalised, seconds]
        self.fewest = 1
        for kernel, stride in reversed(layers):
            self.fewest = (self.fewest - 1) * stride + kernel

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return ``(1, time)``; audio shorter than a frame of the encoder is padded with silence."""
        if self.is_normalised:
            # As transformers' Wav2Vec2FeatureExtractor does.
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        return np.pad(samples, (0, max(0, self.fewest - len(samples))))[None].astype(np.float32)

    def frames(self, num_samples: int) -> int:
        return self.encoded(max(self.fewest, num_samples))

    @property
    def encoded_shift(self) -> float:
        return math.prod(stride for _, stride in self.layers) / self.sampling_rate

    def encoded(self, num_features: int) -> int:
        for kernel, stride in self.layers:
            num_features = (num_features - kernel) // stride + 1
        return num_features

    def padding(self) -> Padding:
        return Padding(axis=2, step=math.prod(stride for _, stride in self.layers))


class ExtractedFeatures(FrameFeatures):
    """The features of one utterance, computed by the transformers feature extractor of a pretrained base."""

    def __init__(
        self, extractor: Any, steps: Convolutions, strides: Convolutions, seconds: float, *, keeps_hidden: bool = False
    ) -> None:
        """``steps`` are those from samples to features, ``strides`` those from features to the encoder's frames.

        With ``keeps_hidden``, a frame that the extractor fills up and hides is kept, and a last bin is 1 there: some
        layers of the network read it although it isn't real.
        """
        self.extractor, self.steps, self.strides, self.seconds = extractor, steps, strides, seconds
        self.keeps_hidden = keeps_hidden
        self.sampling_rate = extractor.sampling_rate
        self.frame_shift = math.prod(stride for _, stride, _ in steps) / self.sampling_rate
        self.key = [extractor.to_dict(), seconds, *(["hidden frames"] if keeps_hidden else [])]
        # A single frame has no deviation to divide by.
        self.fewest = find_fewest(max(2, find_fewest(1, strides)), steps)
        self.num_bins = len(self(np.zeros(self.fewest, np.float32)))

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return ``(bin, frame)``; audio shorter than a frame of the encoder is padded with silence."""
        samples = np.pad(samples, (0, max(0, self.fewest - len(samples)))).astype(np.float32)
        made = self.extractor(samples, sampling_rate=self.sampling_rate, return_tensors="np")["input_features"][0]
        # Extractors pad to a whole number of steps, and the mask that they return marks what is real.
        real = count_steps(len(samples), self.steps)
        if not self.keeps_hidden:
            return np.ascontiguousarray(made[:real].T, np.float32)
        return np.vstack([made.T, np.arange(len(made)) >= real]).astype(np.float32)

    def shape(self, found: np.ndarray) -> tuple[int, int]:
        """Return the numbers of real frames and of bins."""
        hidden = int(found[-1].sum()) if self.keeps_hidden else 0
        return found.shape[1] - hidden, found.shape[0]

    def frames(self, num_samples: int) -> int:
        return self.encoded(count_steps(max(self.fewest, num_samples), self.steps))

    @property
    def encoded_shift(self) -> float:
        return self.frame_shift * math.prod(stride for _, stride, _ in self.strides)

    def encoded(self, num_features: int) -> int:
        found: int = count_steps(num_features, self.strides)
        return found

    def hideable(self, num_features: int) -> int:
        return num_features

    def padding(self) -> Padding:
        return Padding(axis=2, step=math.prod(stride for _, stride, _ in self.strides))


class Hidden(NamedTuple):
    """Frames ``(frame,)`` and channels ``(channel,)`` of the encoder that are hidden."""

    frames: np.ndarray
    channels: np.ndarray


@dataclass(frozen=True)
class CtcExample(AsrExample):
    """An utterance with what of it is hidden."""

    hidden: Hidden | None = None


class CtcDataset(AsrDataset):
    """A split's utterances; the length of each is its duration in seconds."""

    features: FrameFeatures
    hide: Callable[[int, np.random.Generator], Hidden] | None = None
    """Draws which of the encoder's frames are hidden, by their number; None: no frame is."""

    def example(self, index: int, rng: np.random.Generator) -> AsrExample:
        found = super().example(index, rng)
        if self.hide is None:
            return found
        hidden = self.hide(self.features.hideable(self.features.shape(found.features)[0]), rng)
        return CtcExample(**{**vars(found), "hidden": hidden})

    def changed(
        self, audio: LabelledAudio, ids: np.ndarray, changes: AugmentationConfig, rng: np.random.Generator
    ) -> LabelledAudio:
        """Augmented audio, or unchanged where its tokens would not fit the frames that are left of it."""
        found = super().changed(audio, ids, changes, rng)
        fits = frames_needed(ids.tolist()) <= self.features.frames(len(found.samples))
        return found if fits else audio

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """Return a batch; each row is one utterance."""
        return collate([row[0] for row in rows], self.features)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        audio = self.features.padding()
        return {"features": audio, "samples": audio, "targets": Padding(IGNORED)}


def collate(examples: Sequence[AsrExample], features: FrameFeatures) -> Batch:
    """Return a batch of utterances, features and transcripts padded on the right."""
    lengths = torch.tensor([features.shape(one.features)[0] for one in examples])
    tokens = torch.tensor([len(one.ids) for one in examples])
    if features.on_device:
        # Samples alone don't say how many frames are real: they are padded to whole windows.
        audio = {**stack_samples(examples), "num_frames": lengths}
    else:
        audio = {"features": padded_features([one.features for one in examples])[0]}
    tensors = {
        **audio,
        "feature_lengths": lengths,
        "targets": torch.from_numpy(pad_rows([one.ids for one in examples], IGNORED)),
        "target_lengths": tokens,
    }
    hidden = [one.hidden for one in examples if isinstance(one, CtcExample) and one.hidden is not None]
    if hidden:
        tensors["time_mask"] = torch.from_numpy(pad_rows([one.frames for one in hidden]))
        tensors["channel_mask"] = torch.from_numpy(np.stack([one.channels for one in hidden]))
    counts = {
        # A recording without speech has a loss, too, as much as a token: the blank in each frame.
        "token": tokens + torch.tensor([not one.text for one in examples]),
        "position": torch.tensor([features.encoded(length) for length in lengths.tolist()]),
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
    most = features.encoded(silence.shape[1]) // 2
    return AsrExample("sketch", "", "all", silence, np.ones(most, np.int64), True)
