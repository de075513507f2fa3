"""Diarization errors: seconds of each kind of error, added up over recordings and divided once.

DER    (miss + false alarm + confusion) / speech scored     speech of several speakers at once counts for each
JER    mean over reference speakers of (miss + false alarm) / (their speech or their match's)

Both under the one-to-one mapping of speakers that shares the most time (pieces.py).

Sources: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan"; Ryant et al. 2019, "The
Second DIHARD Diarization Challenge".
Collars, the time that is scored without a UEM, and the mapping are as in NIST's md-eval.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vaak.audio.labelled import Segment
from vaak.audio.scoring.pieces import ErrorSeconds, Parts, ReferencePieces, activity_at
from vaak.audio.segments import merged, speech_seconds
from vaak.core.errors import DataError

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
    """Score recordings by name.

    Those of the references are scored, and with ``uems`` only those that these name. Without a hypothesis, all
    speech is missed. A hypothesis without a reference isn't scored, unless the UEM names it: then the recording has no
    speech, and all of it is false alarm. Each of these is logged.

    ``references``, ``hypotheses`` and ``uems`` are by the recordings' names; ``collar`` in seconds and ``skip_overlap``
    are those of ``diarization_error``.

    Raises DataError if there is nothing to score, or no name is in both.
    """
    _say_what_is_apart(set(references), set(hypotheses), None if uems is None else set(uems))
    rows = []
    for name in sorted(references if uems is None else uems.keys() & (references.keys() | hypotheses.keys())):
        reference, hypothesis = references.get(name, ()), hypotheses.get(name, ())
        _say_self_overlap(reference, "reference", name)
        _say_self_overlap(hypothesis, "hypothesis", name)
        uem = None if uems is None else uems[name]
        rows.append(
            score_segments(reference, hypothesis, uem=uem, collar=collar, skip_overlap=skip_overlap, recording=name)
        )
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


def _say_self_overlap(segments: Sequence[Segment], whose: str, recording: str) -> None:
    """Warn where a speaker overlaps with themselves."""
    seconds = speech_seconds(segments) - speech_seconds(merged(segments))
    if seconds > SLACK_SECONDS:
        log.warning("%s: segments of one speaker overlap by %.2f s in the %s; merged", recording, seconds, whose)
