"""Which checkpoint is the best so far."""

from __future__ import annotations

from typing import Any

from vaak.config.training import CheckpointConfig
from vaak.core.errors import UserError


def improves(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether ``value`` is better than ``best`` by more than ``min_delta``; anything real is better than nothing.

    >>> improves(1.0, None, "min"), improves(1.0, 1.0, "min"), improves(2.0, 1.0, "max", min_delta=0.5)
    (True, False, True)
    """
    if value != value:
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


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
