"""A few steps, operation by operation, as torch's profiler sees them; in a YAML it is ``training.profiling: trace``."""

from __future__ import annotations

import logging
import os
from typing import Any

from vaak.core.callback import Callback, Run, StepReport

log = logging.getLogger("vaak")

WAIT, WARM_UP, ACTIVE = 3, 2, 3
TRACED_BY = WAIT + WARM_UP + ACTIVE
"""Steps after which the profiler has done its work."""


class TraceCallback(Callback):
    """Writes RUN/trace/steps-A-to-B-rank-R.json.gz for ``active`` steps, after ``wait`` and ``warm_up`` others.

    Every rank writes its own. The profiler runs during these steps and the warm-up only, and changes no number.
    """

    def __init__(self, wait: int = WAIT, warm_up: int = WARM_UP, active: int = ACTIVE) -> None:
        self.wait, self.warm_up, self.active = wait, warm_up, active
        self.profiler: Any = None
        self.first = self.last = 0

    def on_fit_start(self, trainer: Run) -> None:
        from torch.profiler import profile, schedule

        self.first = trainer.position.step + self.wait + self.warm_up + 1
        self.profiler = profile(
            schedule=schedule(wait=self.wait, warmup=self.warm_up, active=self.active, repeat=1),
            on_trace_ready=lambda profiler: self._write(trainer, profiler),
            record_shapes=True,
        )
        self.profiler.start()

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if self.profiler is None:
            return
        self.last = report.step
        if report.step < self.first + self.active - 1:
            self.profiler.step()
        else:
            self.stop()

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.profiler is not None:
            self.stop()
            if self.last < self.first:
                log.info("profiling: the run ended before step %d, the first to be traced", self.first)

    def stop(self) -> None:
        """End the profiler, which has a trace of what it recorded written."""
        profiler, self.profiler = self.profiler, None
        profiler.stop()

    def _write(self, trainer: Run, profiler: Any) -> None:
        folder = trainer.directory / "trace"
        folder.mkdir(exist_ok=True)
        path = folder / f"steps-{self.first}-to-{self.last}-rank-{trainer.ranks.rank}.json.gz"
        temporary = path.with_name(f".{path.name}")
        profiler.export_chrome_trace(str(temporary))
        os.replace(temporary, path)
        log.info("trace of steps %d to %d: %s (open it in https://ui.perfetto.dev)", self.first, self.last, path)
