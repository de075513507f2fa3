"""Seconds, by a clock that does not follow the time of day."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """``lap`` gives the seconds since the lap before; 0 where a system sets even this clock back."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._aside = 0.0

    def lap(self) -> tuple[float, float]:
        """The seconds since the lap before, and how many of them were set ``aside``."""
        now = time.monotonic()
        elapsed, self.last = max(now - self.last, 0.0), now
        aside, self._aside = min(self._aside, elapsed), 0.0
        return elapsed, aside

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Set the time in this context aside: it is part of the lap, but not of the work that is measured."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._aside += max(time.monotonic() - begun, 0.0)
