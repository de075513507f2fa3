"""Events from outside that change a run, written down before they apply: skipped examples, batches split in chunks.

A resume reads it, so the same happens at the same step: same draws, and the same bits. So a line that can't be read is
an error then, and none to a run that starts from step 0, which sets the journal aside.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from vaak.core.storage.json_lines import append_json_lines, read_json_lines
from vaak.data.loader import Microbatch

log = logging.getLogger("vaak")

JOURNALS = ("skipped", "splits")
LONGEST_SHOWN = 80
Parsed = TypeVar("Parsed")


class Journal(Generic[Parsed]):
    """``name``.jsonl in the run directory (``name``.rank1.jsonl where ``rank`` is 1): flushed line by line.

    ``entries`` are those of all ranks, as they were when the journal was opened, as ``parse`` reads them, which raises
    ValueError for one that was changed. ``data`` is the fingerprint of what they are about: each carries
    it, and those for other data are ignored. ``problem`` says which line can't be read, if there is one.
    """

    def __init__(
        self, directory: Path, name: str, rank: int, parse: Callable[[dict[str, Any]], Parsed], data: str | None = None
    ) -> None:
        self.path = directory / (f"{name}.jsonl" if rank == 0 else f"{name}.rank{rank}.jsonl")
        self.data = data
        self.entries: list[Parsed] = []
        self.problem: str | None = None
        foreign = 0
        # those of all ranks: a resume may divide examples differently over them
        for file in journal_files(directory, name):
            found = read_json_lines(file)
            for number, text in found.malformed:
                self._note(file, number, text)
            for number, entry in found.objects:
                if entry.pop("data", data) != data and data is not None:
                    foreign += 1
                    continue
                try:
                    self.entries.append(parse(entry))
                except ValueError:
                    self._note(file, number, json.dumps(entry, ensure_ascii=False))
        if foreign and rank == 0:
            log.warning("%s: %d lines are for other data: ignored", self.path, foreign)

    def _note(self, file: Path, number: int, text: str) -> None:
        """Remember a line that isn't an entry; but the beginning of one is what a kill leaves, perhaps long ago."""
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        if text.startswith("{") and not text.rstrip().endswith("}"):
            log.warning(
                "%s, line %d: a line that a killed process left unfinished is ignored (%s)", file, number, shown
            )
        elif self.problem is None:
            self.problem = f"{file}, line {number}: Vaak didn't write this line ({shown})"

    def forget(self) -> None:
        """Clear the entries: the files were moved away."""
        self.entries, self.problem = [], None

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write entries down, in place of a torn last line; they are on the disk when this returns."""
        about = {} if self.data is None else {"data": self.data}
        append_json_lines(self.path, (entry | about for entry in entries), flushed=True)


class SkippedExamples:
    """The examples that could not be read; one that failed once is skipped again even if it could now be read."""

    def __init__(self, directory: Path, rank: int, data: str | None = None) -> None:
        self.journal = Journal(directory, "skipped", rank, _parse_key, data)
        self.known = set(self.journal.entries)

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


def _parse_key(entry: Mapping[str, Any]) -> tuple[int, int, int]:
    """Epoch, index and occurrence of a skipped example. Raises ValueError if one isn't a number."""
    epoch, index, occurrence = (entry.get(name, default) for name, default in PLACE_KEYS)
    if not (type(epoch) is type(index) is type(occurrence) is int):
        raise ValueError(entry)
    return epoch, index, occurrence


PLACE_KEYS = (("epoch", None), ("index", None), ("occurrence", 0))
"""The keys that tell a skipped example, with their defaults: earlier versions wrote no occurrence."""


def journal_files(directory: Path, *names: str) -> list[Path]:
    """Return the files of journals, of all ranks."""
    return [file for name in names for file in sorted(directory.glob(f"{name}*.jsonl"))]
