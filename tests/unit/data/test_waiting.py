"""A wait for a batch that never comes ends soon after a signal, and only then."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from vaak.core.errors import UserError
from vaak.data import waiting
from vaak.data.waiting import WaitLimit, waited_for
from vaak.engine.trainer import stop_on_signal


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SLOW_LOADING_SECONDS", 0.3)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.2)


def read_carelessly(descriptor: int) -> None:
    """Read, and take every error for one of the example."""
    try:
        os.read(descriptor, 1)
    except Exception:
        pytest.fail("it was taken for a bad example")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_read_that_blocks_ends_after_a_signal(number: signal.Signals) -> None:
    """As of a FIFO, or of a worker that was stopped; code that catches every Exception doesn't catch this."""
    reading, writing = os.pipe()
    asked: list[str] = []
    with stop_on_signal(asked.append):
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        with pytest.raises(UserError, match=f"no batch came within .* after {number.name}"), waited_for():
            read_carelessly(reading)
    assert asked[0] == number.name
    os.close(reading)
    os.close(writing)


def test_a_read_ends_although_the_first_signal_for_it_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that arrives just before the call that blocks."""
    reading, writing = os.pipe()
    sent: list[int] = []

    def lose_the_first(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(signal, "pthread_kill", lose_the_first)
    # The read ends in any case, so that a failure isn't a test without an end.
    relief = threading.Timer(5, os.write, (writing, b"x"))
    relief.start()
    with stop_on_signal(lambda name: None):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(UserError, match="no batch came within"), waited_for():
            read_carelessly(reading)
    relief.cancel()
    relief.join()
    os.close(reading)
    os.close(writing)


def test_a_batch_that_comes_in_time_and_work_that_is_no_wait_are_left_alone() -> None:
    asked: list[str] = []
    with stop_on_signal(asked.append):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(4):
            with waited_for():
                time.sleep(0.15)
        time.sleep(0.5)
    assert asked == ["SIGTERM"]


def test_without_a_signal_a_wait_has_no_limit() -> None:
    with WaitLimit(), waited_for():
        time.sleep(0.5)
