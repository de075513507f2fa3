"""Audio longer than a Whisper's window, sought through: it writes the times of segments (times.py).

Its next window begins where the last complete segment ends, and its text so far is the prompt. Source: Radford et al.
2022, "Robust Speech Recognition via Large-Scale Weak Supervision", section 4.5; what is written is what transformers
writes for one recording at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from vaak.audio.audio_file import AudioFile, Channels
from vaak.core.errors import UserError
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.long_form import Recording
from vaak.tasks.asr.transcripts import Segment, Transcript
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.asr.whisper.features import SAMPLING_RATE, WhisperFeatures
from vaak.tasks.asr.whisper.model import Encoded
from vaak.tasks.asr.whisper.network import FRAMES_PER_SECOND
from vaak.tasks.asr.whisper.times import SECONDS_OF_A_TIME, Piece, split_segments
from vaak.tasks.batches import Batches

CONDITIONS_BELOW = 0.5
"""Temperature; a text that was written at this one or above isn't the prompt of the next window."""


@dataclass(eq=False)
class Listener:
    """A recording in work: its ``features`` ``(bin, frame)``, and the frame at which its next window begins."""

    recording: Recording
    features: np.ndarray
    seek: int = 0
    language: str | None = None
    said: list[list[int]] = field(default_factory=list)
    """The tokens of each segment."""
    conditions: bool = False
    """Whether they are the prompt of the next window."""
    segments: list[Segment] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def frames_left(self) -> int:
        return int(self.features.shape[1]) - self.seek

    def windows_left(self) -> Iterator[Listener]:
        """Yield this listener once for each window, which whoever asks listens to before asking again."""
        while self.frames_left > 0:
            yield self

    def take_segments(self) -> list[Segment]:
        """Return the segments since the last call, which are no longer kept here."""
        found, self.segments = self.segments, []
        return found


def count_frames(num_samples: int) -> int:
    """Return the frames of Whisper's features that a number of samples begin."""
    return -(-num_samples * FRAMES_PER_SECOND // SAMPLING_RATE)


class Decoded(NamedTuple):
    """The tokens that were written of a window after a ``prompt``, and the ``temperature`` at which they were."""

    tokens: tuple[int, ...]
    ended: bool
    """False where they were cut off at the greatest length."""
    prompt: tuple[int, ...]
    temperature: float
    language: str | None
    is_silence: bool


class SeekingTranscriber(Protocol):
    """A Whisper's transcriber as seeking uses it: searches for one window's tokens after another's."""

    @property
    def decoding(self) -> AsrDecodingConfig: ...

    @property
    def features(self) -> WhisperFeatures: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def channels(self) -> Channels: ...

    @property
    def first_prompt(self) -> list[int]: ...

    def encoded(self, features: Sequence[np.ndarray]) -> Encoded: ...

    def languages(self, encoded: Encoded) -> list[str | None]: ...

    def decode(
        self,
        encoded: Encoded,
        keys: Sequence[int] | None = None,
        languages: Sequence[str | None] | None = None,
        before: Sequence[Sequence[int]] | None = None,
    ) -> list[Decoded]: ...

    def segments_of_pieces(
        self, decoded: Decoded, pieces: list[Piece], begin: float, encoded: Encoded, row: int, frames: int
    ) -> list[Segment]: ...


def transcripts_by_seeking(
    transcriber: SeekingTranscriber, paths: Iterator[Path], batch_size: int | None
) -> Iterator[Transcript | UserError]:
    """Yield the words of each audio file, by Whisper's own procedure; all of a batch's files are in memory."""
    size = batch_size or transcriber.decoding.batch_size
    batches = Batches(transcriber.device, size)
    while some := list(islice(paths, size)):
        opened = [open_listener(transcriber, path) for path in some]
        active = [one for one in opened if isinstance(one, Listener)]
        # Where a window begins depends on what was written in the one before, so the windows of a recording come one
        # after another; those of several recordings are computed together.
        while active := [one for one in active if one.frames_left > 0]:
            begun = time.perf_counter()
            for _ in batches.results(active, lambda _: 1.0, partial(listen_on, transcriber)):
                pass
            for one in active:
                one.seconds += (time.perf_counter() - begun) / len(active)
        for done in opened:
            if isinstance(done, UserError):
                yield done
            else:
                file = done.recording
                yield Transcript(file.path.stem, tuple(done.segments), file.duration, done.seconds)


def open_listener(transcriber: SeekingTranscriber, path: Path) -> Listener | UserError:
    begun, recording = time.perf_counter(), Recording(path)
    try:
        with AudioFile(path, transcriber.features.sampling_rate, transcriber.channels) as file:
            recording.duration = file.duration
            features = transcriber.features.of_all(file.read(0.0, file.duration))
    except UserError as error:
        return error
    conditions = transcriber.decoding.condition_on_previous
    return Listener(recording, features, conditions=conditions, seconds=time.perf_counter() - begun)


def listen_on(transcriber: SeekingTranscriber, listeners: list[Listener]) -> list[None]:
    """Transcribe the next window of each recording."""
    most = transcriber.features.num_frames
    windows = [one.features[:, one.seek : one.seek + most] for one in listeners]
    encoded = transcriber.encoded([np.pad(one, ((0, 0), (0, most - one.shape[1]))) for one in windows])
    if any(one.language is None for one in listeners):
        for one, language in zip(listeners, transcriber.languages(encoded), strict=True):
            # As in Whisper's own procedure, the language of a recording is that of its first window.
            one.language = one.language or language
    before = [_said_before(transcriber, one) for one in listeners]
    found = transcriber.decode(encoded, [one.seek for one in listeners], [one.language for one in listeners], before)
    for row, (one, window, decoded) in enumerate(zip(listeners, windows, found, strict=True)):
        frames = window.shape[1]
        if not decoded.is_silence:
            pieces, end = split_segments(decoded.tokens, transcriber.vocabulary.times, frames // 2 * SECONDS_OF_A_TIME)
            begin = one.seek / FRAMES_PER_SECOND
            one.segments += transcriber.segments_of_pieces(decoded, pieces, begin, encoded, row, one.frames_left)
            one.said += [list(decoded.tokens[piece.first : piece.last]) for piece in pieces]
            # What follows the last complete segment is written again: the next window begins where that segment ends.
            frames = frames if end is None else round(end * FRAMES_PER_SECOND)
        one.seek += frames
        # A text that needed a high temperature is likely wrong, and would lead the next ones astray.
        one.conditions = transcriber.decoding.condition_on_previous and decoded.temperature < CONDITIONS_BELOW
    return [None] * len(listeners)


def _said_before(transcriber: SeekingTranscriber, listener: Listener) -> list[int]:
    """Return the tokens that the next window of a recording has as its prompt."""
    found = list(transcriber.first_prompt)
    for tokens in listener.said if listener.conditions else []:
        # Two times at the end: the last one begins another segment, and isn't part of this one's text.
        is_followed = len(tokens) > 2 and tokens[-2] in transcriber.vocabulary.times
        found += tokens[:-1] if is_followed else tokens
    return found
