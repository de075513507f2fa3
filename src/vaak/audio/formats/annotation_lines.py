"""Annotations with one entry per line: UTF-8, fields between blanks; each line has its position.

RTTM   who speaks when           SPEAKER recording channel start duration <NA> <NA> speaker <NA> <NA>
UEM    the scored regions        recording channel start end
CTM    words with times          recording channel start duration word [confidence]

Blank lines and comments, which begin with ``;``, are skipped; so are RTTM's lines of other types (SPKR-INFO, LEXEME,
…). Only ASCII white space separates fields, so that a name may contain any other character. RTTM's channels are not
distinguished: a recording is a name.

Lhotse's readers aren't enough: of RTTM they take lines of ten fields alone, without comments, and drop segments of no
length; a CTM's words only where a segment holds them; names end at any white space of Unicode; errors name no line.

Sources: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan"; NIST, "SCTK: Speech
Recognition Scoring Toolkit", sclite, input file formats (CTM).
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from vaak.audio.segments import PlacedRegion, PlacedSegment, Region, Segment
from vaak.core.errors import DataError
from vaak.core.left_out import report_files
from vaak.core.matching import quote_names
from vaak.core.storage.files import require_file, write_text

log = logging.getLogger("vaak")
MISSING = "<NA>"
"""An empty field."""
Annotations = TypeVar("Annotations")


@dataclass(frozen=True)
class Line:
    """One line: ``where`` is ``FILE:LINE``."""

    where: str
    fields: Sequence[str]

    def require(self, least: int, most: int, what: str) -> None:
        """Raises DataError if the line has fewer or more fields than ``what``: a blank in a name shifts all others."""
        number = len(self.fields)
        if number < least:
            raise DataError(f"{self.where}: {what} requires at least {least} fields, this line has {number}")
        if number > most:
            raise DataError(
                f"{self.where}: {what} has at most {most} fields, this line has {number}; a blank separates fields, so "
                "a name can't contain one: write _ instead"
            )

    def number(self, index: int, what: str) -> float:
        """Return a field as a finite number. Raises DataError."""
        return parse_number(self.fields[index], what, self.where)

    def seconds(self, index: int, what: str) -> float:
        """Return a field as seconds, 0 or more. Raises DataError."""
        return parse_seconds(self.fields[index], what, self.where)

    def times(self, index: int, second: str, keep_bad: bool) -> tuple[float, float, str]:
        """Return start and end by two fields, the second a ``duration`` or an ``end``, and no problem.

        Raises DataError for times that can't be; with ``keep_bad``, its text is the problem instead.
        """
        start, problem = read_seconds(self.fields[index], "start", self.where, keep_bad)
        other, second_problem = read_seconds(self.fields[index + 1], second, self.where, keep_bad)
        # Without rounding, 0.1 + 0.2 would end after a segment that begins at 0.3.
        end = round(start + other, 9) if second == "duration" else other
        return start, end, problem or second_problem

    def name(self, index: int, what: str) -> str:
        """Return a field as a name. Raises DataError if it is empty."""
        if self.fields[index] == MISSING:
            raise DataError(f"{self.where}: the {what} is empty ({MISSING})")
        return self.fields[index]


def parse_number(text: str, what: str, where: str) -> float:
    """Return a finite number. Raises DataError."""
    try:
        # Python's float also accepts 1_000 and digits of other scripts, which other tools don't.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: the {what} is {text!r}, which is not a finite number")
    return value


def parse_seconds(text: str, what: str, where: str) -> float:
    """Seconds, 0 or more. Raises DataError."""
    value = parse_number(text, what, where)
    if value < 0:
        raise DataError(f"{where}: the {what} is {text} s, which is negative")
    return value


def read_seconds(text: str, what: str, where: str, keep_bad: bool) -> tuple[float, str]:
    """Return seconds, 0 or more, and no problem. Raises DataError; with ``keep_bad``, its text is the problem instead.

    >>> read_seconds("0.5", "start", "a.uem:1", True), read_seconds("-1", "end", "a.uem:1", True)
    ((0.5, ''), (0.0, 'the end is -1 s, which is negative'))
    """
    try:
        return parse_seconds(text, what, where), ""
    except DataError as error:
        if not keep_bad:
            raise
        return 0.0, str(error).removeprefix(f"{where}: ")


def read_lines(path: str | Path) -> Iterator[Line]:
    """Yield the lines of a file without blank ones. Raises DataError if it can't be read or isn't UTF-8."""
    for number, content in enumerate(read_content(path).split(b"\n"), start=1):
        where = f"{path}:{number}"
        fields = [decoded(field, where) for field in content.split()]
        if fields and not fields[0].startswith(";"):
            yield Line(where, fields)


def read_content(path: str | Path) -> bytes:
    """Return the text of a file, without UTF-8's byte order mark. Raises DataError."""
    try:
        require_file(Path(path))
        return Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


def decoded(content: bytes, where: str) -> str:
    """UTF-8 as text. Raises DataError."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise DataError(f"{where}: byte 0x{byte:02x} is not UTF-8; convert the file to UTF-8") from error


class Placed(Protocol):
    """A label that knows its file and line, and why it can't be used, if so (``vaak.audio.segments``)."""

    where: str
    problem: str


Label = TypeVar("Label", bound=Placed)


class LineFormat(NamedTuple):
    """How many ``fields`` a line has, the least and the most, of what; and the place of the recording's name."""

    fields: tuple[int, int, str]
    recording: int = 0

    def find_recording(self, line: Line, before: str) -> str:
        """Return the recording of an unreadable line: the one that it names, else the one ``before``."""
        says = len(line.fields) > self.recording and line.fields[self.recording] != MISSING
        return line.fields[self.recording] if says and len(line.fields) <= self.fields[1] else before


def _read_labels(
    path: Path,
    form: LineFormat,
    parse: Callable[[Line, bool], tuple[str, Label] | None],
    unread: Callable[[], Label] | None,
) -> dict[str, list[Label]]:
    """Return the labels of each recording, as ``parse(line, keep_bad)`` reads a line; None is none.

    Raises DataError for a line that can't be read; with ``unread``, which makes a label that stands for it, that has
    the problem, and only a file without any other line is an error.
    """
    recordings: dict[str, list[Label]] = {}
    bad, before = list[tuple[str, Label]](), path.stem
    problem: DataError | None = None
    for line in read_lines(path):
        try:
            found = parse(line, unread is not None)
        except DataError as error:
            if unread is None:
                raise
            problem, label = problem or error, unread()
            label.where, label.problem = line.where, str(error).removeprefix(f"{line.where}: ")
            bad.append((form.find_recording(line, before), label))
            continue
        if found is not None:
            before = found[0]
            recordings.setdefault(before, []).append(found[1])
    if problem is not None and not recordings:
        raise problem
    for name, label in bad:
        # A bad line before any good one, in a file that isn't named after a recording: it belongs to the first
        # recording.
        own = next(iter(recordings)) if name == path.stem and name not in recordings else name
        recordings.setdefault(own, []).append(label)
    return recordings


Reader = Callable[[Path], dict[str, Annotations]]
"""A reader of one file: its annotations by recording."""


def read_folder(path: str | Path, readers: Mapping[str, Reader[Annotations]]) -> dict[str, Annotations]:
    """The annotations of a file, or of all files of a folder (and its folders) whose ending one of ``readers`` takes.

    Endings count in any case. Where two endings have the same recording, the one that comes first is read. Logs which
    files of a folder are left out, and why. Raises DataError if a folder has none, or a recording is in two files of
    one ending, or a file's ending is unknown and there are several readers.
    """
    folder = Path(path)
    if not folder.is_dir():
        known = readers.get(folder.suffix.lower()) or (next(iter(readers.values())) if len(readers) == 1 else None)
        if known is None:
            raise DataError(f"{folder}: expected a file that ends with {', '.join(readers)}")
        return known(folder)
    # Links to folders, which ``rglob`` doesn't follow, are kept in the list so that they are reported.
    files = sorted(one for one in folder.rglob("*") if one.is_symlink() or not one.is_dir())
    left_out = {file: why for file in files if (why := _explain_left_out(file, folder, readers))}
    _require_no_other_copy(files, readers)
    found: dict[str, Annotations] = {}
    origin: dict[str, Path] = {}
    # Ending by ending, not file by file: where two formats have the same recording, the order of ``readers`` decides.
    for ending, read in readers.items():
        for file in (one for one in files if one.suffix.lower() == ending and one not in left_out):
            own = read(file)
            if not own:
                left_out[file] = "it has no line of a type that is read"
            # A second format of recordings that were read already is skipped; within one format, it is an error.
            if own and all(name in origin and origin[name].suffix.lower() != ending for name in own):
                left_out[file] = f"{origin[next(iter(own))].name} has the same recordings"
                continue
            if twice := next((name for name in own if name in found), None):
                raise DataError(f"{file}: recording {twice} is also in {origin[twice]}; keep one of them")
            found |= own
            origin |= dict.fromkeys(own, file)
    names = {str(file.relative_to(folder)): why for file, why in left_out.items()}
    report_files(folder, len(files) - len(left_out), names)
    if not any(file.suffix.lower() in readers for file in files if not file.name.startswith(".")):
        there = f": there are {quote_names([one.name for one in files])}" if files else ""
        raise DataError(f"{folder}: no {' or '.join(f'*{ending}' for ending in readers)} file in this folder{there}")
    return found


def _explain_left_out(file: Path, folder: Path, readers: Mapping[str, Any]) -> str:
    """Return why a file of a folder isn't read; empty if it is."""
    if any(part.startswith(".") for part in file.relative_to(folder).parts):
        # ._call.rttm of a Mac's disk.
        return "hidden"
    if not file.is_file():
        return "a link to a folder" if file.is_dir() else "not a file"
    return "" if file.suffix.lower() in readers else f"not {' or '.join(readers)}"


def _require_no_other_copy(files: Collection[Path], readers: Mapping[str, Any]) -> None:
    """Raise DataError for a file such as ``b.rttm.txt``: its annotations would be missing."""
    read = {file.with_suffix("").name.lower() for file in files if file.suffix.lower() in readers}
    for file in files:
        endings = [ending.lower() for ending in file.suffixes[:-1]]
        stem = file.name.partition(".")[0].lower()
        if stem and file.suffix.lower() not in readers and set(endings) & readers.keys() and stem not in read:
            raise DataError(f"{file}: it ends with {file.suffix}, so it isn't read: rename it, or move it elsewhere")


NO_FIELD = re.compile(r"[\s\x00-\x1f\x7f]+")
"""Characters that a field of an RTTM line can't hold."""


def name_recordings(files: Collection[Path], known: Collection[str] = ()) -> dict[Path, str]:
    """Return a unique name for each file, the same in every command and format, so that what they write joins.

    Names are valid in RTTM, CTM and STM: the file's without its ending, blanks replaced; or its part before the first
    dot, where that is ``known`` (``ES2002a`` of ``ES2002a.Mix-Headset.wav``). Files of one name in several folders have
    their folders before it.
    """
    names: dict[Path, str] = {}
    for path in files:
        ways = [_to_field(path.stem), _to_field(path.name.partition(".")[0])]
        names[path] = next((way for way in ways if way in known), ways[0])
    for shared, number in Counter(names.values()).items():
        if number > 1:
            # Only files that share a name get their folders: the names of all others don't depend on where they are.
            alike = [path for path in files if names[path] == shared]
            # Their folders differ below it.
            root = os.path.commonpath([path.absolute().parent for path in alike])
            for path in alike:
                folders = path.absolute().relative_to(root).with_suffix("").parts
                names[path] = _to_field("-".join(folders))
    taken: Counter[str] = Counter()
    for path, name in names.items():
        # Compared without case: not every file system distinguishes A from a.
        while taken[names[path].casefold()]:
            taken[name.casefold()] += 1
            names[path] = f"{name}-{taken[name.casefold()]}"
        taken[names[path].casefold()] += 1
    return names


def _to_field(text: str) -> str:
    """Return the text as a field of RTTM.

    >>> _to_field("board meeting 3"), _to_field("; draft"), _to_field("<NA>")
    ('board_meeting_3', '_;_draft', '_<NA>')
    """
    # A file's name may contain bytes that aren't UTF-8, which can't be written: replace them.
    text = NO_FIELD.sub("_", text.encode(errors="replace").decode())
    return f"_{text}" if text[:1] in ("", ";", "\ufeff") or text == "<NA>" else text


def as_field(text: str, what: str, path: Path) -> str:
    """``text``, which can be read again as a field. Raises DataError if it can't."""
    try:
        fits = text.encode().split() == [text.encode()] and text != MISSING and text[0] not in ";\ufeff"
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise DataError(
            f"{path}: can't be written: the {what} {text!r} is empty, or contains a space or invalid characters"
        )
    return text


def as_seconds(seconds: float) -> str:
    """Seconds to the microsecond, with three decimals at least.

    >>> as_seconds(1.5), as_seconds(0.06250049)
    ('1.500', '0.0625')
    """
    whole, _, decimals = f"{seconds:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(3, '0')}"


RTTM_FIELDS = 8
"""Fields up to the speaker's name; those after it (confidence, lookahead) are often left out."""
RTTM = LineFormat((RTTM_FIELDS, 10, "SPEAKER"), recording=1)
OTHER_TYPES = {
    *("SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "IP", "SU", "CB"),
    *("A/P", "SPKR-INFO"),
}


def read_rttm(path: str | Path, *, keep_bad: bool = False) -> dict[str, list[Segment]]:
    """Return the segments of each recording in the order of the file, overlaps of one speaker too.

    A folder gives those of all its files ``*.rttm``. Raises DataError with file and line; with ``keep_bad``, a segment
    that can't be read is given, with its problem.
    """
    return read_folder(path, {".rttm": partial(_rttm_file, keep_bad=keep_bad)})


def _rttm_file(path: Path, keep_bad: bool) -> dict[str, list[Segment]]:
    unread = partial(PlacedSegment, 0.0, 0.0, "") if keep_bad else None
    return {name: list[Segment](own) for name, own in _read_labels(path, RTTM, _rttm_line, unread).items()}


def _rttm_line(line: Line, keep_bad: bool) -> tuple[str, PlacedSegment] | None:
    if line.fields[0] in OTHER_TYPES:
        return None
    if line.fields[0] != "SPEAKER":
        raise DataError(f"{line.where}: an RTTM line begins with SPEAKER or another type, not {line.fields[0]!r}")
    line.require(*RTTM.fields)
    _require_numbers_after_the_speaker(line)
    start, end, problem = line.times(3, "duration", keep_bad)
    recording, segment = line.name(1, "recording"), PlacedSegment(start, end, line.name(7, "speaker"))
    segment.where, segment.problem = line.where, problem
    return recording, segment


def _require_numbers_after_the_speaker(line: Line) -> None:
    """Raises DataError for a confidence that is none: the rest of ``Speaker 2``, of a writer that ends lines early."""
    for index, (what, most) in enumerate((("confidence", 1.0), ("lookahead", math.inf)), start=RTTM_FIELDS):
        for text in line.fields[index : index + 1]:
            # Several spellings of "no value" are in use.
            if text in (MISSING, "NA", "-"):
                continue
            try:
                is_right = float(text) <= most
            except ValueError:
                is_right = False
            if not is_right:
                raise DataError(
                    f"{line.where}: the {what} after speaker {line.fields[RTTM_FIELDS - 1]} is {text!r}; a blank "
                    "separates fields, so a name can't contain one: write _ instead"
                )


def write_rttm(path: str | Path, recordings: Mapping[str, Sequence[Segment]]) -> None:
    """Write the segments in the order given, to the microsecond. A recording without any leaves no line.

    Raises DataError if a name can't be a field, or a segment ends before it begins.
    """
    write_text(Path(path), rttm_text(recordings, Path(path)))


def rttm_text(recordings: Mapping[str, Sequence[Segment]], path: Path) -> str:
    """Return the text that ``write_rttm`` writes to ``path``, by which errors name it."""
    lines = []
    for recording, segments in recordings.items():
        for start, end, speaker in segments:
            if not 0 <= start <= end < math.inf:
                raise DataError(f"{path}: can't be written: {recording} has a segment from {start} to {end} s")
            # Rounded before subtracting, so that start + duration gives the end to the microsecond.
            duration = round(end, 6) - round(start, 6)
            names = as_field(recording, "recording", path), as_field(speaker, "speaker", path)
            times = f"{as_seconds(start)} {as_seconds(duration)}"
            lines.append(f"SPEAKER {names[0]} 1 {times} <NA> <NA> {names[1]} <NA> <NA>\n")
    return "".join(lines)


UEM = LineFormat((4, 4, "a line of a UEM"))


def read_uem(path: str | Path, *, keep_bad: bool = False) -> dict[str, list[Region]]:
    """Return the parts of each recording that count, in seconds, in the order of the file.

    A folder gives those of all its files ``*.uem``. Raises DataError with file and line; with ``keep_bad``, a part
    that can't be read is given, with its problem.
    """
    return read_folder(path, {".uem": partial(_uem_file, keep_bad=keep_bad)})


def _uem_file(path: Path, keep_bad: bool) -> dict[str, list[Region]]:
    unread = partial(PlacedRegion, 0.0, 0.0) if keep_bad else None
    return {name: list[Region](own) for name, own in _read_labels(path, UEM, _uem_line, unread).items()}


def _uem_line(line: Line, keep_bad: bool) -> tuple[str, PlacedRegion]:
    # An RTTM in place of a UEM is a common mix-up. A recording may be called SPEAKER, so the number of fields counts
    # too.
    if line.fields[0] == "SPEAKER" and len(line.fields) > UEM.fields[1]:
        raise DataError(f"{line.where}: this is a line of an RTTM; a UEM has: recording channel start end")
    line.require(*UEM.fields)
    start, end, problem = line.times(2, "end", keep_bad)
    if end <= start and not keep_bad:
        raise DataError(f"{line.where}: this part ends at {end} s, but begins at {start} s")
    region = PlacedRegion(start, end)
    region.where, region.problem = line.where, problem
    return line.name(0, "recording"), region


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


CTM_FIELDS = 5
CTM = LineFormat((CTM_FIELDS, 8, "a line of a CTM"))
"""With confidence, type and speaker, as in NIST's evaluations of meetings."""


class Word(NamedTuple):
    """A word and its time in seconds; ``confidence`` may be None."""

    start: float
    end: float
    text: str
    confidence: float | None = None


class PlacedWord(Word):
    """A word that is the same as one without a place; ``where`` and ``problem`` are as a ``PlacedSegment``'s."""

    where = ""
    problem = ""


def read_ctm(path: str | Path, *, keep_bad: bool = False) -> dict[str, list[PlacedWord]]:
    """Return the words of each recording in the order of the file.

    A folder gives those of all its files ``*.ctm``. Raises DataError with file and line; with ``keep_bad``, a word
    that can't be read is given, with its problem.
    """
    return read_folder(path, {".ctm": partial(_ctm_file, keep_bad=keep_bad)})


def _ctm_file(path: Path, keep_bad: bool) -> dict[str, list[PlacedWord]]:
    return _read_labels(path, CTM, _ctm_line, partial(PlacedWord, 0.0, 0.0, "") if keep_bad else None)


def _ctm_line(line: Line, keep_bad: bool) -> tuple[str, PlacedWord]:
    line.require(*CTM.fields)
    start, end, problem = line.times(2, "duration", keep_bad)
    is_sure = len(line.fields) > CTM_FIELDS and line.fields[CTM_FIELDS] not in (MISSING, "NA")
    confidence = line.number(CTM_FIELDS, "confidence") if is_sure else None
    word = PlacedWord(start, end, line.name(4, "word"), confidence)
    word.where, word.problem = line.where, problem
    return line.name(0, "recording"), word


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
