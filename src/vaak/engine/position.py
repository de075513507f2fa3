"""Where a run is: its position, the part of its state from which batches and draws follow, and its best figure."""

from __future__ import annotations

import copy
from dataclasses import Field, dataclass, field, fields
from typing import Any

from vaak.config.training import CheckpointConfig
from vaak.core.errors import UserError
from vaak.core.figures import improves


class Best:
    """The best value of a metric and the step it was seen at."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.metric, self.mode = config.metric, config.mode
        self.value: float | None = None
        self.step: int | None = None

    def observe(self, metrics: dict[str, float], step: int) -> None:
        """Take note of an evaluation. Raises UserError where it doesn't have the metric."""
        if self.metric not in metrics:
            raise UserError(f"training.checkpoint.metric is {self.metric}, but evaluations give {', '.join(metrics)}")
        if improves(metrics[self.metric], self.value, self.mode):
            self.value, self.step = metrics[self.metric], step

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``; under another metric or mode than before, nothing is the best yet."""
        same = state["metric"] == self.metric and state.get("mode", self.mode) == self.mode
        self.value, self.step = (state["value"], state["step"]) if same else (None, None)


@dataclass
class Position:
    """The position after ``step`` optimizer steps.

    ``place`` is the microbatch of ``epoch``'s plan at which the next step begins. ``totals`` counts units over the
    whole run. ``schedule_pending`` says that what is due at this boundary (an evaluation, reporting the epoch's end) is
    not done yet. ``non_finite_steps`` were skipped because a number in them was not finite.
    """

    step: int = 0
    epoch: int = 0
    place: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    # checkpoints have it by the name that it first had
    schedule_pending: bool = field(default=False, metadata={"key": "duties_pending"})
    non_finite_steps: int = 0

    @property
    def epoch_of_step(self) -> int:
        """The epoch of the last step: at an epoch's end, ``epoch`` is the one to come."""
        return self.epoch - 1 if self.step and not self.place else self.epoch

    def advance(self, microbatches: int, ends_epoch: bool, counts: dict[str, float]) -> None:
        """Advance by one step of this many microbatches, over all ranks."""
        self.step += 1
        self.place += microbatches
        self.schedule_pending = True
        for unit, count in counts.items():
            self.totals[unit] = self.totals.get(unit, 0.0) + count
        if ends_epoch:
            self.epoch, self.place = self.epoch + 1, 0

    def is_on_schedule(self, interval: int | None, interval_epochs: int | None) -> bool:
        """Return whether what is done every ``interval`` steps, or else every ``interval_epochs``, is scheduled here.

        The place before the first step is on no schedule.
        """
        if self.step == 0:
            return False
        if interval is not None:
            return self.step % interval == 0
        return interval_epochs is not None and self.place == 0 and self.epoch % interval_epochs == 0

    def is_due(self, interval: int | None, interval_epochs: int | None, total_steps: int) -> bool:
        """Return whether it is due here: on schedule, or after the last step."""
        return 0 < self.step >= total_steps or self.is_on_schedule(interval, interval_epochs)

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy({name_field(one): getattr(self, one.name) for one in fields(self)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where ``state_dict`` was taken; entries missing from an older state are as at the start."""
        start = Position()
        for one in fields(self):
            setattr(self, one.name, state.get(name_field(one), getattr(start, one.name)))
        self.totals = dict(self.totals)


def name_field(one: Field[Any]) -> str:
    """Return the name of a field in checkpoints."""
    return str(one.metadata.get("key", one.name))
