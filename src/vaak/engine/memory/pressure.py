"""How full a memory is, in four bands, each device with its own.

CUDA's bands are the TTS trainer's. MPS's are lower: the rest of the system uses the same memory, and slows down by
swapping long before an allocation fails. A CPU's are higher, since a machine in use is never nearly empty; but there
the kernel kills without an error, so the last band begins while something can still be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise

import torch

from vaak.core.errors import UserError

Thresholds = tuple[float, float, float]

THRESHOLDS: dict[str, Thresholds] = {
    "cuda": (0.60, 0.75, 0.85),
    "mps": (0.55, 0.70, 0.80),
    "cpu": (0.70, 0.80, 0.90),
}
"""By device: the fractions of the memory from which pressure is moderate, high and critical."""

MARGIN = 0.03  # so far below its threshold must pressure fall before its band is left


class Band(IntEnum):
    """Low to critical; a higher band is a greater number."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


def thresholds_of(device: torch.device, given: Sequence[float] | None = None) -> Thresholds:
    """The thresholds given, or else the device's own.

    Raises UserError where those given are not three increasing fractions.
    """
    if given is None:
        return THRESHOLDS.get(device.type, THRESHOLDS["cuda"])
    edges = (0.0, *given, 1.0)
    are_numbers = all(isinstance(part, int | float) for part in edges)
    if len(given) != 3 or not are_numbers or any(lower >= upper for lower, upper in pairwise(edges)):
        raise UserError(
            f"training.memory.thresholds are {list(given)}: give three increasing fractions, as in [0.6, 0.75, 0.85]"
        )
    moderate, high, critical = given
    return moderate, high, critical


def band_of(pressure: float, thresholds: Thresholds, before: Band = Band.LOW) -> Band:
    """The band of a pressure; one that was reached ``before`` is left only by ``MARGIN`` below its threshold.

    >>> band_of(0.8, THRESHOLDS["cuda"]), band_of(0.85, THRESHOLDS["cuda"]), band_of(0.86, THRESHOLDS["cuda"])
    (<Band.HIGH: 2>, <Band.HIGH: 2>, <Band.CRITICAL: 3>)
    >>> band_of(0.74, THRESHOLDS["cuda"], before=Band.HIGH), band_of(0.71, THRESHOLDS["cuda"], before=Band.HIGH)
    (<Band.HIGH: 2>, <Band.MODERATE: 1>)
    """
    moderate, high, critical = thresholds
    band = Band((pressure >= moderate) + (pressure >= high) + (pressure > critical))
    while band < before and pressure < thresholds[before - 1] - MARGIN:
        before = Band(before - 1)
    return max(band, before)
