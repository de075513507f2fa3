"""Ctrl-C and SIGTERM ask the run to stop after its step; a second Ctrl-C leaves at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from vaak.core.interrupts import in_order, leave_at_once


@contextlib.contextmanager
def stop_on_signal(request_stop: Callable[[str], None]) -> Iterator[None]:
    """Within this context, SIGINT and SIGTERM call ``request_stop`` with their name.

    Only a second Ctrl-C leaves at once: torchrun answers the first one by its own SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            leave_at_once()
        request_stop(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with in_order():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
