"""Where the time of training goes, and what to do about it: shares by phase, rates and a verdict.

``InterbatchProfiler`` measures where it was asked for (in a YAML ``training.profiling: true``).
``WaitingForDataCallback`` warns in every run where training waits for data. ``TraceCallback`` records a few steps,
operation by operation, as torch's profiler sees them (in a YAML ``training.profiling: trace``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vaak.core.errors import UserError
from vaak.core.machine import count_own_cores
from vaak.core.storage.files import write_json
from vaak.core.storage.links import require_no_link
from vaak.engine.callback import Callback, Run, rate_name

if TYPE_CHECKING:
    from vaak.engine.callback import ForwardWork, StepReport

log = logging.getLogger("vaak")

STEP_PHASES = ("loading", "forward", "backward", "optimizer", "gap")
"""The phases of training; others (evaluation, saving) are measured but not part of its time."""
MUCH_LOADING = MUCH_GAP = 0.10
MUCH_OPTIMIZER = MUCH_PADDING = 0.25
LITTLE_MFU = 0.20


@dataclass
class Profile:
    """Seconds by phase over some steps, and what the steps counted over all ranks."""

    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, other: Profile) -> None:
        """Add the steps of another profile."""
        self.steps += other.steps
        for mine, its in ((self.seconds, other.seconds), (self.counts, other.counts)):
            for name, value in its.items():
                mine[name] = mine.get(name, 0.0) + value

    @property
    def training_seconds(self) -> float:
        """Seconds spent in training steps, without evaluations and checkpoints."""
        return sum(self.seconds.get(name, 0.0) for name in STEP_PHASES)

    def shares(self) -> dict[str, float]:
        """Return the fraction of the training time that each phase took; they add up to 1."""
        whole = self.training_seconds
        return {name: self.seconds.get(name, 0.0) / whole if whole else 0.0 for name in STEP_PHASES}

    def rates(self) -> dict[str, float]:
        """``tokens_per_second``, ``examples_per_second``: each unit's count over the training time."""
        whole = self.training_seconds
        return {rate_name(unit): count / whole for unit, count in self.counts.items() if count and whole}

    def figures(self, mfu: float | None) -> dict[str, float]:
        """Return seconds, shares and rates in one flat dictionary, by the names of a record."""
        seconds = {f"{name}_seconds": value for name, value in self.seconds.items()}
        values = {"seconds": self.training_seconds, **self.shares(), **seconds, **self.rates()}
        return values if mfu is None else values | {"mfu": mfu}

    def as_json(self, mfu: float | None, lines: list[str]) -> dict[str, Any]:
        """Return the content of RUN/profile.json, with the ``lines`` of the verdict."""
        parts = {"seconds": self.seconds, "shares": self.shares(), "rates": self.rates()}
        return {"steps": self.steps, **parts, "mfu": mfu, "verdict": lines}


@dataclass(frozen=True)
class Circumstances:
    """The circumstances that advice depends on; ``cores`` are those of each process, ``mfu`` None if unknown."""

    num_workers: int
    cores: int
    padding_waste: float = 0.0
    world_size: int = 1
    mfu: float | None = None


def verdict(shares: dict[str, float], circumstances: Circumstances) -> list[str]:
    """Return a line for each bottleneck, with its remedy, the most costly first.

    >>> shares = {"loading": 0.62, "forward": 0.12, "backward": 0.2, "optimizer": 0.05, "gap": 0.01}
    >>> verdict(shares, Circumstances(num_workers=0, cores=8))
    ['62 % of the time is spent waiting for data: raise training.performance.num_workers (now 0)']
    """
    found = sorted(_findings(shares, circumstances), key=lambda finding: -finding[0])
    busy = f"the device is busy: {_percent(shares['forward'] + shares['backward'])} forward and backward"
    return [line for _, line in found] or [busy]


def waiting_for_data(shares: dict[str, float], circumstances: Circumstances) -> str | None:
    """Return a line that says that training waits for data, and what to do; None if the time isn't worth a line."""
    if shares["loading"] < MUCH_LOADING:
        return None
    waited, workers = f"{_percent(shares['loading'])} of the time is spent waiting for data", circumstances.num_workers
    if workers < circumstances.cores:
        return f"{waited}: raise training.performance.num_workers (now {workers})"
    reason = f"num_workers is {workers} already, with {circumstances.cores} core(s) for each process"
    remedy = "raise prefetch_factor, use training.batching bucketed, or do more of the work beforehand"
    return f"{waited}: {reason}; {remedy}"


def _findings(shares: dict[str, float], circumstances: Circumstances) -> Iterator[tuple[float, str]]:
    """Yield each finding worth a line, with the share of the time that it costs."""
    working = shares["forward"] + shares["backward"]
    if (waiting := waiting_for_data(shares, circumstances)) is not None:
        yield shares["loading"], waiting
    if shares["gap"] >= MUCH_GAP:
        lost = f"{_percent(shares['gap'])} of the time passes between the parts of a step"
        advice = "raise training.logging.interval, drop callbacks, or make the microbatches larger"
        yield shares["gap"], f"{lost}: {advice}{_or_ranks(circumstances)}"
    if shares["optimizer"] >= MUCH_OPTIMIZER:
        updating = f"{_percent(shares['optimizer'])} of the time is spent in the optimizer"
        advice = (
            "raise training.batch_size or gradient_accumulation_steps, or use an optimizer with fused kernels (adamw)"
        )
        yield shares["optimizer"], f"{updating}: {advice}{_or_ranks(circumstances)}"
    if circumstances.padding_waste >= MUCH_PADDING:
        padding = f"{_percent(circumstances.padding_waste)} of a batch is padding"
        advice = "use training.batching bucketed or packed"
        yield circumstances.padding_waste * working, f"{padding}: {advice}"
    if circumstances.mfu is not None and circumstances.mfu < LITTLE_MFU and working >= 0.5:
        little = f"the device does {_percent(circumstances.mfu)} of what it could (MFU)"
        advice = "raise training.batch_size, use mixed_precision bf16 or performance.compile"
        yield working * (1 - circumstances.mfu) / 2, f"{little}: {advice}"


def _or_ranks(circumstances: Circumstances) -> str:
    return "; or it waits for other processes" if circumstances.world_size > 1 else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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
        self.work: ForwardWork | None = None

    def on_fit_start(self, trainer: Run) -> None:
        if trainer.phases.running:
            raise UserError("two profilers measure one run: leave interbatch_profiler out of training.callbacks")
        self.warm_until = trainer.position.step + max(1, self.warm_up)
        self.work = trainer.count_work(self.peak_tflops)
        self.works = True
        trainer.phases.start()

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step <= self.warm_until:
            if report.step == self.warm_until:
                # Reading resets the phases, so the warm-up isn't measured.
                trainer.phases.read()
            return
        self.steps += 1
        for unit, count in report.counts.items():
            self.counts[unit] = self.counts.get(unit, 0.0) + count
        if report.step % self.every == 0 or report.step == trainer.total_steps:
            # every rank comes here at the same steps; the slowest is found without what it may wait for others
            ranks = trainer.ranks.gather(trainer.phases.read())
            seconds = max(ranks, key=lambda one: sum(one.get(name, 0.0) for name in ("loading", "forward", "backward")))
            window = Profile(self.steps, seconds, self.counts)
            self.steps, self.counts = 0, {}
            self.whole.add(window)
            metrics = {name: round(value, 6) for name, value in window.figures(self._mfu(window)).items()}
            trainer.record("profile", {"steps": window.steps, "clock": metrics})

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if not self.works:
            return
        self.works = False
        trainer.phases.stop()
        if not trainer.ranks.is_main:
            return
        if not self.whole.steps:
            what = "profiling: nothing was measured, for the run ended before step %d, or before the interval after it"
            log.info(what, self.warm_until + 1)
            return
        circumstances = Circumstances(
            num_workers=trainer.num_workers,
            cores=count_own_cores(),
            padding_waste=trainer.padding_waste,
            world_size=trainer.ranks.world_size,
            mfu=self._mfu(self.whole),
        )
        lines = verdict(self.whole.shares(), circumstances)
        write_json(trainer.directory / "profile.json", self.whole.as_json(circumstances.mfu, lines))
        for line in lines:
            log.info("profile of %d steps: %s", self.whole.steps, line)

    def _mfu(self, profile: Profile) -> float | None:
        """Return the model's operations as a fraction of what the devices could do."""
        if self.work is None:
            return None
        return profile.rates().get(rate_name(self.work.unit), 0.0) * self.work.seconds


WARM_UP = 3
LEAST_SECONDS = 5.0
"""Seconds of training before it is judged: shorter times say little."""


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
                # Reading resets the phases, so the warm-up isn't measured.
                trainer.phases.read()
            return
        if report.step % self.every == 0:
            self.measured.add(Profile(seconds=trainer.phases.read()))
            if self.measured.training_seconds >= LEAST_SECONDS:
                shares, self.measured = self.measured.shares(), Profile()
                line = waiting_for_data(shares, Circumstances(trainer.num_workers, count_own_cores()))
                if line is not None:
                    log.warning("%s", line)
                    self.said = True
                    self._stop(trainer)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.measures:
            self._stop(trainer)

    def _stop(self, trainer: Run) -> None:
        self.measures = False
        trainer.phases.stop()


TRACE_WAIT, TRACE_WARM_UP, TRACE_ACTIVE = 3, 2, 3
TRACED_BY = TRACE_WAIT + TRACE_WARM_UP + TRACE_ACTIVE
"""Steps after which a trace is whole."""


class TraceCallback(Callback):
    """Writes RUN/trace/steps-A-to-B-rank-R.json.gz for ``active`` steps, after ``wait`` and ``warm_up`` others.

    Every rank writes its own. The profiler runs during these steps and the warm-up only, and changes no number.
    """

    def __init__(self, wait: int = TRACE_WAIT, warm_up: int = TRACE_WARM_UP, active: int = TRACE_ACTIVE) -> None:
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
        require_no_link(temporary)
        profiler.export_chrome_trace(str(temporary))
        os.replace(temporary, path)
        log.info("trace of steps %d to %d: %s (open it in https://ui.perfetto.dev)", self.first, self.last, path)
