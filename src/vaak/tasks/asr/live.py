"""Speech transcribed while it is spoken: text that is settled so far, and each utterance's text once it has ended.

samples ──voice activity──▶ utterance so far ──every interval──▶ text ──what two in a row agree on──▶ partial
                            └──after a pause──▶ text of all of it ──────────────────────────────────▶ final

Partial texts only grow: words are settled once the texts of two windows in a row, the second longer, agree on them, and
a Whisper continues after them. Source: Macháček et al. 2023, "Turning Whisper into Real-Time Transcription System"
(LocalAgreement-2, of Liu et al. 2020). Differs: an utterance ends at a pause, not where a sentence does, and its final
text is written again from all of its audio, as that of a recording's window is. So it depends on the samples alone,
not on how fast the machine is; partial texts that would come late are left out.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, NamedTuple

import numpy as np

from vaak.audio.segments import join_texts
from vaak.audio.silero import make_voice_activity
from vaak.audio.speech_regions import FRAME, MARGIN_AFTER, SHORTEST_SPEECH, frame_samples
from vaak.tasks.asr.long_form import Window, quietest
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.transcripts import Segment

MARGIN_BEFORE = 0.3
"""Seconds before the first loud frame that belong to an utterance: soft beginnings, and what makes a frame loud."""
KEPT_AFTER = 0.2
"""Seconds after the last loud frame that belong to an utterance."""


@dataclass(frozen=True)
class LiveOptions:
    """When live audio is transcribed, in seconds."""

    interval: float = 1.0
    """Audio between two partial texts."""
    pause: float = 0.5
    """Without speech, after which an utterance has ended."""


class Event(NamedTuple):
    """The transcript from ``start`` to ``end`` seconds, when ``heard`` seconds of audio were known."""

    type: Literal["partial", "final"]
    start: float
    end: float
    text: str
    heard: float
    segments: tuple[Segment, ...] = ()
    """Segments of a final text."""


def make_live(transcriber: Transcriber, options: LiveOptions) -> LiveTranscriber:
    """Return the transcriber of live audio, in chunks where the model reads it so (``data.decoding.chunk``)."""
    kind = LiveTranscriber if transcriber.stream() is None else ChunkedTranscriber
    return kind(transcriber, options)


class LiveTranscriber:
    """Transcribes audio of one source while it comes; ``feed`` it samples at the rate of the model, then ``finish``."""

    def __init__(self, transcriber: Transcriber, options: LiveOptions) -> None:
        self.transcriber, self.options = transcriber, options
        # One pass, of words alone: a partial text is soon another.
        quick = {"timestamps": "none", "temperature_step": None}
        self._quick = replace(transcriber, decoding=transcriber.decoding.model_copy(update=quick))
        self.rate = transcriber.features.sampling_rate
        self._frame = frame_samples(self.rate)
        self._longest = int(transcriber.features.seconds * self.rate) // self._frame
        self._before = min(round(MARGIN_BEFORE / FRAME), self._longest // 2)
        self._voice = make_voice_activity(options.pause, self.rate)
        self._rest = np.zeros(0, np.float32)
        self._frames = list[np.ndarray]()
        """Audio that may be needed: that of the utterance, or before the next."""
        self._is_open = False
        self._start = 0
        """The frame at which speech begins in the utterance."""
        self._tried = 0
        """Frames of the utterance of which a text was last written."""
        self._last = self._settled = self._shown = ""

    @property
    def heard(self) -> float:
        """Seconds of audio so far."""
        return self._voice.num_frames * self._frame / self.rate

    @property
    def finds_speech_by(self) -> str:
        """The name of the detector that tells speech from pauses."""
        return self._voice.name

    def feed(self, samples: np.ndarray, *, is_behind: bool = False) -> Iterator[Event]:
        """Yield the texts after further ``samples`` ``(time,)``; ``is_behind`` where more wait already."""
        known = np.concatenate((self._rest, samples)) if len(self._rest) else samples
        whole = len(known) // self._frame * self._frame
        self._rest = known[whole:]
        for frame in known[:whole].reshape(-1, self._frame):
            yield from self._hear(frame)
        if (
            self._is_open
            and not is_behind
            and (len(self._frames) - self._tried) * FRAME >= self.options.interval - 1e-6
        ):
            yield from self._try()

    def finish(self) -> Iterator[Event]:
        """Yield the last texts, where audio ends within an utterance."""
        if self._is_open:
            yield from self._end(self._frames)
            self._is_open = False

    def _hear(self, frame: np.ndarray) -> Iterator[Event]:
        self._frames.append(frame)
        is_speech = self._voice.hear(frame)
        if not self._is_open:
            del self._frames[: -self._before]
            if is_speech:
                self._open(self._voice.num_frames - round(SHORTEST_SPEECH / FRAME))
        elif not is_speech:
            kept = len(self._frames) - (self._voice.num_frames - self._voice.last_loud) + round(KEPT_AFTER / FRAME)
            yield from self._end(self._frames[: max(1, kept)])
            self._is_open, self._frames = False, self._frames[-self._before :]
        elif len(self._frames) >= self._longest:
            # As a long recording is cut: at the quietest place of the second half.
            half = len(self._frames) // 2
            kept = half + quietest(np.concatenate(self._frames[half:]), self.rate) // self._frame
            rest = self._frames[kept:]
            yield from self._end(self._frames[:kept])
            self._frames = rest
            self._open(self._voice.num_frames - len(rest))

    def _open(self, start: int) -> None:
        self._is_open, self._start, self._tried = True, start, 0
        self._last = self._settled = self._shown = ""

    def _try(self) -> Iterator[Event]:
        """Yield the settled text of the utterance so far, if it has grown."""
        self._tried = len(self._frames)
        features = self.transcriber.features(np.concatenate(self._frames))
        now = self._quick.continue_text(features, self._settled)
        agreed = find_agreed(self._last, now)
        self._last = now
        if len(agreed) > len(self._settled) and agreed.startswith(self._settled):
            self._settled = self._shown = agreed
            yield Event("partial", *self._times(self._frames), agreed, round(self.heard, 3))

    def _end(self, frames: list[np.ndarray]) -> Iterator[Event]:
        """Yield the text of an utterance; none if nothing was heard in it, unless something had been shown."""
        if self._voice.last_loud <= self._start:
            # The rest of a long utterance that was cut.
            return
        samples, (start, end) = np.concatenate(frames), self._times(frames)
        begin = self.heard - len(self._frames) * self._frame / self.rate
        window = Window(begin, start, end, self.transcriber.features(samples), len(samples))
        [segments] = self.transcriber.segments_of_windows([window])
        said = tuple(one for one in segments if one.text)
        if said or self._shown:
            text = join_texts(one.text for one in said)
            yield Event("final", start, end, text, round(self.heard, 3), said)

    def _times(self, frames: list[np.ndarray]) -> tuple[float, float]:
        """When the first and the last speech is in ``frames``, the beginning of the utterance."""
        end = self._voice.num_frames - len(self._frames) + len(frames)
        last = min(self._voice.last_loud + round(MARGIN_AFTER / FRAME), end)
        seconds = self._frame / self.rate
        return round(self._start * seconds, 3), round(last * seconds, 3)


FRAME_READ = np.zeros(0, np.float32)
"""Stands for a frame of audio that was read and isn't needed again."""


class ChunkedTranscriber(LiveTranscriber):
    """Transcribes by a model that reads each utterance in chunks, however long it is; no part is read twice."""

    def __init__(self, transcriber: Transcriber, options: LiveOptions) -> None:
        # The model's chunks are the interval: new audio is read at once.
        super().__init__(transcriber, replace(options, interval=FRAME))
        self._longest = sys.maxsize
        self._num_read = self._num_freed = 0

    def feed(self, samples: np.ndarray, *, is_behind: bool = False) -> Iterator[Event]:
        """Yield the texts after further ``samples`` ``(time,)``; leaving some out would save nothing."""
        yield from super().feed(samples)

    def _open(self, start: int) -> None:
        super()._open(start)
        stream = self.transcriber.stream()
        assert stream is not None
        self._stream, self._num_read, self._num_freed = stream, 0, 0

    def _try(self) -> Iterator[Event]:
        text = self._read(is_last=False)
        if len(text) > len(self._shown) and text.startswith(self._shown):
            self._shown = text
            yield Event("partial", *self._times(self._frames), text, round(self.heard, 3))

    def _end(self, frames: list[np.ndarray]) -> Iterator[Event]:
        if self._voice.last_loud <= self._start:
            return
        begin = self.heard - len(self._frames) * self._frame / self.rate
        text, (start, end) = self._read(is_last=True), self._times(frames)
        if text or self._shown:
            found = self._stream.segment(Window(begin, start, end, FRAME_READ, 0))
            yield Event("final", start, end, text, round(self.heard, 3), (found,) if text else ())

    def _read(self, *, is_last: bool) -> str:
        """Return the text after all that was heard of the utterance."""
        new = self._frames[self._num_read :]
        text = self._stream.read(np.concatenate([FRAME_READ, *new]), is_last=is_last)
        self._tried = self._num_read = len(self._frames)
        # The last frames may be those before the next utterance.
        for place in range(self._num_freed, self._num_read - self._before):
            self._frames[place] = FRAME_READ
        self._num_freed = max(self._num_freed, self._num_read - self._before)
        return text


UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Letters of scripts that don't separate words: Thai, Lao, Burmese, Khmer, kana, Han."""


def find_agreed(first: str, second: str) -> str:
    """Return the beginning that two texts share, up to the end of a word; without the marks after it.

    >>> find_agreed("I like it, but", "I like it. Bu"), find_agreed("a do", "a don't"), find_agreed("今日は", "今日も")
    ('I like it', 'a', '今日')
    """
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    place = sum(1 for _ in alike)
    while place and not (_ends_word(first, place) and _ends_word(second, place)):
        place -= 1
    return second[:place].rstrip()


def _ends_word(text: str, place: int) -> bool:
    """Return whether a word, or a mark after one, ends before a place of a text."""
    before, after = text[place - 1], text[place : place + 1]
    if UNSPACED.match(before) and UNSPACED.match(after) and not unicodedata.category(after).startswith("M"):
        return True
    while place < len(text) and unicodedata.category(text[place]).startswith("P"):
        place += 1
    return place == len(text) or text[place].isspace()
