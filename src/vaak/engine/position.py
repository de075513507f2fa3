"""Where a run is: the part of the state from which batches, draws and rates are computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Position:
    """The place after ``step`` optimizer steps.

    ``place`` is the microbatch of ``epoch``'s plan at which the next step begins. ``totals`` counts units over the
    whole run. ``duties_pending`` says that the run was stopped before the evaluation due at this step.
    ``non_finite_steps`` were skipped because a number in them was not finite.
    """

    step: int = 0
    epoch: int = 0
    place: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    duties_pending: bool = False
    non_finite_steps: int = 0

    def advance(self, microbatches: int, epoch_length: int, counts: dict[str, float]) -> bool:
        """Move on by one step of so many microbatches; return whether it ended its epoch."""
        self.step += 1
        self.place += microbatches
        for unit, count in counts.items():
            self.totals[unit] = self.totals.get(unit, 0.0) + count
        if self.place < epoch_length:
            return False
        self.epoch, self.place = self.epoch + 1, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Position:
        return cls(**state)
