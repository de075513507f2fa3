"""Word error rates of who said what: cpWER and tcpWER, of any system's turns.

cpWER    the words of each speaker one after another; hypothesis speakers are given to those of the reference so that
         errors are fewest; the words of one who is given to nobody are all errors
tcpWER   the same, but words match (or are substituted) only where their times overlap, with a collar: a word at the
         wrong time is one inserted and one missed

A rate is a sum of errors over a sum of the reference's words. Where only turns have times, those of their words are
guessed: in the reference, each word has a part of its turn as long as its letters; in the hypothesis, it is the middle
of that, to which the collar is added on each side.

Turns are read of any system::

    .stm      recording channel speaker start end [<labels>] words…        NIST's segment time marks
    .rttm     LEXEME lines: a word each
    .json     SegLST, a list of {session_id, speaker, start_time, end_time, words}
    .jsonl    what ``vaak transcribe --diarize`` writes: a recording a line, its segments with speaker and text

Sources: Watanabe et al. 2020, "CHiME-6 Challenge: Tackling Multispeaker Speech Recognition for Unsegmented Recordings"
(cpWER); von Neumann et al. 2023, "MeetEval: A Toolkit for Computation of Word Error Rates for Meeting Transcription
Systems" (tcpWER; the guessed times are its ``character_based`` and ``character_based_points``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaak.audio.formats.annotation_lines import (
    MISSING,
    as_field,
    as_seconds,
    parse_seconds,
    read_content,
    read_folder,
    read_lines,
)
from vaak.core.errors import DataError
from vaak.core.matching import quote_names, rename_like
from vaak.scoring.diarization_errors import require_one_unit
from vaak.scoring.normalisers import BASIC, Normaliser

COLLAR = 5.0
"""Seconds, the default of MeetEval."""


class Turn(NamedTuple):
    """The words of one speaker from ``start`` to ``end``, in seconds."""

    start: float
    end: float
    speaker: str
    text: str


@dataclass(frozen=True)
class SpeakerCounts:
    """Errors of a recording, or of several."""

    cp_errors: int
    tcp_errors: int
    words: int
    speakers: int
    found_speakers: int

    def __add__(self, other: SpeakerCounts) -> SpeakerCounts:
        return SpeakerCounts(
            self.cp_errors + other.cp_errors,
            self.tcp_errors + other.tcp_errors,
            self.words + other.words,
            self.speakers + other.speakers,
            self.found_speakers + other.found_speakers,
        )

    def to_json(self) -> dict[str, Any]:
        """Rates (1 is 100 %; None without any word) and their components."""
        rates = {
            name: errors / self.words if self.words else None
            for name, errors in (("cpwer", self.cp_errors), ("tcpwer", self.tcp_errors))
        }
        return {**rates, **self.__dict__}


@dataclass(frozen=True)
class SpeakerScores:
    """The errors of each recording; ``protocol`` says under which conditions they were counted."""

    protocol: dict[str, str]
    recordings: dict[str, SpeakerCounts]

    @property
    def total(self) -> SpeakerCounts:
        return sum(self.recordings.values(), SpeakerCounts(0, 0, 0, 0, 0))


def score_turns(
    references: Mapping[str, Sequence[Turn]],
    hypotheses: Mapping[str, Sequence[Turn]],
    normalise: Normaliser = BASIC,
    collar: float = COLLAR,
) -> SpeakerScores:
    """Return the errors of ``hypotheses`` by recording; one of ``references`` without any counts as entirely missed.

    Names that differ only as ``vaak.core.matching`` says are the same. Raises DataError if a hypothesis has no
    reference, or times are in different units.
    """
    hypotheses = rename_like(references, hypotheses)
    if others := hypotheses.keys() - references.keys():
        raise DataError(f"no reference for {quote_names(others)}")
    require_one_unit(references, hypotheses)

    def spoken(turns: Sequence[Turn]) -> list[list[_Word]]:
        """Return the words of each speaker, in the order of their turns."""
        speakers: dict[str, list[_Word]] = {}
        for turn in sorted(turns, key=lambda one: one.start):
            # Normalised before it is divided into words, since a normaliser may join, split or drop them.
            speakers.setdefault(turn.speaker, []).extend(split_words(turn._replace(text=normalise(turn.text))))
        return [words for words in speakers.values() if words]

    found = {}
    for name, turns in references.items():
        ours, theirs = spoken(turns), spoken(hypotheses.get(name, ()))
        cp_errors, tcp_errors = (_fewest_errors(ours, theirs, seconds) for seconds in (None, collar))
        found[name] = SpeakerCounts(cp_errors, tcp_errors, sum(map(len, ours)), len(ours), len(theirs))
    protocol = {"normaliser": normalise.name, "collar": f"{collar:g} s", "recordings": str(len(found))}
    if missing := len(references.keys() - hypotheses.keys()):
        protocol["without hypothesis"] = str(missing)
    return SpeakerScores(protocol, found)


class _Word(NamedTuple):
    text: str
    start: float
    end: float


def split_words(turn: Turn) -> list[_Word]:
    """Return the words of a turn, each with a part of its time as long as its letters.

    >>> [(word.text, word.start, word.end) for word in split_words(Turn(1, 5, "A", "abc b"))]
    [('abc', 1.0, 4.0), ('b', 4.0, 5.0)]
    """
    words = turn.text.split()
    edges = np.cumsum([0, *map(len, words)])
    times = turn.start + (turn.end - turn.start) * edges / max(edges[-1], 1)
    return [_Word(word, float(times[n]), float(times[n + 1])) for n, word in enumerate(words)]


def _fewest_errors(ours: Sequence[list[_Word]], theirs: Sequence[list[_Word]], collar: float | None) -> int:
    """Return the errors under the best assignment of speakers; ``collar`` None: whatever the times."""
    from scipy.optimize import linear_sum_assignment

    number = max(len(ours), len(theirs))
    nobody: list[_Word] = []
    # Padded with speakers who say nothing: extra speakers cost all of their words.
    ours, theirs = ([*one, *[nobody] * (number - len(one))] for one in (ours, theirs))
    costs = np.array([[word_distance(one, other, collar) for other in theirs] for one in ours]).reshape(number, number)
    return int(costs[linear_sum_assignment(costs)].sum())


def word_distance(reference: Sequence[_Word], hypothesis: Sequence[_Word], collar: float | None) -> int:
    """Return the Levenshtein distance of words; with a ``collar``, those whose times don't overlap don't match."""
    numbers = {text: number for number, text in enumerate({word.text for word in (*reference, *hypothesis)})}
    found = np.array([numbers[word.text] for word in hypothesis], np.int64)
    # As in MeetEval: a hypothesis word counts as its middle, a reference word as its whole interval, with the collar.
    middles = np.array([(word.start + word.end) / 2 for word in hypothesis])
    places = np.arange(len(hypothesis) + 1)
    row = places.copy()
    for word in reference:
        # One row of the table for each reference word, all hypothesis words at once.
        across = row[:-1] + (found != numbers[word.text])
        if collar is not None:
            near = (word.start < middles + collar) & (word.end > middles - collar)
            # One missed and one inserted.
            across = np.where(near, across, row[:-1] + 2)
        best = row + 1
        best[1:] = np.minimum(best[1:], across)
        # Insertions run from left to right: each step costs 1, so take the least of (cost - place) so far.
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])


def read_turns(path: Path) -> dict[str, list[Turn]]:
    """Return the turns of each recording, of a file or of all files of a folder that have one of the formats' endings.

    Raises DataError, naming file and line.
    """
    lines = {".stm": _stm, ".rttm": _lexemes, ".json": _seglst, ".jsonl": _jsonl}
    found = read_folder(path, {ending: partial(_read_file, read) for ending, read in lines.items()})
    if not any(found.values()):
        raise DataError(f"{path}: nobody says anything; expected turns with text")
    return found


def _read_file(read: Callable[[Path], Read], path: Path) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {}
    for where, recording, turn in read(path):
        if turn is not None and turn.end < turn.start:
            raise DataError(f"{where}: a turn ends at {turn.end:g} s, but begins at {turn.start:g} s")
        turns = found.setdefault(recording, [])
        turns.extend([] if turn is None else [turn])
    return found


Read = Iterator[tuple[str, str, Turn | None]]
"""Where a turn is written, its recording, and it; None of a recording without any."""


def _stm(path: Path) -> Read:
    for line in read_lines(path):
        line.require(5, 10**9, "a line of an STM")
        words = line.fields[5:]
        # STM's optional field of labels, such as <o,f0,male>.
        if words[:1] and words[0].startswith("<") and words[0].endswith(">"):
            words = words[1:]
        if words != ["IGNORE_TIME_SEGMENT_IN_SCORING"]:
            start, end = line.seconds(3, "start"), line.seconds(4, "end")
            yield line.where, line.name(0, "recording"), Turn(start, end, line.name(2, "speaker"), " ".join(words))


def _lexemes(path: Path) -> Read:
    for line in read_lines(path):
        if line.fields[0] == "LEXEME":
            line.require(8, 10, "LEXEME")
            start, word = line.seconds(3, "start"), line.name(5, "word")
            turn = Turn(start, round(start + line.seconds(4, "duration"), 9), line.name(7, "speaker"), word)
            yield line.where, line.name(1, "recording"), turn


def _seglst(path: Path) -> Read:
    entries = _parse_json(read_content(path), str(path))
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected a list of segments (SegLST)")
    for number, entry in enumerate(entries):
        where = f"{path}: segment {number}"
        names = ("start_time", "end_time", "speaker", "words", "session_id")
        start, end, speaker, text, recording = (_field(entry, name, where) for name in names)
        yield (
            where,
            recording,
            Turn(parse_seconds(start, "start", where), parse_seconds(end, "end", where), speaker, text),
        )


def _jsonl(path: Path) -> Read:
    for number, content in enumerate(read_content(path).split(b"\n"), start=1):
        if not content.strip():
            continue
        where = f"{path}:{number}"
        entry = _parse_json(content, where)
        recording, segments = _field(entry, "name", where), entry.get("segments")
        if not isinstance(segments, list):
            raise DataError(f"{where}: expected segments, a list")
        # A recording without any segment must exist, too: all its words are missed, or nobody spoke.
        yield where, recording, None
        for one in segments:
            start, end, speaker, text = (_field(one, name, where) for name in ("start", "end", "speaker", "text"))
            times = parse_seconds(start, "start", where), parse_seconds(end, "end", where)
            yield where, recording, Turn(*times, speaker, text)


def _parse_json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise DataError(f"{where}: this is not JSON: {error}") from error


def _field(entry: Any, name: str, where: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, str | int | float):
        raise DataError(f"{where}: expected {name}; there is {json.dumps(entry, ensure_ascii=False)[:80]}")
    return str(value)


def stm_text(recording: str, turns: Sequence[Turn], path: Path) -> str:
    """Return the turns as lines of an STM for ``path``. Raises DataError for a name that can't be read again."""
    lines = []
    for start, end, speaker, text in turns:
        names = as_field(recording, "recording", path), as_field(speaker, "speaker", path)
        lines.append(f"{names[0]} 1 {names[1]} {as_seconds(start)} {as_seconds(end)} <NA> {text}\n")
    return "".join(lines)


def rttm_words(recording: str, turns: Sequence[Turn], path: Path) -> str:
    """The turns as RTTM: a SPEAKER line each, then LEXEME lines of its words, at the times of ``split_words``."""
    lines = []
    for turn in turns:
        names = as_field(recording, "recording", path), as_field(turn.speaker, "speaker", path)

        def line(kind: str, start: float, end: float, text: str, of: str, names: tuple[str, str] = names) -> str:
            times = f"{as_seconds(start)} {as_seconds(round(end, 6) - round(start, 6))}"
            return f"{kind} {names[0]} 1 {times} {text} {of} {names[1]} {MISSING} {MISSING}\n"

        lines.append(line("SPEAKER", turn.start, turn.end, MISSING, MISSING))
        for text, start, end in split_words(turn):
            lines.append(line("LEXEME", start, end, text, "lex"))
    return "".join(lines)
