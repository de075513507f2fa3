"""Alignments of an utterance: when each word and phone is spoken, by a file of an aligner; TextGrids of any tiers.

.TextGrid   tiers words and phones, as the Montreal Forced Aligner writes them; intervals without a label are pauses
.ctm        words
.json       [[start, end, symbol], …], which are phones; or an object with such lists for word and phone

Pauses have several names in files, and one here; ``spn``, which the aligner writes for what it couldn't recognise, is
kept. A TextGrid has a long (``xmin = 0  xmax = 2  intervals: size = 1 …``) and a short form (one value a line). In
both, what counts are numbers, texts in quotes and ``<exists>``; the words around them are for people. So one reader
reads both.

Source: Boersma and Weenink, "Praat: doing phonetics by computer", manual, TextGrid file formats. Differs: praatio
writes; it doesn't read, because it drops everything after an invalid line of the short form, and the sign of negative
times.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vaak.audio.formats.annotation_lines import decoded, parse_seconds, read_content, read_ctm, read_seconds
from vaak.audio.segments import PAUSE_LABEL, Alignment, Interval, PlacedInterval, Segment, merged
from vaak.core.errors import DataError, optional_import
from vaak.core.storage.files import write_text

__all__ = ["Interval", "read_textgrid", "side_by_side", "to_segments", "to_tiers", "write_textgrid"]
TEXTGRID_TOKEN = re.compile(r'"(?:[^"]|"")*"|![^\n]*|[^\s"=]+|=|"')
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
TIMES_BY_TIER = {"IntervalTier": 2, "TextTier": 1}


def read_textgrid(path: str | Path, *, keep_empty: bool = False, keep_bad: bool = False) -> dict[str, list[Interval]]:
    """Return the intervals and points of each tier that have a text; tiers of one name are one.

    With ``keep_empty``, intervals without a text too, which are the pauses of an aligner. Raises DataError with file
    and line; with ``keep_bad``, an interval whose times can't be used is given, with its problem.
    """
    values = _Values(path)
    for expected in ("ooTextFile", "TextGrid"):
        found = values.text("file type")
        if not found.startswith(expected):
            raise DataError(f"{values.where}: this is not a text TextGrid: expected {expected}, not {found!r}")
    # The grid's own start and end: read to be checked and passed over.
    values.seconds("start"), values.seconds("end")
    tiers: dict[str, list[Interval]] = {}
    if values.next("<exists>") == "<exists>":
        for _ in range(values.count("number of tiers")):
            name, intervals = _tier(values, keep_bad)
            tiers.setdefault(name, []).extend(interval for interval in intervals if interval.text or keep_empty)
    # Anything left over means that a count was too small, so intervals would be missing without an error.
    for where, value in values.values:
        raise DataError(f"{where}: expected the end of the file, not {value}; is a number of intervals wrong?")
    return tiers


def _tier(values: _Values, keep_bad: bool) -> tuple[str, list[Interval]]:
    kind = values.text("tier's class")
    if kind not in TIMES_BY_TIER:
        raise DataError(f"{values.where}: a tier is an IntervalTier or a TextTier, not {kind!r}")
    name = values.text("tier's name")
    values.seconds("tier's start"), values.seconds("tier's end")
    intervals: list[Interval] = []
    for _ in range(values.count("number of intervals")):
        (start, problem), where = values.time("start", keep_bad), values.where
        end, later = values.time("end", keep_bad) if TIMES_BY_TIER[kind] == 2 else (start, "")
        if end < start and not keep_bad:
            raise DataError(f"{values.where}: this interval ends at {end} s, but begins at {start} s")
        interval = PlacedInterval(start, end, values.text("text").strip())
        interval.where, interval.problem = where, problem or later
        intervals.append(interval)
    return name, intervals


class _Values:
    """The values of a TextGrid, one after another; ``where`` is ``FILE:LINE`` of the last one."""

    def __init__(self, path: str | Path) -> None:
        self.where = f"{path}:1"
        self.values = _values(_read_text(path), path)

    def next(self, what: str) -> str:
        """Return the next value, unparsed. Raises DataError if there is none."""
        try:
            self.where, value = next(self.values)
        except StopIteration:
            raise DataError(f"{self.where}: the file ends here; expected a {what}") from None
        return value

    def text(self, what: str) -> str:
        value = self.next(what)
        # A quote alone is one that is never closed.
        if value == '"' or not value.startswith('"'):
            raise DataError(f"{self.where}: expected a {what} in quotes, not {value}")
        return value[1:-1].replace('""', '"')

    def time(self, what: str, keep_bad: bool) -> tuple[float, str]:
        """Return a label's time, and why it can't be used, if so. Raises DataError for text in place of a time."""
        value = self.next(what)
        return read_seconds(value, what, self.where, keep_bad and not value.startswith(('"', "<")))

    def seconds(self, what: str) -> float:
        return parse_seconds(self.next(what), what, self.where)

    def count(self, what: str) -> int:
        value = self.next(what)
        if not re.fullmatch(r"[0-9]+", value):
            raise DataError(f"{self.where}: expected a {what}, not {value}")
        return int(value)


def _values(text: str, path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield each value and its position: text in quotes or ``<>``, a number, after ``=``, or alone on its line."""
    line, counted, is_behind_equals = 1, 0, False
    for token in TEXTGRID_TOKEN.finditer(text):
        word, start = token[0], token.start()
        # Count newlines from the last token on, so that long files stay linear.
        line, counted = line + text.count("\n", counted, start), start
        if word.startswith(('"', "<")) or NUMBER.fullmatch(word) or is_behind_equals or _is_alone(text, token):
            yield f"{path}:{line}", word
        is_behind_equals = word == "="


def _is_alone(text: str, token: re.Match[str]) -> bool:
    begin, end = text.rfind("\n", 0, token.start()) + 1, text.find("\n", token.end())
    return token[0] == text[begin : end if end >= 0 else None].strip() and not token[0].startswith("!")


def _read_text(path: str | Path) -> str:
    """Return the file's text, lines ending with a newline; Praat writes UTF-8 or UTF-16. Raises DataError."""
    content = read_content(path)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            text = content.decode("utf-16")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: UTF-16 ends at byte {error.start}; is the file truncated?") from error
    else:
        lines = enumerate(content.split(b"\n"), start=1)
        text = "\n".join(decoded(line, f"{path}:{number}") for number, line in lines)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def write_textgrid(
    path: str | Path,
    tiers: Mapping[str, Sequence[Interval]],
    duration: float,
    form: Literal["long", "short"] = "long",
) -> None:
    """Write tiers that last from 0 to ``duration``; a tier whose intervals have no length is one of points.

    Raises DataError if intervals of a tier overlap, are outside, or are also points; UserError if praatio is missing.
    """
    with optional_import("writing TextGrid files requires praatio", "audio"):
        from praatio.utilities.textgrid_io import getTextgridAsStr
    path = Path(path)
    content = {"xmin": 0.0, "xmax": float(duration)}
    entries: list[dict[str, Any]] = []
    for name, intervals in tiers.items():
        # Checked here, because plain entries bypass the checks of praatio's own classes.
        before = 0.0
        for start, end, _ in sorted(intervals):
            if not before <= start <= end <= duration < math.inf:
                raise DataError(
                    f"{path}: can't be written: in tier {name}, {start} to {end} s overlaps with what is before it, "
                    f"or is outside of 0 to {duration} s"
                )
            before = end
        if len({interval.start == interval.end for interval in intervals}) > 1:
            raise DataError(f"{path}: can't be written: tier {name} has points and intervals; make them two tiers")
        if intervals and all(interval.start == interval.end for interval in intervals):
            points = [(start, text) for start, _, text in intervals]
            entries.append({**content, "class": "TextTier", "name": name, "entries": points})
        else:
            pieces = [tuple(interval) for interval in intervals]
            entries.append({**content, "class": "IntervalTier", "name": name, "entries": pieces})
    # Blanks are filled with empty intervals, as Praat requires; short intervals are kept, not merged.
    text = getTextgridAsStr({**content, "tiers": entries}, f"{form}_textgrid", True, minimumIntervalLength=None)
    write_text(path, text)


def side_by_side(intervals: Iterable[Interval], duration: float) -> list[Interval]:
    """The intervals of a tier without what of them is before the end of the one before, or beyond ``duration``.

    >>> side_by_side([Interval(0, 1, "a"), Interval(0.8, 1.5, "b"), Interval(1.1, 1.4, "c")], 1.2)
    [Interval(start=0, end=1, text='a'), Interval(start=1, end=1.2, text='b')]
    """
    found, last = list[Interval](), 0.0
    for start, end, text in intervals:
        start, end = max(start, last), min(end, duration)
        if end > start:
            found.append(Interval(start, end, text))
            last = end
    return found


def to_segments(tiers: Mapping[str, Sequence[Interval]]) -> list[Segment]:
    """Return who speaks when, if each tier is a speaker; texts are ignored."""
    return sorted(Segment(start, end, speaker) for speaker, tier in tiers.items() for start, end, _ in tier)


def to_tiers(segments: Iterable[Segment]) -> dict[str, list[Interval]]:
    """Return a tier for each speaker."""
    tiers: dict[str, list[Interval]] = {}
    for start, end, speaker in merged(segments):
        tiers.setdefault(speaker, []).append(Interval(start, end, speaker))
    return tiers


ALIGNMENT_TIERS = {"words": "word", "word": "word", "phones": "phone", "phone": "phone", "phonemes": "phone"}
"""Tiers of these names are alignments, also after ``SPEAKER - ``; every other tier is a speaker."""
PAUSES = frozenset({PAUSE_LABEL, "sil", "sp", "silence", "pau", "<eps>", "<sil>"})
ROUNDING_SECONDS = 2e-3
"""Seconds that an interval may begin before the end of the last one: aligners round."""
ALIGNMENT_ENDINGS = (".textgrid", ".ctm", ".json")


def get_tier_unit(name: str) -> str | None:
    """Return the unit that a tier of this name aligns; None for a tier that is a speaker."""
    return ALIGNMENT_TIERS.get(name.rpartition(" - ")[2].lower())


LeftOutLabels = list[tuple[str, str]]
"""Words and phones without times that can be used: where each is, and why it can't be used."""


def read_alignment(path: Path, recording: str | None = None, left_out: LeftOutLabels | None = None) -> Alignment:
    """Return the alignment in a file; in a CTM, that of the ``recording``, or of the only one.

    Where ``left_out`` is given, words and phones without times that can be used go there. Raises DataError, naming the
    file, for one that has no alignment, for intervals that overlap, and without ``left_out`` for times that can't be.
    """
    ending = path.suffix.lower()
    if ending == ".textgrid":
        return _read_alignment_textgrid(path, left_out)
    if ending == ".ctm":
        found = _read_ctm_words(path, keep_bad=left_out is not None)
        # With a single recording in the CTM, its name needn't match.
        name = recording if recording in found else next(iter(found)) if len(found) == 1 else None
        if name is None:
            raise DataError(f"{path}: no recording {recording}; it has {', '.join(found) or 'none'}")
        return checked({"word": found[name]}, str(path), left_out)
    if ending == ".json":
        try:
            return parse_alignment(json.loads(read_content(path)), str(path), left_out)
        except ValueError as error:
            raise DataError(f"{path}: this is not JSON: {error}") from error
    raise DataError(f"{path}: expected an alignment in a file that ends with {', '.join(ALIGNMENT_ENDINGS)}")


def read_ctm_alignments(path: Path) -> dict[str, tuple[Alignment, LeftOutLabels]]:
    """Return the words of each recording of a CTM, and those that can't be used. Raises DataError."""
    found: dict[str, tuple[Alignment, LeftOutLabels]] = {}
    for name, words in _read_ctm_words(path, keep_bad=True).items():
        left_out: LeftOutLabels = []
        found[name] = checked({"word": words}, str(path), left_out), left_out
    return found


def _read_ctm_words(path: Path, keep_bad: bool) -> dict[str, list[Interval]]:
    recordings: dict[str, list[Interval]] = {}
    for name, words in read_ctm(path, keep_bad=keep_bad).items():
        recordings[name] = []
        for word in words:
            one = PlacedInterval(*word[:3])
            one.where, one.problem = word.where, word.problem
            recordings[name].append(one)
    return recordings


def parse_alignment(value: Any, where: str, left_out: LeftOutLabels | None = None) -> Alignment:
    """Return the alignment that JSON describes. Raises DataError, beginning with ``where``, for anything else.

    Where ``left_out`` is given, words and phones without times that can be used go there.
    """
    tiers = value if isinstance(value, dict) else {"phone": value}
    unknown = [name for name in tiers if name not in ALIGNMENT_TIERS]
    if unknown or not tiers:
        raise DataError(
            f"{where}: an alignment has lists for word and phone, not for {', '.join(unknown) or 'nothing'}"
        )
    keep_bad = left_out is not None
    found = {ALIGNMENT_TIERS[name]: _intervals(rows, where, keep_bad) for name, rows in tiers.items()}
    return checked(found, where, left_out)


def _intervals(rows: Any, where: str, keep_bad: bool) -> list[Interval]:
    if not isinstance(rows, list):
        raise DataError(f"{where}: an alignment is a list of [start, end, symbol], not a {type(rows).__name__}")
    found: list[Interval] = []
    for number, row in enumerate(rows, 1):
        good = isinstance(row, list) and len(row) == 3 and isinstance(row[2], str)
        timed = good and all(isinstance(time, int | float) and not isinstance(time, bool) for time in row[:2])
        problem = "" if timed else f"{json.dumps(row, ensure_ascii=False)} is not of the form [start, end, symbol]"
        if problem and not keep_bad:
            raise DataError(f"{where}: {problem}")
        start, end, text = (float(row[0]), float(row[1]), row[2]) if timed else (0.0, 0.0, "")
        one = PlacedInterval(start, end, text)
        one.where, one.problem = f"{where}, interval {number}", problem
        found.append(one)
    return found


def _read_alignment_textgrid(path: Path, left_out: LeftOutLabels | None) -> Alignment:
    tiers = read_textgrid(path, keep_empty=True, keep_bad=left_out is not None)
    found: dict[str, list[Interval]] = {}
    for name, intervals in tiers.items():
        kind = get_tier_unit(name)
        if kind in found:
            raise DataError(f"{path}: there are several tiers of {kind}s; an utterance has one")
        if kind is not None:
            found[kind] = intervals
    if not found:
        raise DataError(f"{path}: no tier is called words or phones; there are {', '.join(tiers) or 'none'}")
    return checked(found, str(path), left_out)


def checked(tiers: Mapping[str, Iterable[Interval]], where: str, left_out: LeftOutLabels | None = None) -> Alignment:
    """Return the tiers by start, with one name for pauses, without points.

    Where ``left_out`` is given, intervals that overlap or have no times that can be used, and points, go there, but for
    pauses; where nothing else is left, that is a DataError. Without it, raises DataError where intervals overlap, and
    for times that can't be.
    """
    found: dict[str, tuple[Interval, ...]] = {}
    for tier, intervals in tiers.items():
        rows, last, timed = list[Interval](), 0.0, list[Interval]()
        for one in intervals:
            if problem := _find_problem(one, tier):
                _lose(one, problem, where, left_out)
            else:
                timed.append(one)
        # By their ends: of intervals that overlap, as few as possible are left out, and one that lasts too long is.
        for one in sorted(timed, key=lambda one: (one.end, one.start)):
            start, end, text = one
            # Aligners round to whole frames or decimals, so a small overlap is clipped below, not reported.
            if start < last - ROUNDING_SECONDS:
                problem = f"the {tier} {text!r} begins at {start:g} s, before the last one ends ({last:g} s)"
                _lose(one, problem, where, left_out)
            elif end > max(start, last):
                rows.append(Interval(max(start, last), end, PAUSE_LABEL if text.lower() in PAUSES else text))
                last = end
            else:
                has_none = f"a {tier} from {start:g} to {end:g} s, {text!r}, has no length"
                _lose(one, has_none, where, [] if left_out is None else left_out)
        found[tier] = tuple(rows)
    if left_out and not any(one.text for rows in found.values() for one in rows):
        raise DataError(f"{where}: {left_out[0][1]} (no {' or '.join(tiers)} can be used)")
    return found


def _lose(one: Interval, problem: str, where: str, left_out: LeftOutLabels | None) -> None:
    """Leave out an unusable interval, unless it is a pause. Raises DataError if none may be left out."""
    if left_out is None:
        raise DataError(f"{where}: {problem}")
    if one.text.lower() not in PAUSES or getattr(one, "problem", None):
        left_out.append((getattr(one, "where", "") or where, problem))


def _find_problem(interval: Interval, tier: str) -> str:
    """Return why the times of an interval are impossible; empty if they are valid."""
    start, end, _ = interval
    if (problem := getattr(interval, "problem", "")) or 0 <= start <= end < math.inf:
        return str(problem)
    return f"a {tier} from {start:g} to {end:g} s is not an interval of time"
