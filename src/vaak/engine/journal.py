"""What the world did to a run, written down before it acts: skipped examples, batches cut in pieces.

A resume reads it, so what happened once happens again at the same place: same draws, and the same bits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vaak.data.reader import Microbatch

log = logging.getLogger("vaak")


class Journal:
    """``NAME.jsonl`` in the run directory (``NAME.rank1.jsonl`` on other ranks than the first): flushed line by line.

    ``entries`` are those of all ranks, as they were when the journal was opened.
    """

    def __init__(self, directory: Path, name: str, rank: int) -> None:
        self.path = directory / (f"{name}.jsonl" if rank == 0 else f"{name}.rank{rank}.jsonl")
        self.entries = [entry for file in sorted(directory.glob(f"{name}*.jsonl")) for entry in _read(file)]
        self.ends_in_half_line = self.path.exists() and not self.path.read_bytes().endswith(b"\n")

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write entries down; they are on the disk when this returns."""
        with open(self.path, "a", encoding="utf-8") as file:
            if self.ends_in_half_line:
                file.write("\n")
                self.ends_in_half_line = False
            for entry in entries:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


class SkippedExamples:
    """The examples that could not be read; one that failed once is left out again even if it could now be read."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.journal = Journal(directory, "skipped", rank)
        self.known = {(entry["epoch"], entry["index"], entry.get("occurrence", 0)) for entry in self.journal.entries}

    def add(self, microbatches: list[Microbatch]) -> None:
        """Write down what was skipped in these microbatches and not known yet."""
        fresh = [skip for microbatch in microbatches for skip in microbatch.skipped if skip.key not in self.known]
        if not fresh:
            return
        for skip in fresh:
            self.known.add(skip.key)
            log.warning("skipped example %d (%s): %s", skip.index, skip.description, skip.reason)
        self.journal.append(asdict(skip) for skip in fresh)


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; a half one, which a kill leaves, was never acted on."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return entries
