"""Alignments of one utterance: when each word and each phone is spoken, by a file of an aligner.

.TextGrid   tiers words and phones, as the Montreal Forced Aligner writes them; intervals without a label are pauses
.ctm        words
.json       [[start, end, symbol], …], which are phones; or an object with such lists for word and phone

Pauses have several names in files, and one here; ``spn``, which the aligner writes for what it couldn't recognise, is
kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vaak.audio.formats.annotation_lines import read_content
from vaak.audio.formats.ctm import read_ctm
from vaak.audio.formats.textgrid import read_textgrid
from vaak.audio.labelled import PAUSE, Alignment, Interval
from vaak.core.errors import DataError

ALIGNMENT_TIERS = {"words": "word", "word": "word", "phones": "phone", "phone": "phone", "phonemes": "phone"}
"""Tiers of these names are alignments, also after ``SPEAKER - ``; every other tier is a speaker."""
PAUSES = frozenset({PAUSE, "sil", "sp", "silence", "pau", "<eps>", "<sil>"})
TOLERANCE = 2e-3
"""Seconds that an interval may begin before the end of the last one: aligners round."""
ENDINGS = (".textgrid", ".ctm", ".json")


def kind_of_tier(name: str) -> str | None:
    """What a tier of this name aligns; None for a tier that is a speaker."""
    return ALIGNMENT_TIERS.get(name.rpartition(" - ")[2].lower())


def read_alignment(path: Path, recording: str | None = None) -> Alignment:
    """The alignment in a file; of a CTM, that of the ``recording``, or of the only one.

    Raises DataError, naming the file, for one that has none, or whose intervals overlap.
    """
    ending = path.suffix.lower()
    if ending == ".textgrid":
        return _of_textgrid(path)
    if ending == ".ctm":
        found = alignments_of_ctm(path)
        name = recording if recording in found else next(iter(found)) if len(found) == 1 else None
        if name is None:
            raise DataError(f"{path}: no recording {recording}; it has {', '.join(found) or 'none'}")
        return found[name]
    if ending == ".json":
        try:
            return alignment_of_json(json.loads(read_content(path)), str(path))
        except ValueError as error:
            raise DataError(f"{path}: this is not JSON: {error}") from error
    raise DataError(f"{path}: expected an alignment in a file that ends with {', '.join(ENDINGS)}")


def alignments_of_ctm(path: Path) -> dict[str, Alignment]:
    """The words of each recording of a CTM. Raises DataError."""
    recordings = read_ctm(path).items()
    return {name: checked({"word": [Interval(*word[:3]) for word in words]}, str(path)) for name, words in recordings}


def alignment_of_json(value: Any, where: str) -> Alignment:
    """The alignment that JSON describes. Raises DataError, beginning with ``where``, for anything else."""
    tiers = value if isinstance(value, dict) else {"phone": value}
    unknown = [name for name in tiers if name not in ALIGNMENT_TIERS]
    if unknown or not tiers:
        raise DataError(
            f"{where}: an alignment has lists for word and phone, not for {', '.join(unknown) or 'nothing'}"
        )
    return checked({ALIGNMENT_TIERS[name]: _intervals(rows, where) for name, rows in tiers.items()}, where)


def _intervals(rows: Any, where: str) -> list[Interval]:
    if not isinstance(rows, list):
        raise DataError(f"{where}: an alignment is a list of [start, end, symbol], not a {type(rows).__name__}")
    for row in rows:
        good = isinstance(row, list) and len(row) == 3 and isinstance(row[2], str)
        if not good or not all(isinstance(time, int | float) and not isinstance(time, bool) for time in row[:2]):
            raise DataError(f"{where}: {json.dumps(row, ensure_ascii=False)} is not of the form [start, end, symbol]")
    return [Interval(float(start), float(end), text) for start, end, text in rows]


def _of_textgrid(path: Path) -> Alignment:
    tiers = read_textgrid(path, keep_empty=True)
    found: dict[str, list[Interval]] = {}
    for name, intervals in tiers.items():
        kind = kind_of_tier(name)
        if kind in found:
            raise DataError(f"{path}: there are several tiers of {kind}s; an utterance has one")
        if kind is not None:
            found[kind] = intervals
    if not found:
        raise DataError(f"{path}: no tier is called words or phones; there are {', '.join(tiers) or 'none'}")
    return checked(found, str(path))


def checked(tiers: Mapping[str, Iterable[Interval]], where: str) -> Alignment:
    """The tiers by start, with one name for pauses, without points. Raises DataError where intervals overlap."""
    found: dict[str, tuple[Interval, ...]] = {}
    for tier, intervals in tiers.items():
        rows, last = [], 0.0
        for start, end, text in sorted(intervals):
            if not (0 <= start <= end < math.inf):
                raise DataError(f"{where}: a {tier} from {start:g} to {end:g} s is not an interval of time")
            if start < last - TOLERANCE:
                raise DataError(
                    f"{where}: the {tier} {text!r} begins at {start:g} s, before the last one ends ({last:g} s)"
                )
            if end > start:
                rows.append(Interval(max(start, last), end, PAUSE if text.lower() in PAUSES else text))
            last = max(last, end)
        found[tier] = tuple(row for row in rows if row.end > row.start)
    return found
