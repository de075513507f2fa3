"""Stop when a metric no longer improves."""

from __future__ import annotations

from typing import Any, Literal

from vaak.core.errors import UserError
from vaak.core.metrics import improves
from vaak.engine.callback import Callback, Run


class EarlyStoppingCallback(Callback):
    """Asks to stop once ``patience`` scheduled evaluations in a row brought no improvement above ``min_delta``."""

    def __init__(
        self, patience: int = 5, metric: str = "val_loss", min_delta: float = 0.0, mode: Literal["min", "max"] = "min"
    ) -> None:
        self.patience, self.metric, self.min_delta, self.mode = patience, metric, min_delta, mode
        self.best: float | None = None
        self.evaluations_without = 0

    def on_fit_start(self, trainer: Run) -> None:
        """A run that had ended, or was killed while ending, stays ended; a larger patience lets it continue."""
        self._stop_if_exhausted(trainer)

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None:
        if not trainer.scheduled_evaluation:
            return
        if self.metric not in metrics:
            raise UserError(f"early stopping watches {self.metric}, but evaluations give {', '.join(metrics)}")
        if improves(metrics[self.metric], self.best, self.mode, self.min_delta):
            self.best, self.evaluations_without = metrics[self.metric], 0
            return
        self.evaluations_without += 1
        self._stop_if_exhausted(trainer)

    def _stop_if_exhausted(self, trainer: Run) -> None:
        if self.evaluations_without and self.evaluations_without >= self.patience:
            evaluations = f"{self.evaluations_without} evaluations, the patience is {self.patience}"
            trainer.request_stop(f"early stopping: {self.metric} has not improved on {self.best} for {evaluations}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "evaluations_without": self.evaluations_without}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.evaluations_without = state["best"], state["evaluations_without"]
