"""The learning rate of every parameter group, as it changes."""

from __future__ import annotations

from typing import Any

from vaak.core.callback import Callback
from vaak.core.report import StepReport


class LRMonitorCallback(Callback):
    """Records each parameter group's rate every ``every`` steps, as ``learning_rates`` in ``metrics.jsonl``."""

    main_process_only = True

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step % self.every:
            return
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        trainer.record(
            "learning_rates", {f"learning_rate/{number}": group["lr"] for number, group in enumerate(groups)}
        )
