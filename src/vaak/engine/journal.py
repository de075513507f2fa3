"""What the world did to a run, written down before it acts: the examples that could not be read and were skipped.

A resume reads it, so an example that failed once is left out again even if it could now be read: same draws.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

from vaak.data.reader import Microbatch

log = logging.getLogger("vaak")


class Journal:
    """``skipped.jsonl`` in the run directory (with the rank in its name on other ranks than the first)."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.path = directory / ("skipped.jsonl" if rank == 0 else f"skipped.rank{rank}.jsonl")
        self.known = {
            (entry["epoch"], entry["index"]) for file in directory.glob("skipped*.jsonl") for entry in _read(file)
        }
        self.ends_in_half_line = self.path.exists() and not self.path.read_bytes().endswith(b"\n")

    def add(self, microbatches: list[Microbatch]) -> None:
        """Write down, flushed, what was skipped in these microbatches and not known yet."""
        fresh = [
            skip
            for microbatch in microbatches
            for skip in microbatch.skipped
            if (skip.epoch, skip.index) not in self.known
        ]
        if not fresh:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            if self.ends_in_half_line:
                file.write("\n")
                self.ends_in_half_line = False
            for skip in fresh:
                self.known.add((skip.epoch, skip.index))
                file.write(json.dumps(asdict(skip), ensure_ascii=False) + "\n")
                log.warning("skipped example %d (%s): %s", skip.index, skip.description, skip.reason)
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> list[dict[str, int]]:
    """The whole lines of a journal; a half one, which a kill leaves, was never acted on."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return entries
