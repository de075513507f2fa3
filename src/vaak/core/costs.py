"""Where the time of making an example goes: parts of it time themselves while someone asks, and cost nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

_seconds: ContextVar[dict[str, float] | None] = ContextVar("seconds by part", default=None)


@contextlib.contextmanager
def time_part(part: str) -> Iterator[None]:
    """Within this context, time counts for a part, where ``collect_costs`` is asking."""
    found = _seconds.get()
    if found is None:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        found[part] = found.get(part, 0.0) + time.perf_counter() - begin


@contextlib.contextmanager
def collect_costs() -> Iterator[dict[str, float]]:
    """Within this context, the seconds that each part has taken so far, by its name."""
    found: dict[str, float] = {}
    token = _seconds.set(found)
    try:
        yield found
    finally:
        _seconds.reset(token)
