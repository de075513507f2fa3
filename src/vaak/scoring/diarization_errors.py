"""Diarization errors: seconds of each kind of error, added up over recordings and divided once; ``der`` in one call.

DER    (miss + false alarm + confusion) / speech scored     speech of several speakers at once counts for each
JER    mean over reference speakers of (miss + false alarm) / (their speech or their match's)

The error is exact: time is cut wherever anything begins or ends, so that nothing changes in a piece.

    reference   ──A A A A──────B B B──      regions of the UEM, collars and the hypothesis cut it, too
    pieces      │  │ │  │ │  │ │  │ │
    error       length of a piece · (max(reference speakers, hypothesis speakers) - speakers found rightly)

As in NIST's md-eval, speakers are mapped one to one by the time that they share in all of the evaluated region; only
then are collars and overlap left out: otherwise a system could be credited with a mapping that its scored errors chose.

Sources: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan"; Ryant et al. 2019, "The
Second DIHARD Diarization Challenge".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vaak.audio.formats.annotation_lines import read_rttm, read_uem
from vaak.audio.segments import Region, Segment, merged, speech_seconds
from vaak.core.errors import DataError, UserError
from vaak.core.matching import quote_names, rename_like

Parts = Sequence[tuple[float, float]]
"""The regions of a recording that are scored, in seconds."""
Stretch = tuple[float, float, str]
"""Start and end in seconds, and who speaks; a ``Segment`` is one."""
TIE = 1e-9
"""Among mappings that share the same time, what is scored of it decides, not the order of names."""


@dataclass(frozen=True)
class ErrorSeconds:
    """Seconds of scored reference speech, and of errors by kind; recordings add up."""

    scored: float = 0.0
    miss: float = 0.0
    false_alarm: float = 0.0
    confusion: float = 0.0

    def __add__(self, other: ErrorSeconds) -> ErrorSeconds:
        return ErrorSeconds(
            self.scored + other.scored,
            self.miss + other.miss,
            self.false_alarm + other.false_alarm,
            self.confusion + other.confusion,
        )

    @property
    def errors(self) -> float:
        """Seconds of all errors."""
        return self.miss + self.false_alarm + self.confusion

    @property
    def rate(self) -> float | None:
        """The diarization error rate, 1 is 100 %; None if no speech is scored."""
        return self.errors / self.scored if self.scored else None


class ReferencePieces:
    """The evaluated time of a recording in pieces, with the reference's speakers in each."""

    def __init__(
        self,
        reference: Sequence[Segment],
        uem: Parts | None,
        collar: float,
        skip_overlap: bool,
        cuts: np.ndarray,
    ) -> None:
        """``cuts`` are the times at which a hypothesis may change. ``uem`` None: first to last reference time.

        ``collar`` is seconds on each side of the boundaries of ``reference``; ``skip_overlap`` excludes where several
        of it speak.

        ``centres``, ``lengths`` and ``is_scored`` are ``(piece,)``; ``speaks`` is ``(piece, speaker)`` bool.
        """
        parts = evaluated(reference, uem)
        speech = merged(reference)
        # Nothing to score, but annotated.
        points = [segment for segment in reference if segment.end == segment.start]
        edges = np.array([time for segment in (*speech, *points) for time in segment[:2]], np.float64)
        times = np.unique(np.concatenate([cuts, edges - collar, edges, edges + collar, np.ravel(parts)]))
        centres, lengths = (times[1:] + times[:-1]) / 2, np.diff(times)
        inside = within(centres, parts)
        self.centres, self.lengths = centres[inside], lengths[inside]
        self.speaks = activity_at(self.centres, speech)
        self.is_scored = ~within(self.centres, [(edge - collar, edge + collar) for edge in edges])
        if skip_overlap:
            self.is_scored &= self.speaks.sum(1) < 2

    def score(self, found: np.ndarray) -> tuple[ErrorSeconds, list[float]]:
        """The errors of a hypothesis ``found (piece, speaker)`` bool, and the Jaccard error of each scored speaker."""
        from scipy.optimize import linear_sum_assignment

        ours, theirs = self.speaks.astype(np.float64), found.astype(np.float64)
        weights = np.where(self.is_scored, self.lengths, 0.0)
        # The mapping uses all shared time, scored or not, as md-eval does (see the top of this file).
        together = (ours * self.lengths[:, None]).T @ theirs
        scored_together = (ours * weights[:, None]).T @ theirs
        mapped, to = linear_sum_assignment(together + TIE * scored_together, maximize=True)
        is_right = self.speaks[:, mapped] & found[:, to]  # (piece, pair)
        num_ours, num_theirs = ours.sum(1), theirs.sum(1)
        error = ErrorSeconds(
            scored=float(weights @ num_ours),
            miss=float(weights @ np.maximum(num_ours - num_theirs, 0)),
            false_alarm=float(weights @ np.maximum(num_theirs - num_ours, 0)),
            confusion=float(weights @ (np.minimum(num_ours, num_theirs) - is_right.sum(1))),
        )
        spoken = weights @ ours
        wrong = np.where(spoken > 0, 1.0, 0.0)
        # The assignment pairs as many speakers as possible, even two that never speak at the same time: not a match.
        shares = together[mapped, to] > 0
        # The union of both, by |A| + |B| - |A ∩ B|.
        either = spoken[mapped] + weights @ theirs[:, to] - weights @ is_right
        counts = shares & (spoken[mapped] > 0)
        wrong[mapped[counts]] -= (weights @ is_right)[counts] / either[counts]
        return error, wrong[spoken > 0].tolist()


def evaluated(reference: Sequence[Segment], uem: Parts | None) -> Parts:
    """The UEM, or the first to the last time of the reference; a segment without length extends it, as in md-eval."""
    if uem is not None:
        return uem
    return [(min(one.start for one in reference), max(one.end for one in reference))] if reference else []


def activity_at(times: np.ndarray, segments: Sequence[Segment]) -> np.ndarray:
    """Return who speaks at the increasing ``times (time,)``: ``(time, speaker)`` bool, speakers by name."""
    numbers = {name: number for number, name in enumerate(sorted({segment.speaker for segment in segments}))}
    speaks = np.zeros((len(times), len(numbers)), bool)
    if segments:
        starts, ends = (np.searchsorted(times, [segment[end] for segment in segments]) for end in (0, 1))
        for first, last, segment in zip(starts, ends, segments, strict=True):
            speaks[first:last, numbers[segment.speaker]] = True
    return speaks


def within(times: np.ndarray, parts: Parts) -> np.ndarray:
    """Return whether each of the increasing ``times (time,)`` is in any of the parts."""
    changes = np.zeros(len(times) + 1, np.int64)
    # Parts may overlap, so count how many are open at a time: inside wherever that is above 0.
    for end, change in ((0, 1), (1, -1)):
        np.add.at(changes, np.searchsorted(times, [part[end] for part in parts]), change)
    return np.cumsum(changes[:-1]) > 0


log = logging.getLogger("vaak")
SLACK_SECONDS = 1e-6
"""Shorter overlaps are rounding."""


@dataclass(frozen=True)
class Score:
    """The errors of a recording, or of several."""

    recording: str
    error: ErrorSeconds
    jaccard_sum: float
    num_speakers: int

    @property
    def jaccard_rate(self) -> float | None:
        """The Jaccard error rate, 1 is 100 %; None if no reference speaker is scored."""
        return self.jaccard_sum / self.num_speakers if self.num_speakers else None


@dataclass(frozen=True)
class Scores:
    """A row for each recording, and the total, under one protocol."""

    rows: tuple[Score, ...]
    protocol: dict[str, str]

    @property
    def total(self) -> Score:
        """Seconds and speakers of all recordings: the long ones weigh more."""
        return Score(
            "total",
            sum((row.error for row in self.rows), ErrorSeconds()),
            sum(row.jaccard_sum for row in self.rows),
            sum(row.num_speakers for row in self.rows),
        )


def describe_protocol(collar: float, skip_overlap: bool, has_uem: bool) -> dict[str, str]:
    """The conditions of a metric, in words; without them it can't be compared.

    >>> describe_protocol(0.25, True, False)["collar"]
    '0.25 s each side'
    """
    return {
        "collar": f"{collar:g} s each side",
        "overlap": "skipped" if skip_overlap else "scored",
        "uem": "given" if has_uem else "first to last reference time",
    }


def score_segments(
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    *,
    uem: Parts | None,
    collar: float,
    skip_overlap: bool,
    recording: str = "recording",
) -> Score:
    """The errors of one ``recording``, of which ``reference`` and ``hypothesis`` are segments of speakers, in seconds.

    ``collar`` is seconds on each side of a reference boundary that are not scored; ``skip_overlap`` excludes where the
    reference has several speakers. Without a ``uem``, the first to the last reference time is scored, so
    nothing in a recording without reference speech: give its duration to count its false alarms.
    """
    hypothesis = merged(hypothesis)
    cuts = np.array([time for segment in hypothesis for time in segment[:2]], np.float64)
    pieces = ReferencePieces(reference, uem, collar, skip_overlap, cuts)
    error, jaccard = pieces.score(activity_at(pieces.centres, hypothesis))
    return Score(recording, error, sum(jaccard), len(jaccard))


def diarization_error(
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    *,
    uem: Parts | None,
    collar: float,
    skip_overlap: bool,
) -> ErrorSeconds:
    """The seconds of error of one recording, as ``score_segments`` counts them.

    ``reference``, ``hypothesis``, ``uem``, ``collar`` and ``skip_overlap`` are those of ``score_segments``.
    """
    return score_segments(reference, hypothesis, uem=uem, collar=collar, skip_overlap=skip_overlap).error


def score_recordings(
    references: Mapping[str, Sequence[Segment]],
    hypotheses: Mapping[str, Sequence[Segment]],
    uems: Mapping[str, Parts] | None,
    collar: float,
    skip_overlap: bool,
) -> Scores:
    """Score recordings by name; names that differ only as ``vaak.core.matching`` says are the same.

    All of the references are scored, and with ``uems`` only those that these name. Without a hypothesis, all
    speech is missed. A hypothesis without a reference isn't scored, unless the UEM names it: then the recording has no
    speech, and all of it is false alarm. Each of these is logged, and counted in the protocol.

    ``references``, ``hypotheses`` and ``uems`` are by the recordings' names; ``collar`` in seconds and ``skip_overlap``
    are those of ``diarization_error``.

    Raises DataError if there is nothing to score, or no name is in both, or times are in different units.
    """
    # Rename first: everything below compares names.
    hypotheses = rename_like(references, hypotheses)
    uems = None if uems is None else rename_like({**hypotheses, **references}, uems)
    counts = _warn_of_unmatched(set(references), set(hypotheses), None if uems is None else set(uems))
    require_one_unit(references, hypotheses)
    rows = []
    for name in sorted(references if uems is None else uems.keys() & (references.keys() | hypotheses.keys())):
        reference, hypothesis = references.get(name, ()), hypotheses.get(name, ())
        _warn_of_self_overlap(reference, "reference", name)
        _warn_of_self_overlap(hypothesis, "hypothesis", name)
        uem = None if uems is None else uems[name]
        rows.append(
            score_segments(reference, hypothesis, uem=uem, collar=collar, skip_overlap=skip_overlap, recording=name)
        )
    return Scores(tuple(rows), describe_protocol(collar, skip_overlap, uems is not None) | counts)


def _warn_of_unmatched(references: set[str], hypotheses: set[str], named: set[str] | None) -> dict[str, str]:
    """Return how many recordings there are, and warn of those that aren't in all of them.

    Raises DataError if there is nothing to score.
    """
    if not references:
        raise DataError("there is nothing to score: the reference has no segments")
    # An empty hypothesis is valid: the system found no speech, so all of it counts as missed.
    if hypotheses and not hypotheses & references:
        examples = f"it has {quote_names([min(hypotheses)])}, not {quote_names([min(references)])}"
        raise DataError(f"no recording of the hypothesis is one of the reference ({examples}); use the same names")
    if named is not None and not named & references:
        raise DataError("the UEM names no recording of the reference")
    scored = references if named is None else references & named
    apart = {
        "the UEM doesn't name this recording; it isn't scored": references - scored,
        "the hypothesis has nothing of this recording; all its speech counts as missed": scored - hypotheses,
        "the reference has nothing of this recording; it isn't scored": hypotheses - references - (named or set()),
        "the UEM names this recording, the reference has nothing of it; all its speech counts as false alarm": (
            hypotheses & (named or set()) - references
        ),
    }
    for what, names in apart.items():
        for name in sorted(names):
            log.warning("%s: %s", name, what)
    counts = {
        "recordings": len(scored),
        "of the reference": len(references) if scored != references else 0,
        "without hypothesis": len(scored - hypotheses),
        "without reference": len(hypotheses - references),
    }
    return {what: str(number) for what, number in counts.items() if number}


LARGER_UNITS = {1000.0: "milliseconds", 1e6: "microseconds", 1e7: "units of 100 ns", 100.0: "frames of 10 ms"} | {
    float(rate): f"samples at {rate} Hz" for rate in (8000, 16000, 22050, 24000, 32000, 44100, 48000)
}
"""How much larger times in these are than in seconds."""
SAME_UNIT, OTHER_UNIT = 0.1, 0.5
"""The share of speech that both sides have in common: at most in the given units, and at least in another unit."""
LEAST_STRETCHES = 3


def require_one_unit(
    references: Mapping[str, Sequence[tuple[Any, ...]]], hypotheses: Mapping[str, Sequence[tuple[Any, ...]]]
) -> None:
    """Raise DataError where times hardly overlap as given, but do with another unit on one side.

    ``references`` and ``hypotheses`` have stretches ``(start, end, ...)`` in seconds, by recording.
    """
    both = [(references[name], hypotheses[name]) for name in references.keys() & hypotheses.keys()]
    both = [(ours, theirs) for ours, theirs in both if ours and theirs]
    if min((sum(map(len, side)) for side in zip(*both, strict=True)), default=0) < LEAST_STRETCHES:
        # One or two stretches may meet by chance in any unit.
        return
    if _shared(both, 1.0) > SAME_UNIT:
        return
    for factor, unit in LARGER_UNITS.items():
        # Only the hypothesis is scaled: if the reference is in the other unit, the hypothesis is too small by the same
        # factor.
        for scale, whose in ((1 / factor, "hypothesis"), (factor, "reference")):
            if _shared(both, scale) >= OTHER_UNIT:
                ends = [max(one[1] for one in side) for side in both[0]]
                raise DataError(
                    f"times of the {whose} look like {unit}: the reference ends at {ends[0]:g}, the hypothesis at "
                    f"{ends[1]:g}; write seconds on both sides"
                )


def _shared(both: Sequence[tuple[Sequence[tuple[Any, ...]], Sequence[tuple[Any, ...]]]], scale: float) -> float:
    """The share of both sides' speech that they have in common, the times of the hypotheses scaled."""
    common = ours_alone = theirs_alone = 0.0
    for ours, theirs in both:
        speech = merged([Segment(one[0], one[1], "") for one in ours])
        found = merged([Segment(one[0] * scale, one[1] * scale, "") for one in theirs])
        ends = np.array([one[:2] for one in found]).reshape(-1, 2)
        ours_alone += speech_seconds(speech)
        theirs_alone += speech_seconds(found)
        for start, end, _ in speech:
            common += float((np.minimum(ends[:, 1], end) - np.maximum(ends[:, 0], start)).clip(min=0).sum())
    # Divide by the longer side: times shrunk too far would otherwise fit inside any segment of the other side.
    return common / max(ours_alone, theirs_alone) if max(ours_alone, theirs_alone) else 1.0


def _warn_of_self_overlap(segments: Sequence[Segment], whose: str, recording: str) -> None:
    """Warn where a speaker overlaps with themselves."""
    seconds = speech_seconds(segments) - speech_seconds(merged(segments))
    if seconds > SLACK_SECONDS:
        log.warning("%s: segments of one speaker overlap by %.2f s in the %s; merged", recording, seconds, whose)


Segments = Sequence[Stretch] | Mapping[str, Sequence[Stretch]] | str | PathLike[str]
"""The segments of one recording, those of several by name, or an RTTM file or folder."""
UNNAMED_RECORDING = "recording"
"""The name of a recording that has none."""


@dataclass(frozen=True)
class DiarizationRates:
    """Rates over all recordings, 1 is 100 %; None where no speech counts. ``scores`` has each recording's."""

    scores: Scores

    @property
    def der(self) -> float | None:
        """The diarization error rate: miss, false alarm and confusion together."""
        return self.scores.total.error.rate

    @property
    def miss(self) -> float | None:
        """Speech that nobody was found for."""
        return self._part(self.scores.total.error.miss)

    @property
    def false_alarm(self) -> float | None:
        """Speech that was found where there is none."""
        return self._part(self.scores.total.error.false_alarm)

    @property
    def confusion(self) -> float | None:
        """Speech that was found and given to another speaker."""
        return self._part(self.scores.total.error.confusion)

    @property
    def jer(self) -> float | None:
        """The Jaccard error rate, a mean over speakers."""
        return self.scores.total.jaccard_rate

    @property
    def protocol(self) -> dict[str, str]:
        """The conditions under which the rates may be compared with others."""
        return self.scores.protocol

    def _part(self, seconds: float) -> float | None:
        scored = self.scores.total.error.scored
        return seconds / scored if scored else None

    def __str__(self) -> str:
        rates = {name: getattr(self, name) for name in ("der", "miss", "false_alarm", "confusion", "jer")}
        shown = (f"{name} {'-' if rate is None else f'{100 * rate:.2f} %'}" for name, rate in rates.items())
        return ", ".join(shown)


def der(
    reference: Segments,
    hypothesis: Segments,
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
    uem: Parts | Mapping[str, Parts] | str | PathLike[str] | None = None,
) -> DiarizationRates:
    """Return the errors of a diarization: ``der(reference, hypothesis, collar=0.25).der``.

    ``collar`` is seconds on each side of a reference boundary that don't count; ``skip_overlap`` leaves out where the
    reference has several speakers; ``uem`` says which parts, in seconds, count: all from the first to the last time of
    the reference where it is not given.

    >>> rates = der([(0, 4, "a"), (4, 8, "b")], [(0, 5, "x"), (5, 8, "y")])
    >>> rates.der, rates.confusion, rates.miss
    (0.125, 0.125, 0.0)

    Raises UserError for segments that aren't any, DataError where there is nothing to score.
    """
    if not 0 <= collar < math.inf:
        raise UserError(f"collar is {collar:g}; expected seconds, 0 or more")
    ours, theirs = _recordings(reference, "reference"), _recordings(hypothesis, "hypothesis")
    if isinstance(uem, str | PathLike):
        uem = read_scored_regions(Path(uem))
    elif uem is not None and not isinstance(uem, Mapping):
        uem = {UNNAMED_RECORDING: uem}
    return DiarizationRates(score_recordings(ours, theirs, uem, collar, skip_overlap))


def _recordings(segments: Segments, whose: str) -> Mapping[str, Sequence[Segment]]:
    if isinstance(segments, str | PathLike):
        return (read_reference if whose == "reference" else read_rttm)(Path(segments))
    by_name = segments if isinstance(segments, Mapping) else {UNNAMED_RECORDING: segments}
    return {name: [_segment(one, whose) for one in several] for name, several in by_name.items()}


def _segment(value: Any, whose: str) -> Segment:
    try:
        start, end, speaker = value
        segment = Segment(float(start), float(end), str(speaker))
        if not -math.inf < segment.start <= segment.end < math.inf:
            raise ValueError
        return segment
    except (TypeError, ValueError) as error:
        raise UserError(f"the {whose} has {value!r}; expected (start, end, speaker), in seconds") from error


def read_reference(path: str | Path) -> dict[str, list[Segment]]:
    """The segments of an RTTM file or folder, by recording. Raises DataError if there are none: nothing is scored."""
    found = read_rttm(path)
    if not found:
        raise DataError(f"{path} is empty: it has no line SPEAKER; give the file of the reference")
    return found


def read_scored_regions(path: str | Path) -> dict[str, list[Region]]:
    """The parts that a UEM file or folder names, by recording. Raises DataError if there are none."""
    found = read_uem(path)
    if not found:
        raise DataError(f"{path} is empty: it has no line of a UEM (recording channel start end); give another file")
    return found
