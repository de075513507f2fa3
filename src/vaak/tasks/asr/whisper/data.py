"""A Whisper's examples: its features, and the transcript.

features   log-mel of the audio, padded to the whole of what the encoder reads
inputs     prompt … t1 t2 … tn
targets    -100 …   t1 t2 … tn end      (the prompt is given, not learned)

The text of a recording without speech is its end alone. Differs: OpenAI's Whisper learned to write <|nospeech|> there
in place of the language; that is part of the prompt here, and learned from silence alone, it would always be written.

With data.timestamps, some examples have the times of their segments among their tokens: <|0.00|> so it is<|1.20|>.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from vaak.audio.segments import Alignment, Interval
from vaak.core.batch import Batch
from vaak.core.task import Padding
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.asr.data import AsrDataset, AsrExample, stack_samples
from vaak.tasks.asr.utterances import SEGMENT
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.asr.whisper.network import FRAMES_PER_SECOND, count_positions
from vaak.tasks.asr.whisper.times import SECONDS_OF_A_TIME

PAUSE = 0.5
"""Seconds without a word after which another segment begins."""


class Timing(NamedTuple):
    """The ``share`` of examples that have the times of segments in them, where they then have ``most_tokens``."""

    share: float
    most_tokens: int


class WhisperDataset(AsrDataset):
    """A split's utterances; the length of each is the seconds that the encoder reads, all that a Whisper reads."""

    timing: Timing | None = None
    max_target_positions: int | None = None
    """The maximum number of tokens that the decoder reads."""

    def add_times(
        self, ids: np.ndarray, text: str, alignment: Alignment, seconds: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, bool]:
        if self.timing is None or rng.random() >= self.timing.share:
            return ids, False
        # Without speech, the text ends after the time that it begins with, which the rules for times allow.
        segments = split_segments(text, alignment, seconds) if text else []
        timed = timed_ids(self.vocabulary, segments) or [self.vocabulary.times[0]]
        # Its times may make a text longer than the decoder's table of positions; it is then trained without them.
        fits = len(timed) <= self.timing.most_tokens
        return (np.array(timed, np.int64) if fits else ids), fits

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """Return a batch; each row is one utterance."""
        examples = [row[0] for row in rows]
        return collate(examples, self.vocabulary, round(self.features.seconds * FRAMES_PER_SECOND))

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """How a batch's transcripts are made longer, which Whisper's decoder reads; all audio is equally long."""
        fills = {"inputs": self.vocabulary.ids.pad, "targets": IGNORED}
        return {name: Padding(fill, longest=self.max_target_positions) for name, fill in fills.items()}


def split_segments(text: str, alignment: Alignment, seconds: float) -> list[Interval]:
    """Return the segments of an utterance of ``seconds``: the utterances of which it was made, or its phrases.

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
    if len(texts) != len(words):
        # Then it isn't known which word is which.
        return [Interval(words[0].start, words[-1].end, text)]
    return [
        Interval(words[first].start, words[last - 1].end, " ".join(texts[first:last]))
        for first, last in zip(begins, [*begins[1:], len(words)], strict=True)
    ]


def timed_ids(vocabulary: Vocabulary, segments: Sequence[Interval]) -> list[int]:
    """Return the tokens of segments, each between those of its times, which never go back."""
    times, ids, last = vocabulary.times, list[int](), 0
    for start, end, text in segments:
        first = min(max(last, round(start / SECONDS_OF_A_TIME)), len(times) - 2)
        last = min(max(first + 1, round(end / SECONDS_OF_A_TIME)), len(times) - 1)
        ids += [times[first], *vocabulary.encode(text), times[last]]
    return ids


def collate(examples: Sequence[AsrExample], vocabulary: Vocabulary, num_frames: int) -> Batch:
    """Return a batch of utterances, transcripts padded on the right.

    Its tensors: ``inputs`` and ``targets`` ``(row, token)``; ``features`` ``(row, bin, frame)``, or what examples have
    in their place: ``samples`` ``(row, time)``, padded with zeros, and ``masks`` ``(row, mask, 4)``.
    """
    whole, end, pad = list(vocabulary.ids.prompt), vocabulary.ids.end, vocabulary.ids.pad
    longest = max(len(one.ids) for one in examples) + len(whole)
    inputs = torch.full((len(examples), longest), pad)
    targets = torch.full((len(examples), longest), IGNORED)
    for row, one in enumerate(examples):
        # A text with times has no <|notimestamps|>.
        prompt = whole[:-1] if one.has_times else whole
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
