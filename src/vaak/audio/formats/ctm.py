"""CTM: words with times, one per line.

recording channel start duration word [confidence]

Source: NIST, "SCTK: Speech Recognition Scoring Toolkit", sclite, input file formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vaak.audio.formats.annotation_lines import MISSING, Line, as_field, as_seconds, read_folder, read_lines
from vaak.core.errors import DataError
from vaak.core.storage.files import write_text

NUM_FIELDS = 5
MOST_FIELDS = 8
"""With confidence, type and speaker, as in NIST's evaluations of meetings."""


class Word(NamedTuple):
    """A word and its time in seconds; ``confidence`` may be None."""

    start: float
    end: float
    text: str
    confidence: float | None = None


def read_ctm(path: str | Path) -> dict[str, list[Word]]:
    """The words of each recording in the order of the file.

    A folder gives those of all its files ``*.ctm``. Raises DataError with file and line.
    """
    return read_folder(path, ".ctm", _read_file)


def _read_file(path: Path) -> dict[str, list[Word]]:
    recordings: dict[str, list[Word]] = {}
    for line in read_lines(path):
        line.demand(NUM_FIELDS, MOST_FIELDS, "a line of a CTM")
        start, duration = line.seconds(2, "start"), line.seconds(3, "duration")
        word = Word(start, round(start + duration, 9), line.name(4, "word"), _confidence(line))
        recordings.setdefault(line.name(0, "recording"), []).append(word)
    return recordings


def _confidence(line: Line) -> float | None:
    if len(line.fields) == NUM_FIELDS or line.fields[NUM_FIELDS] in (MISSING, "NA"):
        return None
    return line.number(NUM_FIELDS, "confidence")


def write_ctm(path: str | Path, recordings: Mapping[str, Sequence[Word]]) -> None:
    """Write the words in the order given, times to the microsecond. Raises DataError if they couldn't be read again."""
    path = Path(path)
    lines = []
    for recording, words in recordings.items():
        name = as_field(recording, "recording", path)
        for start, end, text, confidence in words:
            if not 0 <= start <= end < math.inf:
                raise DataError(f"{path}: can't be written: {recording} has a word from {start} to {end} s")
            times = f"{as_seconds(start)} {as_seconds(round(end, 6) - round(start, 6))}"
            sure = "" if confidence is None else f" {confidence:g}"
            lines.append(f"{name} 1 {times} {as_field(text, 'word', path)}{sure}\n")
    write_text(path, "".join(lines))
