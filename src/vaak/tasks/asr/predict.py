"""Transcripts of audio of any length, by a trained model.

audio ──cut at silences──▶ windows ──features──▶ encoder ──search, token by token──▶ transcripts, in order
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vaak.audio.audio_file import AudioFile
from vaak.audio.speech_regions import FRAME, find_speech, frame_levels
from vaak.core.batch import send
from vaak.core.errors import UserError
from vaak.nn.decoding.beam_search import BeamSettings, beam_search
from vaak.nn.decoding.sampling import Hypothesis, SamplingSettings, without_dropout, write
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.features import SAMPLING_RATE, WhisperFeatures
from vaak.tasks.asr.model import AsrModel, Encoded
from vaak.tasks.asr.whisper import PURPOSE, Vocabulary
from vaak.tasks.batches import Batches, Done
from vaak.tasks.pretrained import transformers_of

Channels = Any
"""``mix`` or ``first``."""


class Segment(NamedTuple):
    """The words from ``start`` to ``end``, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """The words of a recording; ``duration`` in seconds."""

    name: str
    segments: tuple[Segment, ...]
    duration: float
    seconds_taken: float = field(compare=False)

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments if segment.text)

    def __str__(self) -> str:
        return self.text

    @property
    def srt(self) -> str:
        """Subtitles."""
        return "".join(
            f"{number}\n{_clock(start)} --> {_clock(end)}\n{text}\n\n"
            for number, (start, end, text) in enumerate((one for one in self.segments if one.text), start=1)
        )


@dataclass(eq=False)
class Recording:
    """A file in work; ``duration`` in seconds, once it is open."""

    path: Path
    duration: float = 0.0


class Window(NamedTuple):
    """Speech from ``start`` to ``end`` seconds, as features ``(bin, frame)``, the first frame at ``begin`` seconds."""

    begin: float
    start: float
    end: float
    features: np.ndarray


@dataclass(frozen=True)
class Transcriber:
    """A model with what it reads and writes, and how transcripts are searched for."""

    model: AsrModel
    vocabulary: Vocabulary
    features: WhisperFeatures
    decoding: AsrDecodingConfig
    channels: Channels = "mix"

    def transcribe(self, path: Path) -> Transcript:
        """Return the words of an audio file; only a few windows of it are in memory at once.

        Raises DataError, naming the file, if it can't be read.
        """
        [found] = self.transcribe_files([path], self.decoding.batch_size)
        if isinstance(found, UserError):
            raise found
        return found

    def transcribe_files(
        self, paths: Iterable[Path], batch_size: int | None = None
    ) -> Iterator[Transcript | UserError]:
        """The words of each audio file, or why it can't be read; windows of several are transcribed together.

        There are ``batch_size`` windows in a batch; with None, as many as memory allows.
        """
        batches = Batches(next(self.model.parameters()).device, batch_size, self.decoding.batch_size)
        segments: list[Segment] = []
        for one in batches.of_sources(map(Recording, paths), self.windows, _seconds_of, self._segments):
            if not isinstance(one, Done):
                segments.append(one[1])
                continue
            file = one.source
            yield one.error or Transcript(file.path.stem, tuple(segments), file.duration, one.seconds)
            segments = []

    def windows(self, recording: Recording) -> Iterator[Window]:
        rate = self.features.sampling_rate
        with AudioFile(recording.path, rate, self.channels) as file:
            recording.duration = file.duration
            for begin, start, end, samples in windows_of(file.read, file.duration, self.features.seconds, rate):
                yield Window(begin, start, end, self.features(samples))

    def _segments(self, windows: list[Window]) -> list[Segment]:
        texts = self.texts_of_windows([window.features for window in windows])
        return [Segment(one.start, one.end, text) for one, text in zip(windows, texts, strict=True)]

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        """The words of each window's features ``(bin, frame)``, all computed at once."""
        rows = torch.from_numpy(np.stack(features))
        with without_dropout(self.model), torch.inference_mode():
            written = self.written(self.model.encode(rows.to(next(self.model.parameters()).device)))
        return [self.vocabulary.decode(list(best.tokens)) for best in written]

    def texts(self, features: Sequence[np.ndarray]) -> list[str]:
        """The transcript of each of ``features`` ``(bin, frame)``, some of them computed at once."""
        size = self.decoding.batch_size
        return [
            text for at in range(0, len(features), size) for text in self.texts_of_windows(features[at : at + size])
        ]

    def texts_of(self, encoded: Any) -> list[str]:
        """The transcript of each row of encoded audio."""
        with torch.inference_mode():
            size = self.decoding.batch_size
            parts = [encoded.rows(slice(start, start + size)) for start in range(0, len(encoded.states), size)]
            found = [best for some in parts for best in self.written(some)]
        return [self.vocabulary.decode(list(best.tokens)) for best in found]

    def written(self, encoded: Encoded) -> list[Hypothesis]:
        """The most probable tokens that were found for each row of encoded audio."""
        ids, options = self.vocabulary.ids, self.decoding
        room = self.model.max_target_length - len(ids.prompt) + 1
        longest = min(room, options.max_new_tokens or room)
        with without_dropout(self.model), torch.inference_mode():
            writer = TranscriptWriter(self.model, encoded, self.vocabulary)
            begin = torch.full((len(encoded.states),), ids.prompt[-1], device=encoded.states.device)
            if options.method == "beam":
                settings = BeamSettings(
                    ids.end, longest, options.beam_size, options.length_penalty, early_stopping=options.early_stopping
                )
                return [best[0] for best in beam_search(writer, begin, settings)]
            return write(writer, begin, SamplingSettings(longest, temperature=0, stop_ids=(ids.end,)))


def _seconds_of(window: Window) -> float:
    return window.end - window.start


class TranscriptWriter:
    """A model that is writing the transcripts of encoded audio (``vaak.nn.decoding.sampling.Writer``)."""

    def __init__(self, model: AsrModel, encoded: Encoded, vocabulary: Vocabulary) -> None:
        self.model, self.encoded, device = model, encoded, encoded.states.device
        self.rows = torch.arange(len(encoded.states))
        """The row that each hypothesis belongs to."""
        dynamic = transformers_of(PURPOSE, "asr")
        self.cache = dynamic.EncoderDecoderCache(dynamic.DynamicCache(), dynamic.DynamicCache())
        self.never = send(torch.tensor(vocabulary.ids.never, dtype=torch.long), device)
        self.never_first = send(torch.tensor(vocabulary.ids.never_first, dtype=torch.long), device)
        self.is_first = True
        if len(vocabulary.ids.prompt) > 1:
            prompt = send(torch.tensor([vocabulary.ids.prompt[:-1]]), device)
            model.decode(prompt.expand(len(encoded.states), -1), encoded, self.cache)

    def next_logits(self, tokens: Tensor) -> Tensor:
        logits = self.model.decode(tokens[:, None], self.encoded, self.cache)[:, -1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).index_fill(1, self.never, -torch.inf)
        if self.is_first:
            logits = logits.index_fill(1, self.never_first, -torch.inf)
        self.is_first = False
        return logits

    def select(self, rows: Tensor) -> None:
        own, rows = self.rows[rows], send(rows, self.encoded.states.device)
        if not torch.equal(own, self.rows):  # in a beam, hypotheses are exchanged within their row
            self.encoded = self.encoded.rows(rows)
            self.cache.cross_attention_cache.batch_select_indices(rows)
        self.rows = own
        self.cache.self_attention_cache.batch_select_indices(rows)


def windows_of(
    read: Callable[[float, float], np.ndarray], duration: float, longest: float, sampling_rate: int = SAMPLING_RATE
) -> Iterator[tuple[float, float, float, np.ndarray]]:
    """The windows of a recording, cut where it is quietest; silent ones are left out.

    Each is its beginning, where speech in it starts and ends, in seconds, and its samples.

    ``read(start, end)`` gives samples. A window is at most ``longest`` seconds, and at least half as long
    unless it is the last.
    """
    start = 0.0
    while start < duration:
        samples = read(start, min(start + longest, duration))
        end = start + len(samples) / sampling_rate
        if end < duration - 1e-3:
            kept = len(samples) // 2 + quietest(samples[len(samples) // 2 :], sampling_rate)
            samples, end = samples[:kept], start + kept / sampling_rate
        if not len(samples):
            return
        speech = find_speech(samples, sampling_rate)
        if speech:
            yield start, start + speech[0][0], start + speech[-1][1], samples
        start = end


def quietest(samples: np.ndarray, sampling_rate: int = SAMPLING_RATE) -> int:
    """A place of samples ``(time,)`` in the middle of their longest quiet stretch, or at their quietest moment."""
    levels = frame_levels(samples, sampling_rate)
    if not len(levels):
        return len(samples)
    step = round(FRAME * sampling_rate)
    low, high = np.percentile(levels, (0, 95))
    edges = np.flatnonzero(np.diff((levels <= low + (high - low) / 5).astype(np.int8), prepend=0, append=0))
    stretches = edges.reshape(-1, 2)
    first, last = stretches[np.argmax(stretches[:, 1] - stretches[:, 0])]
    return int(first + last) * step // 2


def _clock(seconds: float) -> str:
    """A time as subtitles have it.

    >>> _clock(3725.5)
    '01:02:05,500'
    """
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02},{rest % 1000:03}"
