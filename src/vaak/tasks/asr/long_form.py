"""Audio that is longer than a model's window: cut where it is quietest, or sought through.

cut   any model; recording ──quietest stretch of each window's second half──▶ windows, all independent of each other
seek  a Whisper, which writes the times of segments (whisper/times.py): its next window begins where the last
      complete segment ends, and its text so far is the prompt. Source: Radford et al. 2022, "Robust Speech
      Recognition via Large-Scale Weak Supervision", section 4.5; what is written is what transformers writes for one
      recording at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from vaak.audio.audio_file import AudioFile, Channels
from vaak.audio.speech_regions import FRAME, find_speech, frame_levels
from vaak.core.errors import UserError
from vaak.tasks.asr.config import AsrDecodingConfig
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
    frames: int = 0
    """The number of frames of audio, without padding."""


def speech_seconds(window: Window) -> float:
    """Seconds from the start of its speech to the end."""
    return window.end - window.start


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


def cut_windows(
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
        # A duration is in floating-point seconds, and end comes from a number of samples: a difference by rounding
        # isn't more audio.
        if end < duration - 1e-3:
            # Only the second half is searched for a place to cut, so a window is never shorter than half the longest.
            kept = len(samples) // 2 + quietest(samples[len(samples) // 2 :], sampling_rate)
            samples, end = samples[:kept], start + kept / sampling_rate
        # A file may be shorter than its header says: without this, its end would be read forever.
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


def frames_in(samples: np.ndarray) -> int:
    """The frames of Whisper's features that samples ``(time,)`` begin."""
    return -(-len(samples) * FRAMES_PER_SECOND // SAMPLING_RATE)


class Heard(NamedTuple):
    """The tokens that were written of a window after a ``prompt``, and the ``temperature`` at which they were."""

    tokens: tuple[int, ...]
    ended: bool
    """False where they were cut off at the greatest length."""
    prompt: tuple[int, ...]
    temperature: float
    language: str | None
    is_silence: bool


class SeekingTranscriber(Protocol):
    """What seeking asks of a Whisper's transcriber: the search for one window's tokens after another's."""

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

    def heard(
        self,
        encoded: Encoded,
        keys: Sequence[int] | None = None,
        languages: Sequence[str | None] | None = None,
        before: Sequence[Sequence[int]] | None = None,
    ) -> list[Heard]: ...

    def segments_of_pieces(
        self, heard: Heard, pieces: list[Piece], begin: float, encoded: Encoded, row: int, frames: int
    ) -> list[Segment]: ...


def transcripts_by_seeking(
    transcriber: SeekingTranscriber, paths: Iterator[Path], batch_size: int | None
) -> Iterator[Transcript | UserError]:
    """The words of each audio file, by Whisper's own procedure; all of a batch's files are in memory."""
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
    found = transcriber.heard(encoded, [one.seek for one in listeners], [one.language for one in listeners], before)
    for row, (one, window, heard) in enumerate(zip(listeners, windows, found, strict=True)):
        frames = window.shape[1]
        if not heard.is_silence:
            pieces, end = split_segments(heard.tokens, transcriber.vocabulary.times, frames // 2 * SECONDS_OF_A_TIME)
            begin = one.seek / FRAMES_PER_SECOND
            one.segments += transcriber.segments_of_pieces(heard, pieces, begin, encoded, row, one.frames_left)
            one.said += [list(heard.tokens[piece.first : piece.last]) for piece in pieces]
            # What follows the last complete segment is written again: the next window begins where that segment ends.
            frames = frames if end is None else round(end * FRAMES_PER_SECOND)
        one.seek += frames
        # A text that needed a high temperature is likely wrong, and would lead the next ones astray.
        one.conditions = transcriber.decoding.condition_on_previous and heard.temperature < CONDITIONS_BELOW
    return [None] * len(listeners)


def _said_before(transcriber: SeekingTranscriber, listener: Listener) -> list[int]:
    """The tokens that the next window of a recording has as its prompt."""
    found = list(transcriber.first_prompt)
    for tokens in listener.said if listener.conditions else []:
        # Two times at the end: the last one begins another segment, and isn't part of this one's text.
        is_followed = len(tokens) > 2 and tokens[-2] in transcriber.vocabulary.times
        found += tokens[:-1] if is_followed else tokens
    return found
