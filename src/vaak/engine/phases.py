"""Where the time of training goes: seconds in each named phase of a step, and in the gap between them.

    ──loading──forward──backward──optimizer── gap ──loading── …        gap = all time that is in no phase

On a CPU a phase is timed by a clock that does not follow the time of day. CUDA and MPS run asynchronously, so events
are put among the device's work and read later, in one go. A phase is then the time that passes on the device, and
waiting for data counts only where it leaves the device idle.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A mark in the device's work, as torch's events are."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this mark to a later one."""
        ...


class Phases:
    """Measures phases by name, between ``start`` and ``stop``; at other times measuring costs next to nothing.

    ``new_event`` makes the device's events; None times by the clock, where the device works in step with the program.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        clock: Callable[[], float] = time.perf_counter,
        new_event: Callable[[], Event] | None = None,
    ) -> None:
        self.clock = clock
        self.new_event = new_event
        if new_event is None and device.type == "cuda":
            self.new_event = lambda: torch.cuda.Event(enable_timing=True)
        elif new_event is None and device.type == "mps":
            self.new_event = lambda: torch.mps.event.Event(enable_timing=True)
        self.phases: dict[str, _TimedByClock | _TimedByEvents] = {}
        self.running = False
        self.read_at = clock()

    def start(self) -> None:
        """Measure from now on."""
        self.running, self.phases, self.read_at = True, {}, self.clock()

    def stop(self) -> None:
        """Measure no more."""
        self.running = False

    def measure(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Count the time in this context as phase ``name``. Phases follow one another and don't nest."""
        if not self.running:
            return _NOT_MEASURED
        phase = self.phases.get(name)
        if phase is None:
            phase = _TimedByClock(self.clock) if self.new_event is None else _TimedByEvents(self.new_event)
            self.phases[name] = phase
        return phase

    def read(self) -> dict[str, float]:
        """Seconds in each phase since the last reading, and in the ``gap``; together they are all the time since.

        Waits for the device. Between phases only.
        """
        seconds = {name: phase.take() for name, phase in self.phases.items()}
        now = self.clock()
        elapsed, self.read_at = now - self.read_at, now
        return {**seconds, "gap": max(0.0, elapsed - sum(seconds.values()))}


_NOT_MEASURED = contextlib.nullcontext()


class _TimedByClock(contextlib.AbstractContextManager[None]):
    """One phase by the program's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.begun = self.seconds = 0.0

    def __enter__(self) -> None:
        self.begun = self.clock()

    def __exit__(self, *_: object) -> None:
        self.seconds += self.clock() - self.begun

    def take(self) -> float:
        """Return the seconds measured, which begin at 0 again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class _TimedByEvents(contextlib.AbstractContextManager[None]):
    """One phase by pairs of events, which are used again once they were read."""

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self.new_event = new_event
        self.recorded: list[tuple[Event, Event]] = []
        self.free: list[tuple[Event, Event]] = []

    def __enter__(self) -> None:
        self.recorded.append(self.free.pop() if self.free else (self.new_event(), self.new_event()))
        self.recorded[-1][0].record()

    def __exit__(self, *_: object) -> None:
        self.recorded[-1][1].record()

    def take(self) -> float:
        """Return the seconds measured, which begin at 0 again; waits for the last event."""
        pairs, self.recorded = self.recorded, []
        self.free += pairs
        if pairs:
            pairs[-1][1].synchronize()
        return sum(begin.elapsed_time(end) for begin, end in pairs) / 1000


class Clock:
    """``lap`` gives the seconds since the lap before; 0 where a system sets even this clock back."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._excluded = self._gap = 0.0

    def lap(self) -> tuple[float, float, float]:
        """The seconds since the lap before, how many of them were ``excluded``, and how many passed in a ``gap``."""
        now = time.monotonic()
        elapsed, self.last = max(now - self.last, 0.0), now
        excluded, gap = min(self._excluded, elapsed), min(self._gap, elapsed)
        self._excluded = self._gap = 0.0
        return elapsed, excluded, gap

    @contextlib.contextmanager
    def gap(self) -> Iterator[None]:
        """Count the time in this context as the wait for the next batch."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._gap += max(time.monotonic() - begun, 0.0)

    @contextlib.contextmanager
    def exclude(self) -> Iterator[None]:
        """Exclude the time in this context: it is part of the lap, but not of the work that is measured."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._excluded += max(time.monotonic() - begun, 0.0)
