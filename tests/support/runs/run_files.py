"""What a run wrote, as tests read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.engine.checkpoint.files import load_checkpoint, pointed
from vaak.engine.metrics_file import read_records
from vaak.engine.snapshot import Snapshot


def last_checkpoint(run: Path) -> Snapshot:
    """The contents of the checkpoint that ``last`` names."""
    path = pointed(run / "checkpoints", "last")
    assert path is not None
    return load_checkpoint(path)


def records_without_clock(run: Path) -> list[dict[str, Any]]:
    """The records of the metrics but for what the clock said: those of a repeated run are equal."""
    records = read_records(run / "metrics.jsonl")
    return [{name: value for name, value in record.items() if name != "clock"} for record in records]
