"""Diarization errors: seconds of each kind of error, added up over recordings and divided once.

DER    (miss + false alarm + confusion) / speech scored     speech of several speakers at once counts for each
JER    mean over reference speakers of (miss + false alarm) / (their speech or their match's)

Both under the optimal one-to-one mapping of speakers, by pyannote.metrics.

Sources: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan"; Ryant et al. 2019, "The
Second DIHARD Diarization Challenge".
Differs: pyannote.metrics counts both sides of a collar together, and scores without a UEM from the first to the last
time of reference and hypothesis; here both are as NIST's md-eval has them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vaak.audio.labelled import Segment
from vaak.audio.segments import merged, speech_seconds
from vaak.core.errors import DataError, UserError

if TYPE_CHECKING:
    from pyannote.core import Annotation, Timeline

log = logging.getLogger("vaak")

Parts = Sequence[tuple[float, float]]
"""The regions of a recording that are scored, in seconds."""

SLACK_SECONDS = 1e-6
"""Shorter overlaps are rounding."""


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


def protocol_of(collar: float, skip_overlap: bool, has_uem: bool) -> dict[str, str]:
    """The conditions of a metric, in words; without them it can't be compared.

    >>> protocol_of(0.25, True, False)["collar"]
    '0.25 s each side'
    """
    return {
        "collar": f"{collar:g} s each side",
        "overlap": "skipped" if skip_overlap else "scored",
        "uem": "given" if has_uem else "first to last reference time",
    }


def diarization_error(
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    *,
    uem: Parts | None,
    collar: float,
    skip_overlap: bool,
) -> ErrorSeconds:
    """The seconds of error of one recording.

    ``collar`` is seconds on each side of a reference boundary that are not scored; ``skip_overlap`` excludes where the
    reference has several speakers. Without a ``uem``, the first to the last reference time is scored, so
    nothing in a recording without reference speech: give its duration to count its false alarms.
    """
    metric = _metric("DiarizationErrorRate", collar, skip_overlap)
    found = _components(metric, reference, hypothesis, uem)
    return ErrorSeconds(found["total"], found["missed detection"], found["false alarm"], found["confusion"])


def jaccard_error(
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    *,
    uem: Parts | None,
    collar: float,
    skip_overlap: bool,
) -> tuple[float, int]:
    """The Jaccard errors of one recording's reference speakers, added up, and how many speakers these are."""
    metric = _metric("JaccardErrorRate", collar, skip_overlap)
    found = _components(metric, reference, hypothesis, uem)
    return float(found["speaker error"]), int(found["speaker count"])


def score_recordings(
    references: Mapping[str, Sequence[Segment]],
    hypotheses: Mapping[str, Sequence[Segment]],
    uems: Mapping[str, Parts] | None,
    collar: float,
    skip_overlap: bool,
) -> Scores:
    """Score recordings by name.

    Those of the references are scored, and with ``uems`` only those that these name. If there is no hypothesis, all
    speech is missed. A hypothesis without a reference isn't scored, unless the UEM names it: then the recording has no
    speech, and all of it is false alarm. Each of these is logged.

    Raises DataError if there is nothing to score, or no name is in both.
    """
    _say_what_is_apart(set(references), set(hypotheses), None if uems is None else set(uems))
    rows = []
    for name in sorted(references if uems is None else uems.keys() & (references.keys() | hypotheses.keys())):
        reference = _without_self_overlap(references.get(name, ()), "reference", name)
        hypothesis = _without_self_overlap(hypotheses.get(name, ()), "hypothesis", name)
        options: dict[str, Any] = {
            "uem": None if uems is None else uems[name],
            "collar": collar,
            "skip_overlap": skip_overlap,
        }
        error = diarization_error(reference, hypothesis, **options)
        rows.append(Score(name, error, *jaccard_error(reference, hypothesis, **options)))
    return Scores(tuple(rows), protocol_of(collar, skip_overlap, uems is not None))


def _say_what_is_apart(references: set[str], hypotheses: set[str], named: set[str] | None) -> None:
    """Warn of recordings that aren't in all of them. Raises DataError if there is nothing to score."""
    if not references:
        raise DataError("there is nothing to score: the reference has no segments")
    if hypotheses and not hypotheses & references:
        examples = f"it has {min(hypotheses)}, not {min(references)}"
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


def _without_self_overlap(segments: Sequence[Segment], whose: str, recording: str) -> list[Segment]:
    """The segments, merged where a speaker overlaps with themselves, with a warning."""
    apart = merged(segments)
    seconds = speech_seconds(segments) - speech_seconds(apart)
    if seconds > SLACK_SECONDS:
        log.warning("%s: segments of one speaker overlap by %.2f s in the %s; merged", recording, seconds, whose)
    return apart


def _metric(name: str, collar: float, skip_overlap: bool) -> Any:
    """A metric of pyannote's. Raises UserError if it isn't installed."""
    try:
        from pyannote.metrics import diarization
    except (ImportError, OSError) as error:
        raise UserError("scoring requires pyannote.metrics: pip install 'vaak[audio]'") from error
    return getattr(diarization, name)(collar=2 * collar, skip_overlap=skip_overlap)


def _components(
    metric: Any, reference: Sequence[Segment], hypothesis: Sequence[Segment], uem: Parts | None
) -> dict[str, float]:
    """What a metric of pyannote counts in one recording."""
    reference, hypothesis = merged(reference), merged(hypothesis)
    if uem is None:
        uem = [(reference[0].start, max(segment.end for segment in reference))] if reference else []
    counted: dict[str, float] = metric.compute_components(
        _annotation(reference), _annotation(hypothesis), uem=_timeline(uem)
    )
    return counted


def _annotation(segments: Sequence[Segment]) -> Annotation:
    from pyannote.core import Annotation
    from pyannote.core import Segment as Stretch

    annotation = Annotation()
    for track, (start, end, speaker) in enumerate(segments):
        annotation[Stretch(start, end), track] = speaker
    return annotation


def _timeline(parts: Parts) -> Timeline:
    """The parts, merged where they overlap."""
    from pyannote.core import Segment as Stretch
    from pyannote.core import Timeline

    return Timeline(Stretch(start, end) for start, end in parts).support()
