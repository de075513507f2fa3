"""A warning where training waits for data, whether profiling was asked for or not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vaak.callbacks.profiling.shares import Circumstances, Profile, waiting_for_data
from vaak.core.callback import Callback, Run
from vaak.core.cores import cores_of_a_process

if TYPE_CHECKING:
    from vaak.core.report import StepReport

log = logging.getLogger("vaak")

WARM_UP = 3
LEAST_SECONDS = 5.0
"""Of training, before it is judged: shorter times say little."""


class WaitingForDataCallback(Callback):
    """Says once, with the remedy, that a tenth of the time or more is spent waiting for data.

    It looks every ``every`` steps, on the main process, which speaks for all. Where a profiler measures, that says it.
    """

    main_process_only = True

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.measures = self.said = False
        self.warm_until = 0
        self.measured = Profile()

    def on_fit_start(self, trainer: Run) -> None:
        if self.said or trainer.phases.running:
            return
        self.measures, self.measured = True, Profile()
        self.warm_until = trainer.position.step + WARM_UP
        trainer.phases.start()

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if not self.measures:
            return
        if report.step <= self.warm_until:
            if report.step == self.warm_until:
                trainer.phases.read()
            return
        if report.step % self.every == 0:
            self.measured.add(Profile(seconds=trainer.phases.read()))
            if self.measured.training_seconds >= LEAST_SECONDS:
                self._judge(trainer)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.measures:
            self._stop(trainer)

    def _judge(self, trainer: Run) -> None:
        shares, self.measured = self.measured.shares(), Profile()
        line = waiting_for_data(shares, Circumstances(trainer.num_workers, cores_of_a_process()))
        if line is not None:
            log.warning("%s", line)
            self.said = True
            self._stop(trainer)

    def _stop(self, trainer: Run) -> None:
        self.measures = False
        trainer.phases.stop()
