"""The exact error of a recording: its time is cut wherever anything begins or ends, so that nothing changes in a piece.

    reference   ──A A A A──────B B B──      regions of the UEM, collars and the hypothesis cut it, too
    pieces      │  │ │  │ │  │ │  │ │
    error       length of a piece · (max(reference speakers, hypothesis speakers) - speakers found rightly)

As in NIST's md-eval, speakers are mapped by the time that they share in all of the evaluated region; only then are
collars and overlap left out. Otherwise a system could be credited with a mapping that its scored errors chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vaak.audio.labelled import Segment
from vaak.audio.segments import merged

Parts = Sequence[tuple[float, float]]
"""The regions of a recording that are scored, in seconds."""

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
        points = [segment for segment in reference if segment.end == segment.start]  # nothing to score, but annotated
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
        shares = together[mapped, to] > 0
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
    """Who speaks at the increasing ``times (time,)``: ``(time, speaker)`` bool, speakers by name."""
    numbers = {name: number for number, name in enumerate(sorted({segment.speaker for segment in segments}))}
    speaks = np.zeros((len(times), len(numbers)), bool)
    if segments:
        starts, ends = (np.searchsorted(times, [segment[end] for segment in segments]) for end in (0, 1))
        for first, last, segment in zip(starts, ends, segments, strict=True):
            speaks[first:last, numbers[segment.speaker]] = True
    return speaks


def within(times: np.ndarray, parts: Parts) -> np.ndarray:
    """Which of the increasing ``times (time,)`` are in any of the parts."""
    changes = np.zeros(len(times) + 1, np.int64)
    for end, change in ((0, 1), (1, -1)):
        np.add.at(changes, np.searchsorted(times, [part[end] for part in parts]), change)
    return np.cumsum(changes[:-1]) > 0
