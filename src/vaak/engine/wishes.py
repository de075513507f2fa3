"""What was asked of a run on one rank, until all ranks agree on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Wishes:
    """``stop`` is the reason; ``pieces`` in how many pieces microbatches are to be computed, for a ``shortage``."""

    stop: str | None = None
    evaluate: bool = False
    save: bool = False
    pieces: int = 1
    shortage: str = "memory is short"

    def add(self, other: Wishes) -> None:
        """Wish what another rank does too."""
        self.stop = self.stop or other.stop
        self.evaluate = self.evaluate or other.evaluate
        self.save = self.save or other.save
        if other.pieces > self.pieces:
            self.pieces, self.shortage = other.pieces, other.shortage
