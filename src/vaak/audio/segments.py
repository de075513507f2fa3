"""Segments as sets of instants: merged, cropped, shifted. Nothing is changed in place."""

from __future__ import annotations

from collections.abc import Iterable

from vaak.audio.labelled import Segment


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """The same speech by start, merged so that no speaker overlaps with themselves; those without length are dropped.

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
    """The segments cropped to ``start`` to ``end``; times stay those of the recording.

    >>> cropped([Segment(0, 2, "A"), Segment(5, 9, "B")], 1, 4)
    [Segment(start=1, end=2, speaker='A')]
    """
    inside = (Segment(max(begun, start), min(ended, end), speaker) for begun, ended, speaker in segments)
    return [segment for segment in inside if segment.start < segment.end]


def shifted(segments: Iterable[Segment], seconds: float) -> list[Segment]:
    """The segments, each later by ``seconds``.

    >>> shifted([Segment(1, 2, "A")], -1)
    [Segment(start=0, end=1, speaker='A')]
    """
    return [Segment(start + seconds, end + seconds, speaker) for start, end, speaker in segments]


def speech_seconds(segments: Iterable[Segment]) -> float:
    """Seconds of all segments, added up: where two overlap, both count."""
    return sum(segment.end - segment.start for segment in segments)
