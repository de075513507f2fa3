"""Seconds, by a clock that does not follow the time of day."""

import time


class Clock:
    """``lap`` gives the seconds since the lap before; never less than none, should a system set even this clock back."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        elapsed, self.last = max(now - self.last, 0.0), now
        return elapsed
