"""The diarization error of decisions made a frame at a time: that of segments, fast enough for a search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaak.audio.labelled import Segment
from vaak.audio.scoring.pieces import Parts, ReferencePieces
from vaak.tasks.diarization.config import ScoringConfig


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
