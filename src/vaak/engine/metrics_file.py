"""The numbers that a run logs: ``metrics.jsonl``, and its subscribers (trackers, console).

Each line is one JSON object: ``kind`` (step, evaluation, epoch, learning_rates), ``step``, ``epoch``, then values. A
line is handed to the system at once, whole or not at all, so a killed process loses none.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vaak.core.storage.json_lines import append_json_lines, parse_json_lines

Record = Mapping[str, Any]

log = logging.getLogger("vaak")

# More than the records of one step take.
TAIL_BYTES = 1 << 20


class Records:
    """Appends records to a file and passes each to its subscribers; with ``path`` None (other ranks), does nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.listeners: list[Callable[[Record], None]] = []

    def subscribe(self, listener: Callable[[Record], None]) -> None:
        """Have ``listener`` called with every record from now on."""
        self.listeners.append(listener)

    def write(self, record: Record) -> None:
        """Write one record and pass it on. Numbers that JSON can't hold are written as text (``"nan"``)."""
        if self.path is None:
            return
        append_json_lines(self.path, [_in_json(record)])
        for listener in self.listeners:
            listener(record)


def json_line(record: Record) -> str:
    """A record as one line of JSON, without its end.

    >>> json_line({"kind": "step", "loss": float("nan")})
    '{"kind": "step", "loss": "nan"}'
    """
    return json.dumps(_in_json(record), ensure_ascii=False)


def _in_json(record: Record) -> dict[str, Any]:
    """A record with the numbers that JSON can't hold as text."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file. A half line at its end is left out; so are lines that are none, with a warning."""
    return _records_in(path.read_bytes(), path)


NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}


def read_history(directory: Path) -> list[dict[str, Any]]:
    """The records of a run directory in their order, numbers that JSON can't hold as floats again."""
    path = directory / "metrics.jsonl"
    return [
        {name: NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in record.items()}
        for record in (read_records(path) if path.exists() else [])
    ]


def read_newest_records(path: Path, step: int) -> list[dict[str, Any]]:
    """The records of ``step`` and of later ones, read from the file's end; none without a file."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        begin = path.stat().st_size - TAIL_BYTES
        # The byte before tells whether a line begins here.
        file.seek(max(0, begin - 1))
        content = file.read()
    whole = content if begin <= 0 else content.partition(b"\n")[2]
    return [record for record in _records_in(whole, path) if record["step"] >= step]


def _records_in(content: bytes, path: Path) -> list[dict[str, Any]]:
    found = parse_json_lines(content)
    records = [
        record for _, record in found.objects if isinstance(record.get("kind"), str) and type(record.get("step")) is int
    ]
    if ignored := len(found.malformed) + len(found.objects) - len(records):
        log.warning("%s: %d lines aren't records of a run: they are ignored", path, ignored)
    return records
