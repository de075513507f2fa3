"""Transcripts of recordings, and the formats that they are written in.

SRT and WebVTT are subtitles; RTTM and STM (vaak.scoring.speaker_errors) also say who speaks.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.segments import Interval, join_texts
from vaak.scoring.speaker_errors import Turn, rttm_words, stm_text


class Segment(NamedTuple):
    """The words from ``start`` to ``end``, in seconds; with the times of each, and the language, if they are known.

    ``probabilities`` are those of ``words``, as the model has them; ``token_logprobs`` has what each token adds to the
    text, in UTF-8, and its log-probability, where they are asked for.
    """

    start: float
    end: float
    text: str
    words: tuple[Interval, ...] = ()
    language: str | None = None
    probabilities: tuple[float, ...] = ()
    token_logprobs: tuple[tuple[bytes, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        words: list[dict[str, Any]] = [word._asdict() for word in self.words]
        for word, probability in zip(words, self.probabilities, strict=False):
            word["probability"] = probability
        return (
            {"start": self.start, "end": self.end, "text": self.text}
            | ({"words": words} if words else {})
            | ({"language": self.language} if self.language else {})
        )


LOW = 0.5
"""Words that are less probable are of the class low in WebVTT."""


@dataclass(frozen=True)
class Transcript:
    """The words of a recording; ``duration`` in seconds."""

    name: str
    segments: tuple[Segment, ...]
    duration: float
    seconds_taken: float = field(compare=False)

    @property
    def text(self) -> str:
        return join_texts(segment.text for segment in self.segments)

    def __str__(self) -> str:
        return self.text

    @property
    def srt(self) -> str:
        """Subtitles."""
        return srt_text(self.segments)

    @property
    def vtt(self) -> str:
        """Subtitles for browsers (WebVTT)."""
        return vtt_text(self.segments)


@dataclass(frozen=True)
class SpeakerTranscript:
    """The words of each speaker of a recording; ``duration`` in seconds."""

    name: str
    turns: tuple[Turn, ...]
    duration: float
    seconds_taken: float = field(compare=False)

    @property
    def text(self) -> str:
        """A line for each turn."""
        return "\n".join(f"{turn.speaker}: {turn.text}" for turn in self.turns)

    @property
    def srt(self) -> str:
        """Subtitles that name the speaker."""
        return srt_text(self._subtitles)

    @property
    def vtt(self) -> str:
        """Subtitles for browsers that name the speaker."""
        return vtt_text(self._subtitles)

    @property
    def _subtitles(self) -> list[Segment]:
        return [Segment(one.start, one.end, f"{one.speaker}: {one.text}") for one in self.turns]

    def rttm(self, path: Path) -> str:
        """Return the turns and their words; ``path`` is where it will be."""
        return rttm_words(self.name, self.turns, path)

    def stm(self, path: Path) -> str:
        """Return the turns with their text; ``path`` is where it will be."""
        return stm_text(self.name, self.turns, path)


def srt_text(segments: Iterable[Segment]) -> str:
    """Return subtitles, numbered; a segment without words has none.

    >>> srt_text([Segment(0.0, 1.5, "one"), Segment(1.5, 2.0, ""), Segment(2.0, 3725.5, "two")]).split("\\n\\n")[1]
    '2\\n00:00:02,000 --> 01:02:05,500\\ntwo'
    """
    return "".join(
        f"{number}\n{_clock(one.start)} --> {_clock(one.end)}\n{one.text}\n\n"
        for number, one in enumerate((one for one in segments if one.text), start=1)
    )


def vtt_text(segments: Iterable[Segment]) -> str:
    """Return subtitles as browsers show them (WebVTT), in which ``<`` begins a tag.

    Words with a probability below LOW are of the class ``low``, which a style colours.
    """
    cues = [
        f"{_clock(one.start, '.')} --> {_clock(one.end, '.')}\n{_marked_text(one)}\n\n" for one in segments if one.text
    ]
    style = "STYLE\n::cue(.low) { color: orange; }\n\n" if any("<c.low>" in cue for cue in cues) else ""
    return f"WEBVTT\n\n{style}{''.join(cues)}"


def _marked_text(segment: Segment) -> str:
    """Return the text of a segment, in which improbable words are marked.

    >>> _marked_text(Segment(0, 1, "a < b", (Interval(0, 1, "a"), Interval(0, 1, "b")), None, (0.9, 0.2)))
    'a &lt; <c.low>b</c>'
    """
    found, place = "", 0
    for word, probability in zip(segment.words, segment.probabilities, strict=False):
        first = segment.text.find(word.text, place)
        if first >= 0 and probability < LOW:
            before, own = segment.text[place:first], segment.text[first : first + len(word.text)]
            found += f"{html.escape(before, quote=False)}<c.low>{html.escape(own, quote=False)}</c>"
            place = first + len(word.text)
        elif first >= 0:
            last = first + len(word.text)
            found, place = found + html.escape(segment.text[place:last], quote=False), last
    return found + html.escape(segment.text[place:], quote=False)


def _clock(seconds: float, point: str = ",") -> str:
    """Return a time as subtitles have it.

    >>> _clock(3725.5)
    '01:02:05,500'
    """
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
