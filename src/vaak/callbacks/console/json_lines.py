"""Console output for machines: lines of JSON on standard output, the records of ``metrics.jsonl`` among them."""

from __future__ import annotations

import sys

from vaak.callbacks.tracking.tracked import Tracker
from vaak.engine.records.metrics_file import Record, json_line


class JsonLinesCallback(Tracker):
    """Prints each record as it is in ``metrics.jsonl``. A reader that goes away doesn't end training."""

    name = "standard output"

    def write(self, record: Record) -> None:
        print_line(record)


def print_line(record: Record) -> None:
    """Print a line of JSON in one piece, so that lines of several processes don't mix."""
    sys.stdout.write(json_line(record) + "\n")
    sys.stdout.flush()
