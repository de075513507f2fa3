"""Diarization error rates in one call: of segments, of several recordings, or of RTTM files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from vaak.audio.formats.rttm import read_rttm
from vaak.audio.labelled import Segment
from vaak.audio.scoring.errors import Scores, score_recordings
from vaak.audio.scoring.pieces import Parts
from vaak.audio.scoring.reading import read_reference, read_scored_regions
from vaak.core.errors import UserError

Stretch = tuple[float, float, str]
"""Start and end in seconds, and who speaks; a ``Segment`` is one."""

Segments = Sequence[Stretch] | Mapping[str, Sequence[Stretch]] | str | PathLike[str]
"""The segments of one recording, those of several by name, or an RTTM file or folder."""

ONE = "recording"
"""The name of a recording that has none."""


@dataclass(frozen=True)
class Rates:
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
) -> Rates:
    """How wrong a diarization is: ``der(reference, hypothesis, collar=0.25).der``.

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
    return Rates(score_recordings(ours, theirs, _parts(uem), collar, skip_overlap))


def _recordings(segments: Segments, whose: str) -> Mapping[str, Sequence[Segment]]:
    if isinstance(segments, str | PathLike):
        return (read_reference if whose == "reference" else read_rttm)(Path(segments))
    by_name = segments if isinstance(segments, Mapping) else {ONE: segments}
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


def _parts(uem: Parts | Mapping[str, Parts] | str | PathLike[str] | None) -> Mapping[str, Parts] | None:
    if isinstance(uem, str | PathLike):
        return read_scored_regions(Path(uem))
    return uem if uem is None or isinstance(uem, Mapping) else {ONE: uem}
