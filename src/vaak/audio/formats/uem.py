"""UEM: the scored regions of recordings, one per line.

recording channel start end

Source: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from vaak.audio.formats.annotation_lines import as_field, as_seconds, read_folder, read_lines
from vaak.core.errors import DataError
from vaak.core.storage.files import write_text

NUM_FIELDS = 4


def read_uem(path: str | Path) -> dict[str, list[tuple[float, float]]]:
    """The parts of each recording that count, ``(start, end)`` in seconds, in the order of the file.

    A folder gives those of all its files ``*.uem``. Raises DataError with file and line.
    """
    return read_folder(path, ".uem", _read_file)


def _read_file(path: Path) -> dict[str, list[tuple[float, float]]]:
    recordings: dict[str, list[tuple[float, float]]] = {}
    for line in read_lines(path):
        if line.fields[0] == "SPEAKER" and len(line.fields) > NUM_FIELDS:
            raise DataError(f"{line.where}: this is a line of an RTTM; a UEM has: recording channel start end")
        line.demand(NUM_FIELDS, NUM_FIELDS, "a line of a UEM")
        start, end = line.seconds(2, "start"), line.seconds(3, "end")
        if end <= start:
            raise DataError(f"{line.where}: this part ends at {end} s, but begins at {start} s")
        recordings.setdefault(line.name(0, "recording"), []).append((start, end))
    return recordings


def write_uem(path: str | Path, recordings: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Write the parts in the order given, to the microsecond. Raises DataError if they couldn't be read again."""
    path = Path(path)
    lines = []
    for recording, parts in recordings.items():
        name = as_field(recording, "recording", path)
        for start, end in parts:
            if not 0 <= round(start, 6) < round(end, 6) < math.inf:
                raise DataError(f"{path}: can't be written: {recording} has a part from {start} to {end} s")
            lines.append(f"{name} 1 {as_seconds(start)} {as_seconds(end)}\n")
    write_text(path, "".join(lines))
