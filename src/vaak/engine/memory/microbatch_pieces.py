"""In how many pieces a microbatch is computed: one, until memory runs out.

Pieces add up to the same loss and gradient to rounding, but each draws its own dropout. So a cut is written down
before it acts, and the number of pieces is a function of what is written and of the place in the run alone. A cut is
for microbatches at least as large as the one that did not fit: one long outlier slows down no others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vaak.engine.records.journal import Journal

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Cut:
    """From ``step`` on, microbatches of at least ``cells`` (rows × longest) are computed in ``pieces``.

    Within that step this holds for the microbatches ``numbers`` alone (None: for all), and from its objective number
    ``objective`` on. ``split`` names the evaluation split that is cut instead of training, on ``rank`` alone.
    """

    step: int
    pieces: int
    numbers: tuple[int, ...] | None = None
    split: str | None = None
    rank: int = 0
    cells: float = 0.0
    objective: int = 0

    def applies(self, step: int, number: int, cells: float, objective: int = 0) -> bool:
        """Whether a microbatch of training is cut by it."""
        if self.split is not None or self.step > step or cells < self.cells:
            return False
        in_its_step = (self.numbers is None or number in self.numbers) and objective >= self.objective
        return self.step < step or in_its_step

    def covers(self, other: Cut) -> bool:
        """Whether whatever ``other`` cuts is cut by this one at least as finely."""
        if self.split is not None or self.pieces < other.pieces or self.cells > other.cells:
            return False
        whole_step = self.numbers is None and self.objective == 0
        return self.step < other.step or (self.step == other.step and whole_step)


class Splits:
    """The cuts of a run, kept in ``splits.jsonl`` and in its checkpoints.

    ``fresh`` are those that were made since the other ranks were last told.
    """

    def __init__(self, directory: Path, rank: int, data: str | None = None) -> None:
        self.rank = rank
        self.journal = Journal(directory, "splits", rank, data)
        self.cuts: list[Cut] = []
        self.fresh: list[tuple[Cut, str]] = []
        self.load_state_dict([entry["cut"] for entry in self.journal.entries])

    def pieces(self, step: int, number: int, cells: float, objective: int = 0) -> int:
        """Pieces of a microbatch of a step."""
        if not self.cuts:
            return 1
        return max((cut.pieces for cut in self.cuts if cut.applies(step, number, cells, objective)), default=1)

    def evaluation_pieces(self, step: int, split: str) -> int:
        """Pieces of a batch when ``split`` is evaluated after a step, on this rank."""
        own = (cut for cut in self.cuts if cut.split == split and cut.rank == self.rank and cut.step <= step)
        return max((cut.pieces for cut in own), default=1)

    def cut_evaluation(self, step: int, split: str, pieces: int, reason: str) -> None:
        """Evaluate ``split`` in so many pieces on this rank, from the evaluation after ``step`` on."""
        self.add(Cut(step, pieces, split=split, rank=self.rank), reason)

    def cut_training(self, cut: Cut, reason: str) -> None:
        """Hold to a cut of training, and remember to tell the other ranks."""
        self.add(cut, reason)
        self.fresh.append((cut, reason))

    def adopt(self, cut: Cut, reason: str) -> None:
        """Hold to another rank's cut, unless one that is known covers it."""
        if not any(known.covers(cut) for known in self.cuts):
            self.add(cut, reason)

    def take_fresh(self) -> list[tuple[Cut, str]]:
        """The cuts of training that the other ranks don't know yet; they are counted as told."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def forget(self) -> None:
        """Hold to nothing that was written down before."""
        self.journal.forget()
        self.cuts.clear()

    def add(self, cut: Cut, reason: str) -> None:
        """Write a cut down, then hold to it."""
        self.journal.append([{"cut": _as_json(cut), "reason": reason}])
        self.cuts.append(cut)
        what = f"evaluating {cut.split}" if cut.split else f"from step {cut.step} on"
        size = f" of {cut.cells:g} cells or more" if cut.cells else ""
        log.warning("%s: %s, batches%s are computed in %d pieces", reason, what, size, cut.pieces)

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
    return asdict(cut) | {"numbers": None if cut.numbers is None else list(cut.numbers)}
