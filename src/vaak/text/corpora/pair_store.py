"""Cleaned pairs of a split on disk: random access, none in memory.

FOLDER/pairs.jsonl has one line per pair: {"source": text, "targets": [text, …], "where": "file:line"}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vaak.core.errors import FormatError
from vaak.core.storage.mapped_lines import MappedLines, cut_short, writing_lines
from vaak.text.corpora.parallel import Pair

PAIRS = "pairs.jsonl"


class PairStore:
    """The pairs of a folder: ``store[i]`` is one, and iterating gives all of them in order.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the pairs in ``folder``.

        Raises DataError if there are none, or they are truncated; FormatError if another version wrote them.
        """
        self.folder = Path(folder)
        self._lines = MappedLines(self.folder / PAIRS, "pair")
        if len(self):
            self._entry(0)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Pair:
        entry = self._entry(index)
        return Pair(entry["source"], tuple(entry["targets"]), entry["where"])

    def _entry(self, index: int) -> dict[str, Any]:
        try:
            entry = json.loads(self._lines[index])
        except ValueError as error:
            raise cut_short(self.folder) from error
        found = tuple(entry) if isinstance(entry, dict) else ()
        if set(found) != set(Pair._fields):
            columns = [" and ".join(one) or "nothing" for one in (found, Pair._fields)]
            raise FormatError(self.folder / PAIRS, "pairs", *columns)
        return dict(entry)

    def __iter__(self) -> Iterator[Pair]:
        return map(self.__getitem__, range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return PairStore, (self.folder,)


class Texts:
    """The sources, or the first targets, or both, of a store's pairs; can be read again and again."""

    def __init__(self, store: PairStore, *sides: str) -> None:
        self.store, self.sides = store, sides

    def __len__(self) -> int:
        return len(self.store) * len(self.sides)

    def __iter__(self) -> Iterator[str]:
        for pair in self.store:
            for side in self.sides:
                yield pair.source if side == "source" else pair.targets[0]


def write_pairs(folder: Path, pairs: Iterable[Pair]) -> PairStore:
    """Stream ``pairs`` to ``folder`` and return the store; an existing one is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    with writing_lines(folder / PAIRS) as lines:
        for pair in pairs:
            lines.write(json.dumps(pair._asdict(), ensure_ascii=False).encode() + b"\n")
    return PairStore(folder)
