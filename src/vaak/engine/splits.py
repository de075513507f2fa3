"""In how many pieces a microbatch is computed: one, until memory runs out.

Pieces add up to the same loss and gradient to rounding, but each draws its own dropout. So a cut is written down
before it acts, and the number of pieces is a function of what is written and of the place in the run alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.engine.journal import Journal

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Cut:
    """From ``step`` on there are ``pieces``; within that step, for the microbatches ``numbers`` alone (None: for all).

    ``split`` names the evaluation split that is cut instead of training, on ``rank`` alone.
    """

    step: int
    pieces: int
    numbers: tuple[int, ...] | None = None
    split: str | None = None
    rank: int = 0

    def applies(self, step: int, number: int) -> bool:
        """Whether a microbatch of training is cut by it."""
        if self.split is not None or self.step > step:
            return False
        return self.step < step or self.numbers is None or number in self.numbers


class Splits:
    """The cuts of a run, kept in ``splits.jsonl`` and in its checkpoints."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.rank = rank
        self.journal = Journal(directory, "splits", rank)
        self.cuts: list[Cut] = []
        self.load_state_dict([entry["cut"] for entry in self.journal.entries])

    def pieces(self, step: int, number: int = -1) -> int:
        """Pieces of a microbatch of a step; without a number, those that every one of the step is cut in."""
        return max((cut.pieces for cut in self.cuts if cut.applies(step, number)), default=1)

    def evaluation_pieces(self, step: int, split: str) -> int:
        """Pieces of a batch when ``split`` is evaluated after a step, on this rank."""
        own = (cut for cut in self.cuts if cut.split == split and cut.rank == self.rank and cut.step <= step)
        return max((cut.pieces for cut in own), default=1)

    def cut_evaluation(self, step: int, split: str, pieces: int, reason: str) -> None:
        """Evaluate ``split`` in so many pieces on this rank, from the evaluation after ``step`` on."""
        self.add(Cut(step, pieces, split=split, rank=self.rank), reason)

    def add(self, cut: Cut, reason: str) -> None:
        """Write a cut down, then hold to it."""
        self.journal.append([{"cut": _as_json(cut), "reason": reason}])
        self.cuts.append(cut)
        what = f"evaluating {cut.split}" if cut.split else f"from step {cut.step} on"
        log.warning("%s: %s, batches are computed in %d pieces; the numbers stay the same", reason, what, cut.pieces)

    def state_dict(self) -> list[dict[str, Any]]:
        return [_as_json(cut) for cut in self.cuts]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Hold to the cuts of a state too."""
        for entry in state:
            numbers = None if entry["numbers"] is None else tuple(entry["numbers"])
            cut = Cut(**(entry | {"numbers": numbers}))
            if cut not in self.cuts:
                self.cuts.append(cut)


def _as_json(cut: Cut) -> dict[str, Any]:
    numbers = None if cut.numbers is None else list(cut.numbers)
    return {"step": cut.step, "pieces": cut.pieces, "numbers": numbers, "split": cut.split, "rank": cut.rank}
