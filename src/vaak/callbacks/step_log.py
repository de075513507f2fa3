"""The figures of training: every so many steps, of every evaluation, of every epoch.

A logged loss is the mean over all that was counted since the last log (total over count, not a mean of steps). What has
been added up so far is part of the state, so a resumed run logs the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from vaak.core.callback import Callback
from vaak.core.report import StepReport


class Tally:
    """Totals and counts of each loss over some steps."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums = sums or {}

    def add(self, name: str, mean: float, count: float) -> None:
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] += mean * count
        entry[1] += count

    def means(self, weights: dict[str, float]) -> dict[str, float]:
        """Each loss over its count, and ``loss``, their weighted sum."""
        parts = {name: total / count for name, (total, count) in self.sums.items() if count}
        return {"loss": sum(weights.get(name, 1.0) * mean for name, mean in parts.items()), **parts}


class StepLogCallback(Callback):
    """Writes step, evaluation and epoch records."""

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.unread: list[StepReport] = []
        self.window, self.epoch = Tally(), Tally()
        self.seconds, self.counts, self.overflows = 0.0, dict[str, float](), 0

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        self.unread.append(report)
        self.seconds += report.seconds
        for unit, count in report.counts.items():
            self.counts[unit] = self.counts.get(unit, 0.0) + count
        if report.step % self.every == 0 or report.step == 1 or report.step == trainer.total_steps:
            self._read()
            trainer.record("step", self._step_values(trainer, report))
            self.window, self.seconds, self.counts = Tally(), 0.0, {}

    def on_evaluate_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        trainer.record("evaluation", {"scheduled": trainer.scheduled_evaluation, **metrics})

    def on_epoch_end(self, trainer: Any, epoch: int, metrics: dict[str, float]) -> None:
        self._read()
        means = {f"train_{name}": mean for name, mean in self.epoch.means(trainer.loss_weights).items()}
        trainer.record(
            "epoch", {"epoch": epoch, **means, "total_steps": trainer.total_steps, **trainer.position.totals}
        )
        self.epoch = Tally()

    def _read(self) -> None:
        """Add up the reports not yet read: one wait for the device, however many there are."""
        for report, means in zip(self.unread, _floats([report.losses for report in self.unread]), strict=True):
            for name, unit in report.units.items():
                for tally in (self.window, self.epoch):
                    tally.add(name, means[name], report.counts.get(unit, 0.0))
            self.overflows += report.skipped
        self.unread = []

    def _step_values(self, trainer: Any, report: StepReport) -> dict[str, Any]:
        values: dict[str, Any] = {**self.window.means(trainer.loss_weights), "learning_rate": report.learning_rate}
        values["gradient_norm"] = float(report.gradient_norm)
        values["clock"] = {"seconds": round(self.seconds, 4)} | {
            f"{unit}s_per_second": round(count / self.seconds, 1)
            for unit, count in self.counts.items()
            if count and self.seconds
        }
        if report.loss_scale is not None:
            values |= {"loss_scale": report.loss_scale, "overflows": self.overflows}
        return values

    def state_dict(self) -> dict[str, Any]:
        self._read()
        return {"window": self.window.sums, "epoch": self.epoch.sums, "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.window, self.epoch = Tally(state["window"]), Tally(state["epoch"])
        self.overflows = state["overflows"]


def _floats(losses: list[dict[str, torch.Tensor]]) -> list[dict[str, float]]:
    """The same dictionaries with numbers in place of tensors, read in one go."""
    tensors = [tensor for entry in losses for tensor in entry.values()]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [{name: next(numbers) for name in entry} for entry in losses]
