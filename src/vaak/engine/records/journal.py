"""Events from outside that change a run, written down before they apply: skipped examples, batches split in pieces.

A resume reads it, so the same happens at the same step: same draws, and the same bits.
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


JOURNALS = ("skipped", "splits")


class Journal:
    """``NAME.jsonl`` in the run directory (``NAME.rank1.jsonl`` on other ranks than the first): flushed line by line.

    ``entries`` are those of all ranks, as they were when the journal was opened. ``data`` is the fingerprint of what
    they are about: each carries it, and those for other data are ignored.
    """

    def __init__(self, directory: Path, name: str, rank: int, data: str | None = None) -> None:
        self.path = directory / (f"{name}.jsonl" if rank == 0 else f"{name}.rank{rank}.jsonl")
        self.data = data
        found = [entry for file in journal_files(directory, name) for entry in _read(file)]
        self.entries = [entry for entry in found if entry.pop("data", data) == data or data is None]
        if len(self.entries) < len(found) and rank == 0:
            log.warning("%s: %d lines are for other data: ignored", self.path, len(found) - len(self.entries))
        self.ends_in_half_line = self.path.exists() and not self.path.read_bytes().endswith(b"\n")

    def forget(self) -> None:
        """Clear the entries: the files were moved away."""
        self.entries, self.ends_in_half_line = [], False

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write entries down; they are on the disk when this returns."""
        with open(self.path, "a", encoding="utf-8") as file:
            if self.ends_in_half_line:
                file.write("\n")
                self.ends_in_half_line = False
            about = {} if self.data is None else {"data": self.data}
            for entry in entries:
                file.write(json.dumps(entry | about, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


class SkippedExamples:
    """The examples that could not be read; one that failed once is skipped again even if it could now be read."""

    def __init__(self, directory: Path, rank: int, data: str | None = None) -> None:
        self.journal = Journal(directory, "skipped", rank, data)
        self.known = {(entry["epoch"], entry["index"], entry.get("occurrence", 0)) for entry in self.journal.entries}

    def forget(self) -> None:
        """Clear them."""
        self.journal.forget()
        self.known.clear()

    def add(self, microbatches: list[Microbatch]) -> None:
        """Write down what was skipped in these microbatches and not known yet."""
        fresh = [skip for microbatch in microbatches for skip in microbatch.skipped if skip.key not in self.known]
        if not fresh:
            return
        for skip in fresh:
            self.known.add(skip.key)
            log.warning("skipped example %d (%s): %s", skip.index, skip.description, skip.reason)
        self.journal.append(asdict(skip) for skip in fresh)


def journal_files(directory: Path, *names: str) -> list[Path]:
    """The files of journals, of all ranks."""
    return [file for name in names for file in sorted(directory.glob(f"{name}*.jsonl"))]


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; a half one, which a kill leaves, was never acted on."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries
