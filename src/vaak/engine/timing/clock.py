"""Seconds, by a clock that does not follow the time of day."""

import time


class Clock:
    """``lap`` gives the seconds since the lap before; 0 where a system sets even this clock back."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        elapsed, self.last = max(now - self.last, 0.0), now
        return elapsed
