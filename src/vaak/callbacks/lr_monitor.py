"""The learning rate of every parameter group, as it changes."""

from __future__ import annotations

from vaak.core.callback import Callback, Run, StepReport


class LRMonitorCallback(Callback):
    """Records each parameter group's rate every ``every`` steps, as ``learning_rates`` in ``metrics.jsonl``."""

    main_process_only = True

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step % self.every == 0:
            rates = enumerate(trainer.learning_rates())
            trainer.record("learning_rates", {f"learning_rate/{number}": rate for number, rate in rates})
