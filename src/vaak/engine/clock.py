"""Seconds, by a clock that never jumps."""

import time


class Clock:
    """``lap`` gives the seconds since the lap before."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        elapsed, self.last = now - self.last, now
        return elapsed
