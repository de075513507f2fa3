"""Watches memory pressure, and acts before memory runs out.

    band            what is done on entering it
    low             nothing
    moderate        garbage is collected
    high            the caches are emptied, too
    critical        the same, and a warning; on a CPU, where that wasn't enough for the next step, microbatches are
                    computed in more chunks

A GPU may be full: its allocator raises an error where a step really doesn't fit, and the engine then computes that step
in chunks. So nothing is split there beforehand, which would change the draws of a healthy run. On a CPU the kernel
kills the process without an error.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence

import torch

from vaak.core.machine import GIB
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.memory import (
    Band,
    MemoryReading,
    choose_thresholds,
    classify_pressure,
    free_memory,
    is_out_of_memory,
    read_memory,
    read_peak,
    reset_peak,
)

log = logging.getLogger("vaak")

# How much a split must lower the pressure to be worth another.
LEAST_EFFECT = 0.01


class AdaptiveMemoryManager(Callback):
    """Reads the memory after steps and acts when pressure rises into a band.

    It does so after the first step, and later within the time that ``overhead`` allows.

    ``thresholds`` are the fractions of the memory from which pressure is moderate, high and critical; None takes the
    device's own. ``shrink`` lets it ask for smaller microbatches, which it does only on a CPU where this process holds
    at least ``own_share`` of what is used, and again only when the last cut has lowered the pressure. All it does
    counts as its own time, of which it takes no more than the fraction ``overhead``: after an expensive clean-up it
    waits for long. ``cleanup_interval`` has it release memory at this interval of steps, whatever that takes.

    Readable at any time: ``pressure`` (the fraction in use at the last reading), ``band``, ``highest`` (the greatest
    pressure), ``peak`` (the most bytes this process used), ``looks`` and ``measured_overhead``. With the last step they
    are written down as a record ``memory``.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(
        self,
        thresholds: Sequence[float] | None = None,
        shrink: bool = True,
        own_share: float = 0.5,
        overhead: float = 0.005,
        cleanup_interval: int | None = None,
    ) -> None:
        self.given, self.shrink, self.own_share, self.overhead = thresholds, shrink, own_share, overhead
        self.cleanup_interval = cleanup_interval
        self.device = torch.device("cpu")
        self.thresholds = choose_thresholds(self.device, thresholds)
        self.pressure, self.highest, self.band = 0.0, 0.0, Band.LOW
        self.peak, self.limit, self.looks = 0, 0, 0
        self.begun, self.spent = 0.0, 0.0
        # Chunks and pressure when a finer cut was asked for.
        self.last_cut: tuple[int, float] | None = None

    @property
    def may_cut(self) -> bool:
        """Whether it may ask for smaller microbatches here: where nobody would be told that memory has run out."""
        return self.shrink and self.device.type == "cpu"

    @property
    def measured_overhead(self) -> float:
        """The fraction of the time since training began that was spent on watching."""
        return self.spent / max(self.clock() - self.begun, 1e-9)

    def on_fit_start(self, trainer: Run) -> None:
        self.device = trainer.ranks.device
        self.thresholds = choose_thresholds(self.device, self.given)
        self.begun = self.clock()
        reset_peak(self.device)
        self.spent += self.clock() - self.begun

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        now = self.clock()
        if self.cleanup_interval is not None and report.step % self.cleanup_interval == 0:
            free_memory(self.device)
            self.spent += self.clock() - now
            now = self.clock()
        if not self.looks or self.spent <= self.overhead * (now - self.begun):
            # The first is what short runs report.
            self.look(trainer, report.step)
            self.spent += self.clock() - now
        if report.step == trainer.total_steps:
            # Like times, these differ between any two runs.
            trainer.record("memory", {"clock": self.figures()})

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None:
        """The peak of an evaluation isn't caused by the microbatches."""
        now = self.clock()
        self.peak = max(self.peak, read_peak(self.device))
        reset_peak(self.device)
        self.spent += self.clock() - now

    def on_exception(self, trainer: Run, error: BaseException) -> None:
        if is_out_of_memory(error):
            self.emergency_cleanup()

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.looks:
            log.info(
                "memory: %.2f GiB by this process at most, %.0f %% full at worst; watching it took %.2f %% of the time",
                self.peak / GIB,
                100 * self.highest,
                100 * self.measured_overhead,
            )

    def emergency_cleanup(self) -> None:
        """Release all memory that can be released, now."""
        free_memory(self.device)

    def look(self, trainer: Run, step: int) -> None:
        """Read the memory once and act on it; ``step`` has just been taken."""
        reading = read_memory(self.device)
        self.looks += 1
        self.pressure, self.limit = reading.pressure, reading.limit
        self.highest = max(self.highest, reading.pressure)
        self.peak = max(self.peak, read_peak(self.device))
        before, self.band = self.band, classify_pressure(reading.pressure, self.thresholds, self.band)
        if self.band > before:
            if self.band is Band.MODERATE:
                gc.collect()
            else:
                free_memory(self.device)
            if self.band is Band.CRITICAL:
                what_then = "; where that isn't enough, batches are computed in smaller chunks" if self.may_cut else ""
                if reading.own_share < self.own_share:
                    what_then = "; most of it belongs to other processes: end some, or train elsewhere"
                log.warning("%s: caches are emptied%s", _usage_in_words(reading), what_then)
        # Critical since the last look, at which the caches were emptied: that wasn't enough.
        elif self.band is Band.CRITICAL:
            self._split_microbatches(trainer, step, reading)
        else:
            self.last_cut = None
        reset_peak(self.device)

    def _split_microbatches(self, trainer: Run, step: int, reading: MemoryReading) -> None:
        """Ask for smaller chunks, unless they would be no help, or the last ones haven't been tried yet."""
        if not self.may_cut or reading.own_share < self.own_share:
            return
        chunks = trainer.count_chunks()
        if self.last_cut is not None:
            chunks_then, pressure_then = self.last_cut
            if chunks <= chunks_then or reading.pressure > pressure_then - LEAST_EFFECT:
                return
        self.last_cut = chunks, reading.pressure
        trainer.split_microbatches(_usage_in_words(reading))

    def figures(self) -> dict[str, float]:
        """Return the report on the whole run, in bytes and fractions."""
        return {
            "memory_peak_bytes": self.peak,
            "memory_limit_bytes": self.limit,
            "memory_pressure": self.pressure,
            "memory_pressure_highest": self.highest,
            "memory_overhead": self.measured_overhead,
        }


def _usage_in_words(reading: MemoryReading) -> str:
    parts = f"{reading.used / GIB:.1f} of {reading.limit / GIB:.1f} GiB"
    return f"memory is {100 * reading.pressure:.0f} % full ({parts}, {reading.own / GIB:.1f} GiB by this process)"
