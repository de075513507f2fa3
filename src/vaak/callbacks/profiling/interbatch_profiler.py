"""Where the time of training goes, and what to do about it; in a YAML it is ``training.profiling: true``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vaak.callbacks.profiling.shares import Circumstances, Profile, verdict
from vaak.core.callback import Callback, Run
from vaak.core.cores import cores_of_a_process
from vaak.core.errors import UserError
from vaak.core.report import rate_name
from vaak.core.storage.files import write_json

if TYPE_CHECKING:
    from vaak.core.report import StepReport
    from vaak.engine.cost.flops import Work

log = logging.getLogger("vaak")


class InterbatchProfiler(Callback):
    """Measures loading, forward, backward, optimizer and the gap between them, but for the first ``warm_up`` steps.

    At least one step warms up: preparations before it are not a gap between steps.
    Every ``every`` steps it writes a ``profile`` record; at the end it logs a verdict, and RUN/profile.json keeps it
    with the figures of all steps measured. ``peak_tflops`` is the most that the device can do, where Vaak doesn't know.
    Of several ranks, each interval shows the one that works longest, for which the others wait.
    """

    def __init__(self, every: int = 50, warm_up: int = 3, peak_tflops: float | None = None) -> None:
        self.every, self.warm_up, self.peak_tflops = every, warm_up, peak_tflops
        self.works = False
        self.warm_until = 0
        self.counts: dict[str, float] = {}
        self.steps = 0
        self.whole = Profile()
        self.work: Work | None = None

    def on_fit_start(self, trainer: Run) -> None:
        if trainer.phases.running:
            raise UserError("two profilers measure one run: leave interbatch_profiler out of training.callbacks")
        self.warm_until = trainer.position.step + max(1, self.warm_up)
        if trainer.ranks.is_main:
            self.work = trainer.count_work(self.peak_tflops)
        self.works = True
        trainer.phases.start()

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step <= self.warm_until:
            if report.step == self.warm_until:
                trainer.phases.read()
            return
        self.steps += 1
        for unit, count in report.counts.items():
            self.counts[unit] = self.counts.get(unit, 0.0) + count
        if report.step % self.every == 0 or report.step == trainer.total_steps:
            self._record(trainer)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if not self.works:
            return
        self.works = False
        trainer.phases.stop()
        if trainer.ranks.is_main:
            self._conclude(trainer)

    def _record(self, trainer: Run) -> None:
        """Record the steps since the last record; every rank comes here at the same steps."""
        seconds = max(trainer.ranks.gather(trainer.phases.read()), key=_busy_seconds)
        window = Profile(self.steps, seconds, self.counts)
        self.steps, self.counts = 0, {}
        self.whole.add(window)
        figures = {name: round(value, 6) for name, value in window.figures(self._mfu(window)).items()}
        trainer.record("profile", {"steps": window.steps, "clock": figures})

    def _conclude(self, trainer: Run) -> None:
        if not self.whole.steps:
            what = "profiling: nothing was measured, for the run ended before step %d, or before the interval after it"
            log.info(what, self.warm_until + 1)
            return
        circumstances = Circumstances(
            num_workers=trainer.num_workers,
            cores=cores_of_a_process(),
            padding_waste=trainer.padding_waste,
            world_size=trainer.ranks.world_size,
            mfu=self._mfu(self.whole),
        )
        lines = verdict(self.whole.shares(), circumstances)
        write_json(trainer.directory / "profile.json", self.whole.as_json(circumstances.mfu, lines))
        for line in lines:
            log.info("profile of %d steps: %s", self.whole.steps, line)

    def _mfu(self, profile: Profile) -> float | None:
        """The model's operations as a fraction of what the devices could do."""
        if self.work is None:
            return None
        return profile.rates().get(rate_name(self.work.unit), 0.0) * self.work.seconds


def _busy_seconds(seconds: dict[str, float]) -> float:
    """A rank's time without what it may have spent waiting for others."""
    return sum(seconds.get(name, 0.0) for name in ("loading", "forward", "backward"))
