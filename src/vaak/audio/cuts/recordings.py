"""A file with its labels becomes a Lhotse cut, for corpora of all kinds; a cut becomes utterances, one for each label.

Recordings that are left out are counted and listed with the reason (``LeftOut``).
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from vaak.audio.audio_file import Header
from vaak.audio.cuts.reading import EMPTY_TEXT, get_file, get_text
from vaak.audio.embedded import EMBEDDED_TYPE, Part
from vaak.audio.formats.annotation_lines import Word
from vaak.audio.segments import Alignment, Interval, Region, Segment
from vaak.core.errors import DataError
from vaak.core.left_out import MOST_KEPT, SplitContents

if TYPE_CHECKING:
    from lhotse.cut import Cut

log = logging.getLogger("vaak")
LABELS_BEYOND_SECONDS = 0.5
"""Seconds that labels may go beyond their recording that are tolerated: annotators round, files are trimmed."""
A_LITTLE_BEYOND = f"recordings with labels up to {LABELS_BEYOND_SECONDS} s beyond their end, cut off there"
FAR_BEYOND = f"recordings with labels more than {LABELS_BEYOND_SECONDS} s beyond their end, cut off there"
OVERLAPPING = "recordings in which segments of one speaker overlap, merged"

OTHER_LENGTH = "recordings whose headers say another length than they have, or with damage (see vaak data check)"


BAD_LABELS = "labels of no length, outside of their recording, or that can't be read"
SHORTEST_SECONDS = 1e-4
"""Shortest duration of a label: less is not a sample of most audio."""
MOST_NAMED_RECORDINGS = 20
"""Labels of a file that are named; of further ones there is the number."""


class ReadRecording(NamedTuple):
    """The result for one recording or utterance: its cut, or none; ``remarks`` have the reason, or what was fixed.

    ``problem`` is why it can't be read although it should. With a cut, its text is given as empty: a recording without
    speech for those who learn texts; for others it has ``remarks``, or else it is a problem.
    """

    name: str
    cut: Cut | None
    remarks: tuple[str, ...] = ()
    problem: DataError | None = None

    @property
    def is_named(self) -> bool:
        """Whether it is known which recording couldn't be read; else its name is its place, as in the problem."""
        return self.problem is None or not str(self.problem).startswith(f"{self.name}: ")


def attempted(name: str, read: Callable[[], ReadRecording]) -> ReadRecording:
    """Return the result of ``read``, or the DataError that it raises as the problem of ``name``."""
    try:
        return read()
    except DataError as error:
        return ReadRecording(name, None, problem=error)


def header_remarks(header: Header) -> tuple[str, ...]:
    """Return whether a file has the length that its header says."""
    return (OTHER_LENGTH,) if header.difference else ()


Times = tuple[str, float, float]
"""A word or a phone, its start and its end."""


class Labelled(NamedTuple):
    """A segment with its text; ``alignment`` has words and phones by tier."""

    segment: Segment
    text: str | None = None
    alignment: dict[str, list[Times]] | None = None
    custom: dict[str, Any] | None = None
    where: str = ""
    problem: str = ""
    """Why it can't be used, if it couldn't be read."""


def list_times(alignment: Alignment) -> list[tuple[str, str | None, Times]]:
    """Tier, speaker (None: anyone) and times of what is aligned."""
    return [(tier, None, (text, start, end)) for tier, rows in alignment.items() for start, end, text in rows]


def aligned(labels: Sequence[Labelled], words: Sequence[tuple[str, str | None, Times]]) -> Iterator[Labelled]:
    """The labels with the words and phones whose middle they contain; without a text, a label gets that of its words.

    ``words`` have tier, speaker (None: anyone) and times.
    """
    for one in labels:
        start, end, speaker = one.segment
        alignment: dict[str, list[Times]] = {}
        for tier, whose, times in words:
            if whose in (None, speaker) and start <= (times[1] + times[2]) / 2 < end:
                alignment.setdefault(tier, []).append(times)
        text = one.text or " ".join(word for word, _, _ in alignment.get("word", ()) if word) or one.text
        yield one._replace(text=text, alignment=alignment or None)


def recording_cut(name: str, path: Path | Part, header: Header, recording_id: str | None = None) -> Any:
    """A cut of a file, or of a part of one, without labels; the recording is named ``recording_id``, or ``name``."""
    from lhotse import Recording
    from lhotse.audio import AudioSource

    channels = list(range(header.num_channels))
    if isinstance(path, Path):
        source = AudioSource(type="file", channels=channels, source=str(path.absolute()))
    else:
        source = AudioSource(
            type=EMBEDDED_TYPE, channels=channels, source=str(path._replace(path=path.path.absolute()))
        )
    recording = Recording(recording_id or name, [source], header.sampling_rate, header.num_samples, header.duration)
    cut = recording.to_cut()
    cut.id = name
    return cut


def label(cut: Any, labels: Sequence[Labelled]) -> None:
    """Give the cut its supervisions; times count from its start."""
    from lhotse import SupervisionSegment

    cut.supervisions = []
    for number, (segment, text, alignment, custom, *_) in enumerate(labels):
        cut.supervisions.append(
            SupervisionSegment(
                id=f"{cut.id}-{number:05}",
                recording_id=cut.recording.id,
                start=segment.start,
                # As Lhotse rounds, so that start + duration gives the end again.
                duration=round(segment.end - segment.start, 8),
                channel=cut.channel,
                speaker=segment.speaker or None,
                text=text,
                alignment=alignment_items(alignment),
                custom=custom,
            )
        )


def alignment_items(alignment: dict[str, list[Times]] | None) -> dict[str, Any] | None:
    """Return an alignment as Lhotse has it; None if it is empty."""
    from lhotse.supervision import AlignmentItem

    return {
        kind: [AlignmentItem(word, start, round(end - start, 8)) for word, start, end in words]
        for kind, words in (alignment or {}).items()
    } or None


def within(labels: Sequence[Labelled], duration: float, where: str) -> tuple[list[Labelled], list[str]]:
    """Return the labels clipped at the recording's end, and a remark if any were beyond it.

    Raises DataError if that is more than half of them: they are another recording's, or it is truncated.
    """
    usable, remarks = usable_labels(labels, [(one.segment, one.where) for one in labels], duration, where)
    inside = [one._replace(segment=one.segment._replace(end=min(one.segment.end, duration))) for one in usable]
    last = max((one.segment.end for one in labels), default=0.0)
    if last <= duration + 1e-3:
        return inside, remarks
    seconds, kept = (sum(one.segment.end - one.segment.start for one in some) for some in (labels, inside))
    if kept < seconds / 2:
        raise DataError(
            f"{where}: most of its labels are beyond its end ({duration:.2f} s; they go to {last:.2f} s): they are of "
            "another recording, or this one is truncated"
        )
    return inside, [*remarks, A_LITTLE_BEYOND if last <= duration + LABELS_BEYOND_SECONDS else FAR_BEYOND]


Label = TypeVar("Label")
Timed = Segment | Interval | Region | Word


def usable_labels(
    labels: Sequence[Label],
    times: Sequence[tuple[Timed, str]],
    duration: float,
    where: str,
) -> tuple[list[Label], list[str]]:
    """Return the labels that have a length and begin in the recording; each other one is logged and gives a remark.

    ``times`` has when each label is, and its file and line, unless its segment knows it, or they are ``where``. Raises
    DataError if no label is left, and of any the times couldn't be read: speech isn't to be taken for silence.
    """
    kept, remarks, unread = list[Label](), list[str](), ""
    for one, (time, place) in zip(labels, times, strict=True):
        problem = getattr(one, "problem", "") or getattr(time, "problem", "")
        reason = f"that can't be used: {problem}" if problem else bad_times(time.start, time.end, duration)
        place = place or getattr(time, "where", "") or where
        if problem and not unread:
            # The first unreadable label is the error if none is left: the others may have failed for the same reason.
            unread = f"{where if place.startswith(where) else place}: {problem}"
        if reason is None:
            kept.append(one)
        else:
            remarks.append(BAD_LABELS)
            name_label(place, reason)
    if unread and not kept:
        raise DataError(f"{unread} (no label of {where} can be used)")
    return kept, remarks


def name_left_out(words: Sequence[tuple[str, str]]) -> list[str]:
    """Name the words and phones that are left out, by where they are and why; return a remark for each."""
    for where, reason in words:
        name_label(where, f"that can't be used: {reason}")
    return [BAD_LABELS] * len(words)


def bad_times(start: float, end: float, duration: float = math.inf) -> str | None:
    """Return why a label from ``start`` to ``end`` can't be used; None if it can.

    >>> bad_times(1, 2, 3), bad_times(1, 1)
    (None, 'from 1 to 1 s, has no length')
    """
    if end < start:
        return f"from {start:g} to {end:g} s, ends before it begins"
    # Not ``<``: this way NaN counts as having no length.
    if not end - start >= SHORTEST_SECONDS:
        return f"from {start:g} to {end:g} s, has no length"
    if min(end, duration) - max(start, 0.0) < SHORTEST_SECONDS:
        return f"from {start:g} to {end:g} s, is outside of its recording ({duration:.2f} s)"
    return None


_named: dict[str, set[str]] = {}


def name_label(where: str, reason: str) -> None:
    """Log, once in a process, that the label at a place is left out, and why; only the first ones of a file."""
    named = _named.setdefault(where.rpartition(":")[0], set())
    if where in named or len(named) > MOST_NAMED_RECORDINGS:
        return
    named.add(where)
    if len(named) > MOST_NAMED_RECORDINGS:
        log.warning("%s: further labels of this file are left out; they are counted", where)
    else:
        log.warning("%s: left out: a label %s", where, reason)


def drop_bad_labels(cut: Any, where: str, places: Mapping[int, str] | None = None) -> list[str]:
    """Remove labels without length, or outside of the recording, from a Lhotse cut; return a remark for each.

    ``places`` has the file and line of a label by its id in Python; else its name follows ``where``.
    """
    remarks: list[str] = []
    # A mixed cut keeps its labels in its tracks; a padding track has no supervisions.
    for part in [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]:
        own = list(getattr(part, "supervisions", ()))
        named = [(places or {}).get(id(one)) or f"{where}, supervision {one.id}" for one in own]
        times = [(Segment(one.start, one.end, ""), place) for one, place in zip(own, named, strict=True)]
        kept, more = usable_labels(own, times, part.duration, where)
        if more:
            part.supervisions = kept
            remarks += more
    return remarks


def set_uem(cut: Any, parts: Sequence[Region] | None, where: str) -> list[str]:
    """Set the scored regions of the cut, in seconds from its start; return a remark for each that can't be used.

    Raises DataError if there are none.
    """
    if parts is None:
        return []
    usable, remarks = usable_labels(parts, [(one, "") for one in parts], cut.duration, where)
    inside = [[start, min(end, cut.duration)] for start, end in sorted(usable)]
    if not inside:
        raise DataError(f"{where}: the parts of its UEM are beyond its end ({cut.duration:.2f} s)")
    cut.custom = {**(cut.custom or {}), "uem": inside}
    return remarks


WITHOUT_TEXT = "utterances without a text"
UNUSABLE = "utterances that can't be used"


@dataclass
class LeftOut:
    """Utterances that are left out, by reason; ``messages`` are what is wrong with those that can't be used.

    ``listed`` has the name of each that ``add`` was told, with what is wrong with it.
    """

    skip_bad: bool
    counts: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    listed: dict[str, list[dict[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, kind: str, reason: str) -> None:
        """Count and list an utterance, for a reason of a kind."""
        self.counts[kind] += 1
        self.listed[kind].append({"name": name, "reason": reason})

    def bad(self, error: DataError, name: str = "") -> None:
        """Count an utterance that can't be used, with a warning; raise the error where none may be skipped."""
        if not self.skip_bad:
            raise DataError(f"{error} (vaak data check lists all such utterances)")
        log.warning("skipped: %s", error)
        self.add(name, UNUSABLE, str(error))
        self.messages.append(str(error))

    def contents(self, number: int) -> SplitContents:
        """Return the utterances left out of a split that keeps ``number`` of them."""
        names = {kind: [one["name"] for one in own if one["name"]][:MOST_KEPT] for kind, own in self.listed.items()}
        return SplitContents("utterances", number, dict(self.counts), names)

    def without_text(self, one: Any, recording: Any) -> None:
        """Count an utterance of a recording that has no text; one that is given as empty can't be used."""
        if is_without_speech(one, recording):
            self.bad(DataError(f"{describe(one)}: its text is empty; {EMPTY_TEXT}"), one.id)
        else:
            self.add(one.id, WITHOUT_TEXT, "it has no text")


def is_without_speech(one: Any, recording: Any) -> bool:
    """Return whether the text of all of a recording is given as empty, and not only missing.

    Of several utterances in a recording, some may be without a text: those that nobody wrote down.
    """
    return one is recording and get_text(one) is None and any(label.text is not None for label in one.supervisions)


def split_utterances(cut: Any) -> Iterator[Any]:
    """Yield a cut for each label, where there are several."""
    if len(cut.supervisions) < 2:
        yield cut
        return
    for number, label in enumerate(sorted(cut.supervisions, key=lambda one: one.start)):
        part = section(cut, max(0.0, label.start), min(label.end, cut.duration))
        part.id = f"{cut.id}-{number:04}"
        # Where speakers overlap, the section also contains labels of others.
        part.supervisions = [one for one in part.supervisions if one.id == label.id]
        yield part


def section(cut: Any, start: float, end: float) -> Any:
    """The cut from ``start`` to ``end``, in seconds; unlike Lhotse's, with the times of alignments from its start."""
    part = cut.truncate(offset=start, duration=end - start, preserve_id=True)
    for label in part.supervisions:
        label.alignment = {
            kind: [item._replace(start=round(item.start - start, 8)) for item in items]
            for kind, items in (label.alignment or {}).items()
        } or None
    return part


def describe(cut: Any) -> str:
    """Return the name and the file of an utterance, for messages."""
    return f"{cut.id} ({get_file(cut)})"
