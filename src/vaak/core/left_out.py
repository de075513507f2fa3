"""Counts of items read and left out, for files and folders, and for the splits made of them.

A command says it in one line for each reason, and has the same in its JSON::

    calls: 12 files are read; 2 files left out (hidden): .a.wav, .b.wav
    calls: 12 files are read; other files in this folder: 3 .txt, 1 .docx
    valid: 40 recordings; left out: 2 audio files without RTTM or TextGrid (a.wav, b.wav)
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaak.core.names import list_names

log = logging.getLogger("vaak")
MOST_KEPT = 3
"""How many names are kept for each reason; further ones are only counted."""
MOST_ENDINGS = 8
CONTENTS = "contents"
"""The key of a split's statistics that has its ``SplitContents``."""


@dataclass
class ReadFiles:
    """How many files of a place were read, and the names of the others, by reason."""

    where: str
    num_read: int
    left_out: dict[str, list[str]] = field(default_factory=dict)
    endings: dict[str, int] = field(default_factory=dict)
    """How many files of other kinds there are, by ending."""

    def lines(self) -> Iterator[str]:
        """Yield a line for each reason; none if nothing is left out."""
        read = f"{self.where}: {self.num_read:,} file{' is' if self.num_read == 1 else 's are'} read"
        for why, names in self.left_out.items():
            number = f"{len(names):,} file{'' if len(names) == 1 else 's'}"
            yield f"{read}; {number} left out ({why}): {list_names(names)}"
        if self.endings:
            others = [f"{number:,} {ending}" for ending, number in self.endings.items()]
            yield f"{read}; other files in this folder: {list_names(others, MOST_ENDINGS)}"

    def to_json(self) -> dict[str, Any]:
        return {"where": self.where, "read": self.num_read, "left_out": self.left_out, "other_files": self.endings}


_noted: ContextVar[dict[str, ReadFiles] | None] = ContextVar("noted", default=None)
_said: set[str] = set()
"""Lines that this process has logged: several parts of a command look through the same files."""


@contextlib.contextmanager
def noting_files() -> Iterator[dict[str, ReadFiles]]:
    """Within this context, also collect reports about files in the dictionary, by place, for a command's JSON."""
    noted: dict[str, ReadFiles] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def files_to_json(noted: Mapping[str, ReadFiles]) -> list[dict[str, Any]]:
    return [one.to_json() for one in noted.values()]


def report_files(
    where: object, num_read: int, left_out: Mapping[str, str] | None = None, others: Iterable[Path] = ()
) -> None:
    """Log what isn't read of a place, once in a process: ``left_out`` has the reason of each by its name.

    ``others`` are files of kinds that nobody would read there: they are counted by their endings.
    """
    found = ReadFiles(str(where), num_read, endings=count_endings(others))
    for name, why in (left_out or {}).items():
        found.left_out.setdefault(why, []).append(name)
    noted = _noted.get()
    if noted is not None:
        noted[found.where] = found
    for line in found.lines():
        if line not in _said:
            _said.add(line)
            log.warning("%s", line)


def count_endings(files: Iterable[Path]) -> dict[str, int]:
    """Return how many files have each ending, in lower case, the most frequent first.

    >>> count_endings([Path("a.TXT"), Path("notes"), Path("b.txt")])
    {'.txt': 2, 'without an ending': 1}
    """
    counts = Counter(path.suffix.lower() or "without an ending" for path in files)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass
class SplitContents:
    """How many items of a split are used, in a ``unit`` such as recordings, and how many were left out, by reason.

    ``names`` are those of the first ones, by reason, where they have names.
    """

    unit: str
    number: int
    left_out: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def describe(self, split: str) -> str:
        """Describe the split's contents in one line.

        >>> SplitContents("recordings", 40, {"without a text": 2}, {"without a text": ["a"]}).describe("valid")
        'valid: 40 recordings; left out: 2 without a text (a and 1 more)'
        """
        reasons = [f"{number:,} {why}{self._list_first(why, number)}" for why, number in self.left_out.items()]
        unit = self.unit.removesuffix("s") if self.number == 1 else self.unit
        return f"{split}: {self.number:,} {unit}" + (f"; left out: {'; '.join(reasons)}" if reasons else "")

    def lines(self, where: str) -> Iterator[str]:
        """Yield a line for each reason."""
        for why, number in self.left_out.items():
            yield f"{where}: {number:,} skipped: {why}{self._list_first(why, number)}"

    def _list_first(self, why: str, number: int) -> str:
        names = self.names.get(why, ())
        if not names:
            return ""
        rest = number - len(names)
        return f" ({', '.join(names)}{f' and {rest:,} more' if rest > 0 else ''})"

    def to_json(self) -> dict[str, Any]:
        names = {why: names for why, names in self.names.items() if why in self.left_out}
        return {"unit": self.unit, "number": self.number, "left_out": self.left_out, "names": names}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SplitContents:
        return cls(**values)


class FirstNames(dict[str, list[str]]):
    """The first names that are left out, by reason.

    >>> names = FirstNames()
    >>> for name in "abcd":
    ...     names.add("silent", name)
    >>> names
    {'silent': ['a', 'b', 'c']}
    """

    def add(self, why: str, name: str) -> None:
        """Keep a name, if it is among the first of its reason."""
        kept = self.setdefault(why, [])
        if len(kept) < MOST_KEPT and name not in kept:
            kept.append(name)


def join_contents(parts: Collection[SplitContents]) -> SplitContents:
    """Return the joint contents of several parts of a split, in the unit of the first part, the one that is used."""
    first = next(iter(parts))
    together = SplitContents(first.unit, sum(one.number for one in parts))
    names = FirstNames()
    for one in parts:
        for why, number in one.left_out.items():
            together.left_out[why] = together.left_out.get(why, 0) + number
        for why, own in one.names.items():
            for name in own:
                names.add(why, name)
    together.names = dict(names)
    return together
