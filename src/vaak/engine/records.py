"""What a run says of itself in numbers: ``metrics.jsonl``, and whoever repeats it (trackers, console).

Each line is one JSON object: ``kind`` (step, evaluation, epoch, learning_rates), ``step``, ``epoch``, then values. A
line is handed to the system as soon as it is written, so a killed process loses none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


class Records:
    """Appends records to a file and hands each to those who subscribed. ``path`` None (other ranks) keeps silent."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.listeners: list[Callable[[Record], None]] = []

    def subscribe(self, listener: Callable[[Record], None]) -> None:
        """Have ``listener`` called with every record from now on."""
        self.listeners.append(listener)

    def write(self, record: Record) -> None:
        """Write one record down and hand it on. Numbers that JSON can't hold are written as text (``"nan"``)."""
        if self.path is None:
            return
        line = json.dumps({name: _json_value(value) for name, value in record.items()}, ensure_ascii=False)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        for listener in self.listeners:
            listener(record)


def _json_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_records(path: Path) -> list[dict[str, Any]]:
    """The whole records of a file; a half line at its end is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records
