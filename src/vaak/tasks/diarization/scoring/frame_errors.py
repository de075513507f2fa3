"""The diarization error of decisions made a frame at a time: the seconds of errors.py, fast enough for a search.

The scored time is cut wherever the reference, the UEM, a collar or a frame begins or ends. Within a piece nothing
changes, so its error is its length times max(reference speakers, hypothesis speakers) - rightly found speakers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaak.audio.labelled import Segment
from vaak.audio.segments import merged
from vaak.tasks.diarization.config import ScoringConfig


class FrameErrors:
    """The errors of any decisions about one recording."""

    def __init__(
        self,
        reference: Sequence[Segment],
        uem: Sequence[tuple[float, float]] | None,
        scoring: ScoringConfig,
        frame_seconds: float,
        num_frames: int,
    ) -> None:
        """Cut the time to pieces. ``uem`` None is from the first to the last time of the reference."""
        reference = merged(reference)
        if uem is None:
            uem = [(reference[0].start, max(segment.end for segment in reference))] if reference else []
        boundaries = np.array([time for segment in reference for time in segment[:2]], np.float64)
        cuts = [
            np.arange(num_frames + 1) * frame_seconds,
            boundaries - scoring.collar,
            boundaries,
            boundaries + scoring.collar,
            np.array(uem, np.float64).reshape(-1),
        ]
        times = np.unique(np.concatenate(cuts))
        centres, lengths = (times[1:] + times[:-1]) / 2, np.diff(times)
        names = sorted({segment.speaker for segment in reference})
        speaks = np.stack([_within(centres, _parts_of(reference, name)) for name in names] or [np.zeros(len(centres))])
        counts = _within(centres, uem) & ~_within(
            centres, [(t - scoring.collar, t + scoring.collar) for t in boundaries]
        )
        if scoring.skip_overlap:
            counts &= speaks.sum(0) < 2
        self.lengths = lengths[counts]
        self.speaks = speaks.T[counts].astype(np.float64)
        self.frames = np.minimum(centres[counts] / frame_seconds, num_frames).astype(np.int64)

    def seconds(self, decisions: np.ndarray) -> float:
        """Seconds of miss, false alarm and confusion of ``decisions (frames, speakers)``, under the best mapping.

        Beyond the last frame nobody speaks.
        """
        from scipy.optimize import linear_sum_assignment

        found = np.pad(decisions, ((0, 1), (0, 0)))[self.frames].astype(np.float64)
        together = (self.speaks * self.lengths[:, None]).T @ found
        right = together[linear_sum_assignment(together, maximize=True)].sum()
        return float(self.lengths @ np.maximum(self.speaks.sum(1), found.sum(1)) - right)


def _parts_of(segments: Sequence[Segment], speaker: str) -> list[tuple[float, float]]:
    return [segment[:2] for segment in segments if segment.speaker == speaker]


def _within(times: np.ndarray, parts: Sequence[tuple[float, float]]) -> np.ndarray:
    """Which of the increasing ``times (time,)`` are in any of the parts."""
    changes = np.zeros(len(times) + 1, np.int64)
    for start, end in parts:
        changes[np.searchsorted(times, start)] += 1
        changes[np.searchsorted(times, end)] -= 1
    return np.cumsum(changes[:-1]) > 0
