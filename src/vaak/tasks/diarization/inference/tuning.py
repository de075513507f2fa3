"""The best settings of a diarizer on development recordings; the model reads each of them once.

Threshold, median filter and minimum durations are searched by segments.py on recordings that were stitched once. The
reported errors are of recordings stitched again, because the threshold also affects stitching.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from vaak.audio.labelled import Segment
from vaak.audio.scoring.errors import diarization_error
from vaak.audio.scoring.pieces import ErrorSeconds
from vaak.core.progress import followed
from vaak.tasks.diarization.config import InferenceConfig, ScoringConfig
from vaak.tasks.diarization.examples.labels import DiarizationExample
from vaak.tasks.diarization.postprocessing.segments import tune_segments
from vaak.tasks.diarization.postprocessing.stitching import WindowOutput
from vaak.tasks.diarization.predict import Diarizer


@dataclass(frozen=True)
class Tuning:
    """The settings found, and the errors of the recordings before and after."""

    inference: InferenceConfig
    recordings: int
    before: ErrorSeconds
    after: ErrorSeconds


class _Recording(NamedTuple):
    """The model's output on a recording with this number of feature frames, and the reference."""

    outputs: list[WindowOutput]
    num_frames: int
    reference: Sequence[Segment]
    uem: Sequence[tuple[float, float]] | None


def tune(
    diarizer: Diarizer, examples: Iterable[DiarizationExample], scoring: ScoringConfig, number: int | None = None
) -> Tuning:
    """The diarizer's settings with the best ones on ``examples``; never worse than the current ones.

    ``number`` is that of the examples, if it is known, for what is shown meanwhile.
    """
    recordings = [_heard(diarizer, example) for example in followed(examples, "recordings", number)]
    joined = [
        (diarizer.joined(one.outputs, one.num_frames), one.reference, one.uem)
        for one in followed(recordings, "joining windows", len(recordings))
    ]
    found = replace(diarizer, inference=tune_segments(joined, diarizer.inference, diarizer.frame_seconds, scoring))
    before, after = (_errors(one, recordings, scoring) for one in (diarizer, found))
    if after.errors > before.errors:
        found, after = diarizer, before
    return Tuning(found.inference, len(recordings), before, after)


def _heard(diarizer: Diarizer, example: DiarizationExample) -> _Recording:
    features = example.features
    outputs = diarizer.outputs(lambda first, last: features[first:last], len(features))
    return _Recording(outputs, len(features), diarizer.collator.reference(example), example.uem)


def _errors(diarizer: Diarizer, recordings: Sequence[_Recording], scoring: ScoringConfig) -> ErrorSeconds:
    total = ErrorSeconds()
    for outputs, num_frames, reference, uem in followed(recordings, "scoring", len(recordings)):
        hypothesis = diarizer.segments(diarizer.joined(outputs, num_frames))
        total += diarization_error(
            reference, hypothesis, uem=uem, collar=scoring.collar, skip_overlap=scoring.skip_overlap
        )
    return total
