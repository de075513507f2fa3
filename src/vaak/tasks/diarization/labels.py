"""Labels of frames: the label types of ``training.eval_knobs.label_type``, each a collator.

    binary       somebody speaks or nobody does               (frames, 1)          binary cross-entropy
    speaker_id   silence, or one of the training speakers     (frames,) a class    cross-entropy
    multilabel   each speaker of the window speaks or not     (frames, speakers)   binary cross-entropy, best order
    powerset     which set of at most two speakers speaks     (frames, speakers)   cross-entropy of sets, best order

A user's own label type is a subclass of ``DiarizationCollator`` that defines ``labels`` or ``__call__``, named
by ``./file.py:Name``; keys next to it are arguments of its constructor.

A frame has the labels of its centre. Sources: Fujita et al. 2019, "End-to-End Neural Speaker Diarization with
Permutation-Free Objectives" (multilabel); Plaquet and Bredin 2023, "Powerset Multi-Class Cross Entropy Loss for Neural
Speaker Diarization" (powerset).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.audio.augmentation.pipeline import padded_masks
from vaak.audio.segments import Segment, merged
from vaak.config.base import Component
from vaak.config.components import resolve_class
from vaak.core.batch import Batch, send_constant
from vaak.core.errors import UserError
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.base import pad_rows
from vaak.tasks.diarization.config import LABEL_TYPES
from vaak.tasks.diarization.lhotse_cut import make_cut, make_cuts, make_supervisions

if TYPE_CHECKING:
    from lhotse import MonoCut, SupervisionSegment

SPOKEN_AT_ONCE = 2
"""The maximum number of speakers in a set of powerset."""
SPEECH = "speech"
"""The only name if there is only speech and silence."""


@dataclass(frozen=True)
class DiarizationExample:
    """Features ``(time, bins)`` of a recording or of a window of it, and who speaks when, in seconds from its start."""

    name: str
    features: np.ndarray
    segments: tuple[Segment, ...]
    duration: float
    uem: tuple[tuple[float, float], ...] | None = None
    """The regions to score; None: from the first to the last segment."""
    samples: np.ndarray | None = None
    """``(time,)``, for features on a device (``Features.extract_section``); ``features`` are ``(time, 0)`` then."""
    masks: np.ndarray | None = None
    """``(mask, 4)``, which it sets to the mean."""
    audio: Callable[[], np.ndarray] | None = None
    """Reads the samples ``(time,)`` that the features are of, where they are at hand."""
    frame_shift: float | None = None
    """Seconds between frames of features."""
    sampling_rate: int = 16000
    frames: Callable[[], np.ndarray] | None = None
    """Computes features where a device is to make them."""

    # The same by the names that a cut of Lhotse has; all its others are those of one that is made when it is asked for.

    @property
    def id(self) -> str:
        return self.name

    @property
    def start(self) -> float:
        return 0.0

    @property
    def supervisions(self) -> list[SupervisionSegment]:
        return make_supervisions(self)

    @property
    def num_frames(self) -> int:
        return len(self.features)

    def load_features(self) -> np.ndarray:
        return self.features if self.frames is None else self.frames()

    def to_lhotse(self) -> MonoCut:
        """The cut of Lhotse that this is, with features and audio in memory."""
        return make_cut(self)

    def __getattr__(self, name: str) -> Any:
        """The attribute of a Lhotse cut with this name."""
        if name.startswith("_"):
            # Asked for while an example is pickled.
            raise AttributeError(name)
        return getattr(make_cut(self), name)

    def without_features(self) -> DiarizationExample:
        """Everything else, which is small."""
        return replace(self, features=self.features[:0].copy(), samples=None, masks=None, frames=None)


def to_examples(cuts: Sequence[Any]) -> list[DiarizationExample]:
    """The examples of the cuts that a label type was given, or that Lhotse made from them."""
    return [cut if hasattr(type(cut), "to_lhotse") else cut.example for cut in cuts]


@dataclass(frozen=True)
class LabelOptions:
    """Options of labels: the output frames, the speakers per window, the names of training speakers."""

    frame_seconds: float
    """Seconds from one output frame to the next."""
    subsampling: int
    """Frames of features for each output frame."""
    encoder_subsampling: int
    """Frames of features for each frame of the encoder."""
    max_speakers: int
    training_speakers: tuple[str, ...]
    has_sets: bool = False
    """Whether a batch says who speaks together, which the clustering loss is of."""


def activity(segments: Sequence[Segment], speakers: Sequence[str], num_frames: int, frame_seconds: float) -> np.ndarray:
    """Return who speaks at the centre of each frame, ``(frames, speakers)`` bool.

    >>> activity([Segment(0.1, 0.25, "a")], ["a"], 4, 0.1)[:, 0].tolist()
    [False, True, False, False]
    """
    speaking = np.zeros((num_frames, len(speakers)), dtype=bool)
    place = {speaker: number for number, speaker in enumerate(speakers)}
    for start, end, speaker in segments:
        if speaker in place:
            first, last = (int(np.ceil(round(time / frame_seconds - 0.5, 6))) for time in (start, end))
            speaking[max(first, 0) : max(last, 0), place[speaker]] = True
    return speaking


def longest_speakers(segments: Sequence[Segment], number: int) -> list[str]:
    """Return the speakers who speak longest, at most ``number``, in the order in which they begin."""
    spoken: dict[str, float] = {}
    for start, end, speaker in sorted(segments):
        spoken[speaker] = spoken.get(speaker, 0.0) + end - start
    kept = sorted(spoken, key=lambda speaker: -spoken[speaker])[:number]
    return [speaker for speaker in spoken if speaker in kept]


class DiarizationCollator:
    """Turns examples into a batch; a subclass defines the label of a frame, which here is whether anybody speaks.

    ``labels`` gives ``(frames,)`` classes, -100 where there is none, or ``(frames, outputs)`` between 0 and 1. With
    ``orders`` it gives ``(frames, speakers)``, and the order of the speakers is the model's to choose.

    Instead, a subclass may define ``__call__(cuts)``: it gives a batch as the one here does, changed, or a
    mapping with ``labels`` alone, for all cuts together: ``(cut, frames)`` or ``(cut, frames, outputs)``, padded, with
    a frame for each output frame or for each frame of features. ``cuts`` is then a ``CutSet`` of Lhotse, each with its
    supervisions, features and audio in memory; stored features (``global_config.storage_path``) have no audio in
    training. ``cut.example`` is what ``labels`` gets.
    """

    orders = False
    has_classes = False
    """Whether a frame has one of several classes, rather than several binary outputs."""

    def __init__(self, options: LabelOptions) -> None:
        self.options = options
        self._numbers = {name: number for number, name in enumerate(options.training_speakers)}

    @property
    def num_outputs(self) -> int:
        """Scores that the model gives for a frame: as many as labels have, which a small example shows."""
        features = np.zeros((8 * self.options.subsampling, 1), dtype=np.float32)
        example = DiarizationExample("example", features, (Segment(0.0, 0.1, "speaker"),), 1.0)
        labels = self.batch([example])["labels"]
        if labels.ndim == 2:
            raise UserError(f"{type(self).__name__}: labels that are classes don't say how many there are: num_outputs")
        return labels.shape[2]

    def labels(self, example: DiarizationExample, num_frames: int) -> np.ndarray:
        """The labels of an example's frames."""
        names = sorted({segment.speaker for segment in example.segments})
        speaking = activity(example.segments, names, num_frames, self.options.frame_seconds)
        return np.asarray(speaking.any(1, keepdims=True), dtype=np.float32)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The speakers of the columns of ``probabilities``; None if these are the window's, in any order."""
        return None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability that each speaker speaks ``(..., speakers)``, of scores ``(..., outputs)``."""
        return logits.float().sigmoid()

    def speaker_scores(self, logits: Tensor) -> Tensor:
        """Return a score of each speaker ``(..., speakers)``, which orders are chosen by, of ``(..., outputs)``."""
        return logits.float()

    def targets(self, labels: Tensor) -> Tensor:
        """Return the targets of the loss, of labels that are in the model's order of speakers."""
        return labels

    def reference(self, example: DiarizationExample) -> tuple[Segment, ...]:
        """The segments that a diarization by these labels is scored against."""
        return example.segments

    def __call__(self, cuts: Sequence[DiarizationExample]) -> Batch:
        """Examples padded on the right to the longest; ``mask`` is True where an output frame is real."""
        examples, options = to_examples(cuts), self.options
        times = np.array([len(example.features) for example in examples])
        frames = -(-times // options.subsampling)
        length = int(frames.max())
        labels = [self.labels(example, number) for example, number in zip(examples, frames.tolist(), strict=True)]
        is_class = labels[0].ndim == 1
        numbers = np.array([self._speaker_numbers(example) for example in examples], dtype=np.int64)
        speaking = [self.speaking(example, number) for example, number in zip(examples, frames.tolist(), strict=True)]
        tensors = {
            **_audio(examples, length * options.subsampling),
            "feature_mask": np.arange(length * options.subsampling) < times[:, None],
            "mask": np.arange(length) < frames[:, None],
            "labels": pad_rows(labels, IGNORED, length, np.int64)
            if is_class
            else pad_rows(labels, 0, length, np.float32),
            "activity": pad_rows(speaking, False, length, np.bool_),
            "speaker_numbers": numbers,
        }
        # Here, and not on a GPU, which would have to be waited for to know how many sets there are.
        if options.has_sets:
            tensors["sets"] = one_hot_sets(torch.from_numpy(tensors["activity"])).bool().numpy()
        counts = {
            "frame": np.array([(row != IGNORED).sum() for row in labels]) if is_class else frames,
            "position": -(-times // options.encoder_subsampling),
            "speaker": (numbers >= 0).sum(1),
            "example": np.ones(len(examples), dtype=np.int64),
        }
        return Batch(
            {name: torch.from_numpy(array) for name, array in tensors.items()},
            {unit: torch.from_numpy(count) for unit, count in counts.items()},
            extra={"examples": examples},
        )

    @classmethod
    def has_own_call(cls) -> bool:
        """Whether a user wrote ``__call__``, which may ask cuts for anything that Lhotse's have."""
        return cls.__call__ is not DiarizationCollator.__call__

    def batch(self, cuts: Sequence[DiarizationExample]) -> Batch:
        """Return the batch of ``__call__``, completed where that is labels alone. Raises UserError for others."""
        made: Any = self(make_cuts(cuts) if self.has_own_call() else cuts)
        if isinstance(made, Batch):
            return made
        about = f"__call__ of the label type {type(self).__name__}"
        if not isinstance(made, Mapping) or "labels" not in made:
            raise UserError(f"{about} gives {type(made).__name__}: expected a batch, or a mapping with labels")
        batch = DiarizationCollator.__call__(self, cuts)
        given, mask = torch.as_tensor(made["labels"]), batch["mask"]
        (rows, length), longest = mask.shape, int(batch["feature_mask"].sum(1).max())
        # Labels of frames of features: an output frame takes those of its centre. Where both are equally many, they are
        # the same.
        if given.ndim in (2, 3) and given.shape[:2] == (rows, longest) and longest != length:
            centres = torch.arange(length) * self.options.subsampling + self.options.subsampling // 2
            given = given[:, centres.clamp(max=longest - 1)]
        if given.ndim not in (2, 3) or given.shape[:2] != mask.shape:
            expected = f"({rows}, {length}) for output frames, or ({rows}, {longest}) for frames of features"
            raise UserError(f"{about} gives labels of shape {tuple(given.shape)}; expected them to begin {expected}")
        if given.ndim == 2:
            batch.tensors["labels"] = given.long().masked_fill(~mask, IGNORED)
            # The loss is divided by the frames that have a class, and the user's labels decide which these are.
            batch.counts["frame"] = (batch["labels"] != IGNORED).sum(1)
        else:
            batch.tensors["labels"] = given.float()
        return batch

    def speaking(self, example: DiarizationExample, num_frames: int) -> np.ndarray:
        """Return when each of the speakers with the most speech speaks, ``(frames, max_speakers)`` bool."""
        names = longest_speakers(example.segments, self.options.max_speakers)
        speaking = activity(example.segments, names, num_frames, self.options.frame_seconds)
        return np.pad(speaking, ((0, 0), (0, self.options.max_speakers - len(names))))

    def _speaker_numbers(self, example: DiarizationExample) -> list[int]:
        """Return the longest speakers' numbers among those of training, ``(max_speakers,)``; -1 for others."""
        names = longest_speakers(example.segments, self.options.max_speakers)
        found = [self._numbers.get(name, -1) for name in names]
        return [*found, *[-1] * (self.options.max_speakers - len(names))]


def _audio(examples: Sequence[DiarizationExample], length: int) -> dict[str, np.ndarray]:
    """Return ``features`` ``(row, length, bins)``, or the samples from which ``FeaturesOnDevice`` computes them."""
    sections = [example.samples for example in examples if example.samples is not None]
    if not sections:
        return {"features": pad_rows([example.features for example in examples], length=length, dtype=np.float32)}
    # One without samples has a frame of zeros.
    numbers = [len(example.features) for example in examples]
    found = {
        "samples": pad_rows(sections, dtype=np.float32),
        "num_frames": np.array([min(number, len(one)) for number, one in zip(numbers, sections, strict=True)]),
    }
    masks = [example.masks for example in examples if example.masks is not None]
    return {**found, "masks": padded_masks(masks)} if masks else found


def make_collator(label_type: Component, options: LabelOptions, folder: Path) -> DiarizationCollator:
    """The collator of ``training.eval_knobs.label_type``; a user's ``./file.py`` is relative to ``folder``.

    Raises UserError if it is not a collator.
    """
    found = resolve_class(label_type.type, LABEL_TYPES, folder)
    if not (isinstance(found, type) and issubclass(found, DiarizationCollator)):
        raise UserError(
            f"training.eval_knobs.label_type: {label_type.type} is not a subclass of "
            "vaak.tasks.diarization.labels:DiarizationCollator"
        )
    try:
        return found(options, **label_type.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"training.eval_knobs.label_type: {label_type.type} can't be created: {error}") from error


class BinaryCollator(DiarizationCollator):
    """Somebody speaks, or nobody does."""

    num_outputs = 1

    @property
    def names(self) -> tuple[str, ...]:
        return (SPEECH,)

    def reference(self, example: DiarizationExample) -> tuple[Segment, ...]:
        return tuple(merged([Segment(start, end, SPEECH) for start, end, _ in example.segments]))


class SpeakerIdCollator(DiarizationCollator):
    """Silence is class 0, then the training speakers; if several speak at once, the one who began first.

    Frames of a speaker that training doesn't have are not counted.
    """

    has_classes = True

    @property
    def num_outputs(self) -> int:
        return 1 + len(self.options.training_speakers)

    def labels(self, example: DiarizationExample, num_frames: int) -> np.ndarray:
        classes = np.zeros(num_frames, dtype=np.int64)
        # The first one is written last, over the others.
        for segment in sorted(example.segments, reverse=True):
            frames = activity([segment], [segment.speaker], num_frames, self.options.frame_seconds)[:, 0]
            number = self._numbers.get(segment.speaker)
            classes[frames] = IGNORED if number is None else 1 + number
        return classes

    @property
    def names(self) -> tuple[str, ...]:
        return self.options.training_speakers

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.float().softmax(-1)[..., 1:]


class MultilabelCollator(DiarizationCollator):
    """Each of the window's speakers speaks or not, with overlap; the model chooses the order of outputs."""

    orders = True

    @property
    def num_outputs(self) -> int:
        return self.options.max_speakers

    def labels(self, example: DiarizationExample, num_frames: int) -> np.ndarray:
        return self.speaking(example, num_frames).astype(np.float32)


class PowersetCollator(MultilabelCollator):
    """Nobody, one of the window's speakers, or two of them: one class of a softmax for each such set."""

    has_classes = True

    @property
    def num_outputs(self) -> int:
        return len(self.sets)

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The speakers of each class."""
        speakers = range(self.options.max_speakers)
        return [found for size in range(SPOKEN_AT_ONCE + 1) for found in combinations(speakers, size)]

    def members(self, like: Tensor) -> Tensor:
        """``(sets, speakers)``, on the device of ``like``: 1 where the speaker is of the set."""
        speakers = range(self.options.max_speakers)
        return send_constant(
            tuple(tuple(float(speaker in found) for speaker in speakers) for found in self.sets), torch.float32, like
        )

    def probabilities(self, logits: Tensor) -> Tensor:
        sets = logits.float().softmax(-1)
        members = self.members(logits)
        # Autocast would take a product to 16 bits.
        return (sets[..., None] * members).sum(-2)

    def speaker_scores(self, logits: Tensor) -> Tensor:
        return self.probabilities(logits).logit(eps=1e-6)

    def targets(self, labels: Tensor) -> Tensor:
        """The class of each frame; if more speak at once than a set may have, that of the first ones."""
        first = labels * (labels.long().cumsum(-1) <= SPOKEN_AT_ONCE)
        members = self.members(labels).to(labels.dtype)
        agreement = first @ members.T + (1 - first) @ (1 - members).T
        return agreement.argmax(-1)


def one_hot_sets(labels: Tensor) -> Tensor:
    """Return who speaks together, one-hot among all sets that occur, ``(row, frames, sets)``."""
    # A GPU has no matrix product of integers, so this is a sum.
    powers = 2 ** torch.arange(labels.shape[-1], device=labels.device)
    codes = ((labels > 0.5) * powers).sum(-1)
    return F.one_hot(torch.unique(codes, return_inverse=True)[1])
