"""Phases add up to the time that passes, by the clock and by a device's events, and cost nothing when nobody asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toy import next_data, toy_trainer
from vaak.engine.phases import Phases

CPU = torch.device("cpu")
NAMES = ("loading", "forward", "backward", "optimizer")


class Clock:
    """A clock that goes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


class Device:
    """A device that runs asynchronously: work and events queue up, and run when someone waits for them."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.time, self.made = clock, clock(), 0
        self.queue: list[Any] = []

    def work(self, seconds: float) -> None:
        self.queue.append((self.clock(), seconds))

    def event(self) -> Event:
        self.made += 1
        return Event(self)

    def wait(self) -> None:
        """Do all of the queue; each thing begins when the one before has ended, and not before it was queued."""
        for queued, what in self.queue:
            self.time = max(self.time, queued)
            if isinstance(what, Event):
                what.reached = self.time
            else:
                self.time += what
        self.queue.clear()
        self.clock.now = max(self.clock.now, self.time)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.reached = device, float("nan")

    def record(self) -> None:
        self.device.queue.append((self.device.clock(), self))

    def synchronize(self) -> None:
        self.device.wait()

    def elapsed_time(self, end_event: Event) -> float:
        return 1000 * (end_event.reached - self.reached)


def running(device: torch.device, **options: Any) -> Phases:
    phases = Phases(device, **options)
    phases.start()
    return phases


@given(st.lists(st.tuples(st.sampled_from((*NAMES, "gap")), st.integers(0, 50)), max_size=30))
def test_each_phase_has_its_time_and_the_gap_has_the_rest(parts: list[tuple[str, int]]):
    clock = Clock()
    phases = running(CPU, clock=clock)
    for name, seconds in parts:
        if name == "gap":
            clock.work(seconds)
        else:
            with phases.measure(name):
                clock.work(seconds)
    read = phases.read()
    for name in {"gap", *(name for name, _ in parts)}:
        assert read[name] == pytest.approx(sum(seconds for phase, seconds in parts if phase == name), abs=1e-9)
    assert sum(read.values()) == pytest.approx(clock() - 100.0)
    assert set(phases.read().values()) <= {0.0}, "a reading starts from zero"


def test_a_phase_that_fails_is_measured_and_the_failure_goes_on():
    clock = Clock()
    phases = running(CPU, clock=clock)

    def tear() -> None:
        with phases.measure("forward"):
            clock.work(2.0)
            raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        tear()
    assert phases.read() == {"forward": 2.0, "gap": 0.0}


def test_what_is_measured_again_allocates_nothing_new():
    phases = running(CPU)
    assert phases.measure("forward") is phases.measure("forward")


def test_on_a_device_that_runs_behind_data_count_only_where_they_let_it_stand_still():
    clock = Clock()
    device = Device(clock)
    phases = running(CPU, clock=clock, new_event=device.event)
    for loading_seconds in (1.0, 5.0):  # the device has 3 seconds to do in each step
        with phases.measure("loading"):
            clock.work(loading_seconds)
        with phases.measure("forward"):
            device.work(1.0)
        with phases.measure("backward"):
            device.work(2.0)
    read = phases.read()
    assert read["forward"] == pytest.approx(2.0)
    assert read["backward"] == pytest.approx(4.0)
    assert read["loading"] == pytest.approx(1.0 + 2.0), "3 of the second step's 5 seconds passed while it worked"
    assert sum(read.values()) == pytest.approx(clock() - 100.0)


def test_events_are_used_again_once_they_were_read():
    clock = Clock()
    device = Device(clock)
    phases = running(CPU, clock=clock, new_event=device.event)
    for _ in range(3):
        for _ in range(4):
            with phases.measure("forward"):
                device.work(0.5)
        assert phases.read()["forward"] == pytest.approx(2.0)
    assert device.made == 8


def test_a_step_names_its_phases_only_where_someone_measures(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    assert not trainer.phases.running
    assert trainer.phases.measure("forward") is trainer.phases.measure("backward"), "one context that does nothing"
    trainer.take_step(next_data(trainer))
    assert trainer.phases.phases == {}
    trainer.phases.start()
    trainer.take_step(next_data(trainer))
    read = trainer.phases.read()
    assert set(read) == {"forward", "backward", "optimizer", "gap"}
    assert min(read.values()) > 0
    trainer.phases.stop()
    assert trainer.phases.measure("forward") is trainer.phases.measure("backward")
