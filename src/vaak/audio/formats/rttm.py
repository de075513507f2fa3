"""RTTM: who speaks when, one segment per line.

SPEAKER recording channel start duration <NA> <NA> speaker <NA> <NA>

Lines of other types (SPKR-INFO, LEXEME, …) are skipped. Channels are not distinguished: a recording is a name.

Source: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from vaak.audio.formats.annotation_lines import MISSING, Line, as_field, as_seconds, read_folder, read_lines
from vaak.audio.labelled import Segment
from vaak.core.errors import DataError
from vaak.core.storage.files import write_text

NUM_FIELDS = 8
"""Up to the speaker's name; what follows (confidence, lookahead) is often left out."""
MOST_FIELDS = 10

OTHER_TYPES = {
    *("SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "IP", "SU", "CB"),
    *("A/P", "SPKR-INFO"),
}


def read_rttm(path: str | Path) -> dict[str, list[Segment]]:
    """The segments of each recording in the order of the file, overlaps of one speaker too.

    A folder gives those of all its files ``*.rttm``. Raises DataError with file and line.
    """
    return read_folder(path, ".rttm", _read_file)


def _read_file(path: Path) -> dict[str, list[Segment]]:
    recordings: dict[str, list[Segment]] = {}
    for line in read_lines(path):
        if line.fields[0] == "SPEAKER":
            recording, segment = _segment(line)
            recordings.setdefault(recording, []).append(segment)
        elif line.fields[0] not in OTHER_TYPES:
            raise DataError(f"{line.where}: an RTTM line begins with SPEAKER or another type, not {line.fields[0]!r}")
    return recordings


def _segment(line: Line) -> tuple[str, Segment]:
    line.demand(NUM_FIELDS, MOST_FIELDS, "SPEAKER")
    _demand_numbers_after_the_speaker(line)
    start, duration = line.seconds(3, "start"), line.seconds(4, "duration")
    # Without rounding, 0.1 + 0.2 would end after a segment that begins at 0.3.
    return line.name(1, "recording"), Segment(start, round(start + duration, 9), line.name(7, "speaker"))


def _demand_numbers_after_the_speaker(line: Line) -> None:
    """Raises DataError for a confidence that is none: the rest of ``Speaker 2``, of a writer that ends lines early."""
    for place, (what, most) in enumerate((("confidence", 1.0), ("lookahead", math.inf)), start=NUM_FIELDS):
        for text in line.fields[place : place + 1]:
            if text in (MISSING, "NA", "-"):
                continue
            try:
                is_right = float(text) <= most
            except ValueError:
                is_right = False
            if not is_right:
                raise DataError(
                    f"{line.where}: the {what} after speaker {line.fields[NUM_FIELDS - 1]} is {text!r}; a blank "
                    "separates fields, so a name can't contain one: write _ instead"
                )


def write_rttm(path: str | Path, recordings: Mapping[str, Sequence[Segment]]) -> None:
    """Write the segments in the order given, to the microsecond. A recording without any leaves no line.

    Raises DataError if a name can't be a field, or a segment ends before it begins.
    """
    write_text(Path(path), rttm_text(recordings, Path(path)))


def rttm_text(recordings: Mapping[str, Sequence[Segment]], path: Path) -> str:
    """What ``write_rttm`` writes to ``path``, by which errors name it."""
    lines = []
    for recording, segments in recordings.items():
        for start, end, speaker in segments:
            if not 0 <= start <= end < math.inf:
                raise DataError(f"{path}: can't be written: {recording} has a segment from {start} to {end} s")
            duration = round(end, 6) - round(start, 6)  # so that the end is right to the microsecond
            names = as_field(recording, "recording", path), as_field(speaker, "speaker", path)
            times = f"{as_seconds(start)} {as_seconds(duration)}"
            lines.append(f"SPEAKER {names[0]} 1 {times} <NA> <NA> {names[1]} <NA> <NA>\n")
    return "".join(lines)
