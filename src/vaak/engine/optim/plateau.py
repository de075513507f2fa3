"""The only schedule with state: the rate falls when a metric no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vaak.config.optimization import SchedulerConfig
from vaak.core.errors import UserError


class Plateau:
    """``factor`` is for the learning rate; it falls after more than ``patience`` evaluations without improvement."""

    def __init__(self, config: SchedulerConfig, peak_lr: float) -> None:
        self._config = config
        self._floor = config.min_lr / peak_lr
        self._best: float | None = None
        self._without_improvement = 0
        self.factor = 1.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take note of an evaluation. Raises UserError where the metric watched isn't among its results."""
        if self._config.metric not in metrics:
            raise UserError(
                f"training.scheduler.metric: no metric {self._config.metric}; "
                f"the evaluation gives {', '.join(sorted(metrics))}"
            )
        value = float(metrics[self._config.metric])
        if self._improves(value):
            self._best, self._without_improvement = value, 0
            return
        self._without_improvement += 1
        if self._without_improvement > self._config.patience:
            self.factor = max(self.factor * self._config.factor, self._floor)
            self._without_improvement = 0

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, as JSON."""
        return {"best": self._best, "without_improvement": self._without_improvement, "factor": self.factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state_dict``; of a run that had another schedule there is nothing to resume."""
        if state:
            self._best, self.factor = state["best"], state["factor"]
            self._without_improvement = state["without_improvement"]

    def _improves(self, value: float) -> bool:
        """Whether a value is better than the best; NaN never counts as an improvement."""
        if self._best is None:
            return value == value
        return value < self._best if self._config.mode == "min" else value > self._best
