"""Audio with who speaks when, and what: segments and alignments, merged, cropped and shifted as sets of instants.

``LabelledAudio`` is the output of every source, input and output of augmentation and of tasks; ``AudioSource`` is what
gives it. Nothing is changed in place.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

LONGEST_WORD = 60.0
"""Seconds. An interval that began longer ago is a pause, as a gap is; so a window of hours is found by bisection."""


WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "FULLWIDTH", "BOPOMOFO")
"""How Unicode's names of characters begin between which there is no space."""


def join_texts(texts: Iterable[str]) -> str:
    """Return texts one after another, with a space between them unless they are Chinese or Japanese.

    >>> join_texts(["one", "", "two"]), join_texts(["今天。", "天气", "OK"]), join_texts(["ซื้อ", "ไก่"])
    ('one two', '今天。天气 OK', 'ซื้อ ไก่')
    """
    joined = ""
    for text in filter(None, texts):
        around = (unicodedata.name(one, "") for one in (joined[-1:], text[0]) if one)
        joined += text if not joined or all(name.startswith(WITHOUT_SPACES) for name in around) else f" {text}"
    return joined


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments by start, merged so that no speaker overlaps with themselves; those without length are dropped.

    Two that only touch stay separate: an annotated boundary has its collar in scoring.

    >>> merged([Segment(2, 3, "B"), Segment(0, 2, "A"), Segment(1, 4, "A"), Segment(4, 5, "A")])
    [Segment(start=0, end=4, speaker='A'), Segment(start=2, end=3, speaker='B'), Segment(start=4, end=5, speaker='A')]
    """
    by_speaker: dict[str, list[Segment]] = {}
    for segment in sorted(segments):
        if segment.end <= segment.start:
            continue
        done = by_speaker.setdefault(segment.speaker, [])
        if done and segment.start < done[-1].end:
            done[-1] = done[-1]._replace(end=max(done[-1].end, segment.end))
        else:
            done.append(segment)
    return sorted(segment for done in by_speaker.values() for segment in done)


def cropped(segments: Iterable[Segment], start: float, end: float) -> list[Segment]:
    """Return the segments cropped to ``start`` to ``end``; times stay those of the recording.

    >>> cropped([Segment(0, 2, "A"), Segment(5, 9, "B")], 1, 4)
    [Segment(start=1, end=2, speaker='A')]
    """
    inside = (Segment(max(begun, start), min(ended, end), speaker) for begun, ended, speaker in segments)
    return [segment for segment in inside if segment.start < segment.end]


def shifted(segments: Iterable[Segment], seconds: float) -> list[Segment]:
    """Return the segments, each later by ``seconds``.

    >>> shifted([Segment(1, 2, "A")], -1)
    [Segment(start=0, end=1, speaker='A')]
    """
    return [Segment(start + seconds, end + seconds, speaker) for start, end, speaker in segments]


def speech_seconds(segments: Iterable[Segment]) -> float:
    """Seconds of all segments, added up: where two overlap, both count."""
    return sum(segment.end - segment.start for segment in segments)


def cut_window(alignment: Alignment, start: float, end: float) -> dict[str, tuple[Interval, ...]]:
    """Return the window from ``start`` to ``end``, labels clipped there; times count from its start.

    >>> cut_window({"word": (Interval(0, 1, "so"), Interval(1, 3, "it"))}, 0.5, 1.5)["word"]
    (Interval(start=0, end=0.5, text='so'), Interval(start=0.5, end=1.0, text='it'))
    """
    return {
        tier: tuple(
            Interval(max(round(begun - start, 9), 0), round(min(ended, end) - start, 9), text)
            for begun, ended, text in _overlapping(intervals, start, end)
            if ended > start
        )
        for tier, intervals in alignment.items()
    }


def words_within(words: Sequence[Interval], start: float, end: float) -> str:
    """Return the words, by start, whose middle is between ``start`` and ``end``, as a text."""
    around = _overlapping(words, start, end)
    return " ".join(text for begun, ended, text in around if text and start <= (begun + ended) / 2 < end)


def _overlapping(intervals: Sequence[Interval], start: float, end: float) -> Sequence[Interval]:
    """Return the segments, by start, that begin before ``end`` and not long before ``start``."""
    first = bisect_left(intervals, start - LONGEST_WORD, key=lambda one: one.start)
    return intervals[first : bisect_left(intervals, end, key=lambda one: one.start)]


class Segment(NamedTuple):
    """A segment of speech of one speaker, in seconds."""

    start: float
    end: float
    speaker: str


class PlacedSegment(Segment):
    """A segment that is the same as one without a place; ``where`` is its file and line.

    ``problem`` is why its times can't be used, which aren't read then; empty if they can.
    """

    where = ""
    problem = ""


class Interval(NamedTuple):
    """A labelled stretch of time, in seconds; a point in time ends where it starts."""

    start: float
    end: float
    text: str


class PlacedInterval(Interval):
    """An interval that is the same as one without a place; ``where`` and ``problem`` are as a ``PlacedSegment``'s."""

    where = ""
    problem = ""


class Region(NamedTuple):
    """A part of a recording that is scored, in seconds."""

    start: float
    end: float


class PlacedRegion(Region):
    """A region that is the same as one without a place; ``where`` and ``problem`` are as a ``PlacedSegment``'s."""

    where = ""
    problem = ""


PAUSE_LABEL = ""
"""The text of an interval of silence. Where a tier has no interval, there is silence, too."""
Alignment = Mapping[str, tuple[Interval, ...]]
"""When each ``word`` and each ``phone`` is spoken: tiers of intervals by start."""


@dataclass(frozen=True)
class LabelledAudio:
    """Samples ``(time,)`` of one channel, float32 within about ±1, and its labels, from the first sample on."""

    name: str
    samples: np.ndarray
    sampling_rate: int
    segments: tuple[Segment, ...] = ()
    text: str | None = None
    uem: tuple[tuple[float, float], ...] | None = None
    """The annotated regions, in seconds; None: all of it."""
    language: str | None = None
    alignment: Alignment | None = None

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sampling_rate

    @property
    def speaker(self) -> str | None:
        """The only one who speaks; None if nobody does, or several."""
        speakers = {segment.speaker for segment in self.segments}
        return next(iter(speakers)) if len(speakers) == 1 else None


class AudioSource(Protocol):
    """The examples of one split. ``durations`` are upper bounds in seconds, known without reading any audio.

    ``speakers`` are the names of all speakers, sorted; ``fingerprint`` changes with the content.
    """

    durations: np.ndarray
    speakers: tuple[str, ...]
    fingerprint: str

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        """Example ``index``; all randomness comes from ``rng``. Raises DataError, naming the file."""
        ...

    def describe(self, index: int) -> str:
        """Return the origin of example ``index``, for error messages."""
        ...
