"""The numbers that a run logs: ``metrics.jsonl``, and its subscribers (trackers, console).

Each line is one JSON object: ``kind`` (step, evaluation, epoch, learning_rates), ``step``, ``epoch``, then values. A
line is handed to the system at once, whole or not at all, so a killed process loses none.

A listing of runs needs a few numbers of a log that may have hundreds of megabytes. ``totals.jsonl`` has their sums up
to some of its lines: ``{"bytes": …, "before": hash of what ends there, "step": …, "seconds": …, "parameters": …}``, so
that only what follows is read. It is a shortcut: without it, or where it is of another log, the whole log is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from vaak.core.errors import UserError
from vaak.core.storage.files import warn_unread
from vaak.core.storage.json_lines import append_json_lines, iterate_lines, read_json_lines

Record = Mapping[str, Any]

log = logging.getLogger("vaak")

METRICS_FILE, TOTALS_FILE = "metrics.jsonl", "totals.jsonl"
# More than the records of one step take.
TAIL_BYTES = 1 << 20
BYTES_A_TOTAL = 1 << 16
"""Bytes of records between two entries of ``totals.jsonl``: a listing reads them in about 1 ms."""
BYTES_HASHED = 1 << 10
"""Bytes before the end of a log's part by which it is known again. The clocks in them differ from run to run."""


class Records:
    """Appends records to a file and passes each to its subscribers; with ``path`` None (other ranks), does nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # A log that is there may have no totals yet, or a resume has just cut it.
        self.since_totals = path.stat().st_size if path is not None and path.exists() else 0
        self.listeners: list[Callable[[Record], None]] = []

    def subscribe(self, listener: Callable[[Record], None]) -> None:
        """Have ``listener`` called with every record from now on."""
        self.listeners.append(listener)

    def write(self, record: Record) -> None:
        """Write one record and pass it on. Numbers that JSON can't hold are written as text (``"nan"``)."""
        if self.path is None:
            return
        self.since_totals += append_json_lines(self.path, [_in_json(record)])
        if self.since_totals >= BYTES_A_TOTAL:
            self.since_totals = 0
            keep_totals(self.path.parent)
        for listener in self.listeners:
            listener(record)


def json_line(record: Record) -> str:
    """Return a record as one line of JSON, without its end.

    >>> json_line({"kind": "step", "loss": float("nan")})
    '{"kind": "step", "loss": "nan"}'
    """
    return json.dumps(_in_json(record), ensure_ascii=False)


def _in_json(record: Record) -> dict[str, Any]:
    """Return a record with the numbers that JSON can't hold as text."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file. A half line at its end is left out; so are lines that are none, with a warning."""
    return list(iterate_records(path))


def iterate_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path``, with one at a time in memory, however long the run is."""
    with open(path, "rb") as file:
        yield from _records_in(file, path)


NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}


def read_history(directory: Path) -> list[dict[str, Any]]:
    """Return the records of a run directory in their order, numbers that JSON can't hold as floats again."""
    return list(iterate_history(directory))


def iterate_history(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a run's folder, with non-finite values as floats."""
    path = directory / METRICS_FILE
    for record in iterate_records(path) if path.exists() else ():
        yield {
            name: NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in record.items()
        }


def iterate_evaluations(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a run's evaluations, in their order; none without a log. Other lines aren't parsed."""
    path = directory / METRICS_FILE
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for _, value in iterate_lines(line for line in file if b"evaluation" in line):
            if is_record(value) and value["kind"] == "evaluation":
                yield value


def read_newest_records(path: Path, step: int) -> list[dict[str, Any]]:
    """Return the records of ``step`` and of later ones, read from the file's end; none without a file."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        begin = path.stat().st_size - TAIL_BYTES
        # The byte before tells whether a line begins here.
        file.seek(max(0, begin - 1))
        content = file.read()
    whole = content if begin <= 0 else content.partition(b"\n")[2]
    return [record for record in _records_in(io.BytesIO(whole), path) if record["step"] >= step]


def _records_in(file: BinaryIO, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records from a file's position on; a warning at the end says how many lines were none."""
    ignored = 0
    for line, value in iterate_lines(file):
        if is_record(value):
            yield value
        elif line.strip():
            ignored += 1
    _warn_of_ignored(path, ignored)


def _warn_of_ignored(path: Path, lines: int) -> None:
    if lines:
        log.warning("%s: %d lines aren't records of a run: they are ignored", path, lines)


def is_record(value: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """Return whether a line's value is a record of a run."""
    return value is not None and isinstance(value.get("kind"), str) and type(value.get("step")) is int


@dataclass
class Totals:
    """Facts of a run's records for a listing: the last step, the seconds that steps took, the size of the model.

    ``ignored`` counts the lines that aren't records.
    """

    step: int = 0
    seconds: float = 0.0
    parameters: int | None = None
    ignored: int = 0

    def add(self, record: Record) -> None:
        """Take in a record; a value of the wrong kind, as in a damaged log, is left out."""
        self.step = max(self.step, record["step"])
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            if record["kind"] == "model":
                self.parameters = int(record["parameters"])
            elif record["kind"] == "step" and math.isfinite(took := float(record["clock"]["seconds"])):
                self.seconds += took


def read_totals(directory: Path) -> Totals:
    """Return the totals of a run's records; zero without any. Reads on from where ``totals.jsonl`` is up to."""
    totals = _sum_up(directory)[0]
    _warn_of_ignored(directory / METRICS_FILE, totals.ignored)
    return totals


def keep_totals(directory: Path) -> None:
    """Add to ``totals.jsonl`` what the records sum up to, if many follow its last entry; warn where that fails."""
    path = directory / TOTALS_FILE
    try:
        totals, end, begin = _sum_up(directory)
        if end - begin >= BYTES_A_TOTAL:
            with open(directory / METRICS_FILE, "rb") as log_file:
                append_json_lines(path, [{"bytes": end, "before": _hash_before(log_file, end), **vars(totals)}])
    except (OSError, UserError) as error:
        log.warning("%s can't be written (%s): vaak runs reads this run's whole log", path, error)


def _sum_up(directory: Path) -> tuple[Totals, int, int]:
    """The totals, where in the log the last line ends that is in them, and where the part ends that was summed up."""
    path = directory / METRICS_FILE
    if not path.is_file():
        return Totals(), 0, 0
    with open(path, "rb") as file:
        totals, begin = _newest_totals(directory / TOTALS_FILE, file)
        end = file.seek(begin)
        for line, value in iterate_lines(file):
            end += len(line)
            if is_record(value):
                totals.add(value)
            elif line.strip():
                totals.ignored += 1
    return totals, end, begin


def _newest_totals(path: Path, log_file: BinaryIO) -> tuple[Totals, int]:
    """Return the totals of the longest part of a log that ``totals.jsonl`` has, and where in the log that part ends.

    A resume cuts the log and writes other lines: entries about the old ones point beyond its end, or have another hash.
    """
    size = log_file.seek(0, io.SEEK_END)
    try:
        entries = [entry for _, entry in read_json_lines(path).objects] if path.is_file() else []
    except OSError as error:
        warn_unread(path, error)
        entries = []
    for entry in sorted(entries, key=lambda one: _whole(one, "bytes"), reverse=True):
        end, seconds, parameters = _whole(entry, "bytes"), entry.get("seconds"), entry.get("parameters")
        if 0 < end <= size and entry.get("before") == _hash_before(log_file, end):
            totals = Totals(_whole(entry, "step"), ignored=_whole(entry, "ignored"))
            totals.seconds = seconds if isinstance(seconds, float) and math.isfinite(seconds) else 0.0
            totals.parameters = parameters if type(parameters) is int else None
            return totals, end
    return Totals(), 0


def _whole(entry: Record, name: str) -> int:
    """Return a whole number of an entry; 0 where it is something else, as in a damaged file."""
    value = entry.get(name)
    return value if type(value) is int else 0


def _hash_before(log_file: BinaryIO, end: int) -> str:
    begin = max(0, end - BYTES_HASHED)
    log_file.seek(begin)
    return hashlib.blake2b(log_file.read(end - begin), digest_size=16).hexdigest()
