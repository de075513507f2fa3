"""A callback that remembers what the steps of a run gave."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vaak.core.callback import Callback, Run
from vaak.core.report import StepReport
from vaak.engine.checkpoint.files import model_tensors
from vaak.engine.trainer import Trainer


class KilledError(BaseException):
    """Ends a run as a kill does: nothing more is saved."""


class Witness(Callback):
    """Remembers each step's losses and counts, and the weights after it.

    It asks for the end after step ``stop_at``; at ``kill_at`` it ends the run without a chance to save.
    """

    def __init__(self, stop_at: int | None = None, kill_at: int | None = None) -> None:
        self.stop_at, self.kill_at = stop_at, kill_at
        self.losses: dict[int, dict[str, float]] = {}
        self.counts: dict[int, dict[str, float]] = {}
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.gradients: dict[int, dict[str, Tensor]] = {}

    def watch_gradients(self, trainer: Trainer) -> None:
        """Remember what each step's optimizers are given, too."""

        def remember(*_: Any) -> None:
            given = self.gradients.setdefault(trainer.position.step + 1, {})
            for name, parameter in trainer.model.named_parameters():
                if parameter.grad is not None:
                    given[name] = parameter.grad.clone()

        for optimizer in trainer.state.optimizers:
            optimizer.register_step_pre_hook(remember)

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        self.losses[report.step] = {name: float(loss) for name, loss in report.losses.items()}
        self.counts[report.step] = dict(report.counts)
        self.weights[report.step] = {name: value.clone() for name, value in model_tensors(trainer.model).items()}
        if report.step == self.stop_at:
            trainer.request_stop("seen enough")
        if report.step == self.kill_at:
            raise KilledError
