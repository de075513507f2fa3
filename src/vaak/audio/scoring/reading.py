"""What is scored, and where, from files; each has to say something."""

from __future__ import annotations

from pathlib import Path

from vaak.audio.formats.rttm import read_rttm
from vaak.audio.formats.uem import read_uem
from vaak.audio.labelled import Segment
from vaak.core.errors import DataError


def read_reference(path: str | Path) -> dict[str, list[Segment]]:
    """The segments of an RTTM file or folder, by recording. Raises DataError if there are none: nothing is scored."""
    found = read_rttm(path)
    if not found:
        raise DataError(f"{path} is empty: it has no line SPEAKER; give the file of the reference")
    return found


def read_scored_regions(path: str | Path) -> dict[str, list[tuple[float, float]]]:
    """The parts that a UEM file or folder names, by recording. Raises DataError if there are none."""
    found = read_uem(path)
    if not found:
        raise DataError(f"{path} is empty: it has no line of a UEM (recording channel start end); give another file")
    return found
