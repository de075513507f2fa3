"""Segments from the probabilities of frames, and the search for the best settings of that.

    probabilities → decisions (threshold) → median filter → short pauses filled → short speech dropped → segments

The search counts errors a frame at a time, which is fast enough for it.
Source: the same order as pyannote.audio's Binarize, with the median filter of Fujita et al. 2019 before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from vaak.audio.segments import Segment
from vaak.core.progress import track
from vaak.scoring.diarization_errors import Parts, ReferencePieces
from vaak.tasks.diarization.config import InferenceConfig, ScoringConfig

THRESHOLDS: tuple[float, ...] = tuple(round(0.05 * step, 2) for step in range(2, 19))
MEDIAN_FILTERS: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.1)
MIN_DURATIONS_ON: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
MIN_DURATIONS_OFF: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
Example = tuple[np.ndarray, Sequence[Segment], Sequence[tuple[float, float]] | None]
"""Probabilities ``(frames, speakers)`` of a recording, its reference, and its scored regions (None: as in scoring)."""


def make_segments(
    probabilities: np.ndarray, inference: InferenceConfig, frame_seconds: float, names: Sequence[str] | None = None
) -> list[Segment]:
    """The segments of ``probabilities (frames, speakers)``, by start; their times are whole frames.

    ``names`` are those of the columns. Without them, speakers are numbered in the order in which they begin.
    """
    turns = [
        (int(start), int(end), column)
        for column, speaker in enumerate(probabilities.T)
        for start, end in zip(*_turns(speaker, inference, frame_seconds), strict=True)
    ]
    turns.sort()
    if names is None:
        numbers = {column: number for number, column in enumerate(dict.fromkeys(turn[2] for turn in turns), 1)}
        names = [f"speaker_{numbers.get(column)}" for column in range(probabilities.shape[1])]
    return [Segment(start * frame_seconds, end * frame_seconds, names[column]) for start, end, column in turns]


def tune_segments(
    examples: Sequence[Example], inference: InferenceConfig, frame_seconds: float, scoring: ScoringConfig
) -> InferenceConfig:
    """``inference`` with the threshold, median filter and minimum durations with the lowest error on ``examples``.

    Tries every threshold with every filter, then every pair of minimum durations with the best of these, and repeats
    until nothing improves. It never ends with more errors than at the start; of equals, the first one stays.
    ``examples`` must be development recordings: metrics on data used for tuning are meaningless.
    """
    errors = [FrameErrors(reference, uem, scoring, frame_seconds, len(found)) for found, reference, uem in examples]

    def seconds(candidate: InferenceConfig) -> float:
        return sum(
            error.seconds(decide_frames(found, candidate, frame_seconds))
            for error, (found, _, _) in zip(errors, examples, strict=True)
        )

    best, least = inference, seconds(inference)
    while True:
        before = least
        for grid in (
            {"threshold": THRESHOLDS, "median_filter": MEDIAN_FILTERS},
            {"min_duration_on": MIN_DURATIONS_ON, "min_duration_off": MIN_DURATIONS_OFF},
        ):
            settings: list[dict[str, Any]] = [
                dict(zip(grid, values, strict=True)) for values in product(*grid.values())
            ]
            candidates = [best.model_copy(update=changed) for changed in settings]
            for candidate in track(candidates, "trying settings", len(candidates)):
                found = seconds(candidate)
                # A sum of seconds that is less by rounding isn't better.
                if found < least - 1e-9:
                    best, least = candidate, found
        if least == before:
            return best


def decide_frames(probabilities: np.ndarray, inference: InferenceConfig, frame_seconds: float) -> np.ndarray:
    """Return who speaks in each frame, ``(frames, speakers)`` bool: as ``make_segments`` in frames."""
    changes = np.zeros((len(probabilities) + 1, probabilities.shape[1]), np.int8)
    for column, speaker in enumerate(probabilities.T):
        starts, ends = _turns(speaker, inference, frame_seconds)
        changes[starts, column] = 1
        changes[ends, column] = -1
    return np.cumsum(changes[:-1], axis=0, dtype=np.int8).astype(bool)


def _turns(
    probabilities: np.ndarray, inference: InferenceConfig, frame_seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """The first frames of one speaker's segments, and the frames after their last."""
    speaks = filter_median(probabilities >= inference.threshold, inference.median_filter / frame_seconds)
    changes = np.flatnonzero(np.diff(speaks.astype(np.int8), prepend=0, append=0))
    starts, ends = changes[::2], changes[1::2]
    if len(starts):
        pauses = starts[1:] - ends[:-1] >= _least_frames(inference.min_duration_off, frame_seconds)
        starts, ends = starts[np.append(True, pauses)], ends[np.append(pauses, True)]
    long = ends - starts >= _least_frames(inference.min_duration_on, frame_seconds)
    return starts[long], ends[long]


def filter_median(speaks: np.ndarray, num_frames: float) -> np.ndarray:
    """The median of the frames around each one, of ``speaks (frames,)``, over the nearest odd number of frames.

    Beyond both ends the first and the last frame are repeated.

    >>> filter_median(np.array([1, 1, 0, 1, 0, 0], bool), 3.0).astype(int).tolist()
    [1, 1, 1, 0, 0, 0]
    """
    side = int(round(num_frames, 6) // 2)
    if not side or not len(speaks):
        return speaks
    counts = np.cumsum(np.pad(speaks, (side + 1, side), mode="edge"), dtype=np.int32)
    return counts[2 * side + 1 :] - counts[: -2 * side - 1] > side


def _least_frames(seconds: float, frame_seconds: float) -> int:
    """The smallest number of frames that is not shorter than ``seconds``.

    >>> _least_frames(0.3, 0.1), _least_frames(0.31, 0.1)
    (3, 4)
    """
    return int(np.ceil(round(seconds / frame_seconds, 6)))


class FrameErrors:
    """The errors of any decisions about one recording."""

    def __init__(
        self,
        reference: Sequence[Segment],
        uem: Parts | None,
        scoring: ScoringConfig,
        frame_seconds: float,
        num_frames: int,
    ) -> None:
        """Cut the time to pieces. ``uem`` None is from the first to the last time of the reference.

        Decisions are ``num_frames`` frames of ``frame_seconds`` each; ``scoring`` has the collar and what to skip.
        """
        edges = np.arange(num_frames + 1) * frame_seconds
        self.pieces = ReferencePieces(reference, uem, scoring.collar, scoring.skip_overlap, edges)
        self.frames = np.minimum(self.pieces.centres / frame_seconds, num_frames).astype(np.int64)

    def seconds(self, decisions: np.ndarray) -> float:
        """Seconds of miss, false alarm and confusion of ``decisions (frames, speakers)``, under the best mapping.

        Beyond the last frame nobody speaks.
        """
        found = np.pad(decisions, ((0, 1), (0, 0)))[self.frames]
        return self.pieces.score(found)[0].errors
