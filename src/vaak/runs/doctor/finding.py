"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["ok", "warning", "problem"]

GIB = 1 << 30


@dataclass(frozen=True)
class DoctorFinding:
    """What was looked at, what was seen, and what to do about it.

    ``problem`` means that nothing (or not this configuration) can be trained here; ``warning``, that something will be
    slow, missing or other than one may think.
    """

    about: str
    name: str
    mark: Mark
    said: str
    advice: str = ""


def size(number: float) -> str:
    """Bytes for a reader.

    >>> size(3.5 * 2**30), size(64 * 2**20)
    ('3.5 GiB', '64.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
