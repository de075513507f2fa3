"""Where a run is: the part of the state from which batches, draws and rates are computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass
class Position:
    """The position after ``step`` optimizer steps.

    ``place`` is the microbatch of ``epoch``'s plan at which the next step begins. ``totals`` counts units over the
    whole run. ``duties_pending`` says that what is due at this boundary (an evaluation, reporting the epoch's end) is
    not done yet. ``non_finite_steps`` were skipped because a number in them was not finite.
    """

    step: int = 0
    epoch: int = 0
    place: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    duties_pending: bool = False
    non_finite_steps: int = 0

    @property
    def epoch_of_step(self) -> int:
        """The epoch of the last step: at an epoch's end, ``epoch`` is the one to come."""
        return self.epoch - 1 if self.step and not self.place else self.epoch

    def advance(self, microbatches: int, ends_epoch: bool, counts: dict[str, float]) -> None:
        """Advance by one step of this many microbatches, over all ranks."""
        self.step += 1
        self.place += microbatches
        self.duties_pending = True
        for unit, count in counts.items():
            self.totals[unit] = self.totals.get(unit, 0.0) + count
        if ends_epoch:
            self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where ``state_dict`` was taken; what an older state doesn't have is as at the start."""
        start = Position()
        for one in fields(self):
            setattr(self, one.name, state.get(one.name, getattr(start, one.name)))
        self.totals = dict(self.totals)
