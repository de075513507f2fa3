"""Cleaned rows of a split on disk, such as pairs of texts: random access, none in memory.

FOLDER/NAME.jsonl has one line per row: of pairs {"source": text, "targets": [text, …], "where": "file:line"}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from vaak.core.errors import FormatError
from vaak.core.storage.mapped_lines import MappedLines, cut_short, writing_lines
from vaak.text.corpora.parallel import Pair

Row = TypeVar("Row", bound=Any)


class RowStore(Generic[Row]):
    """The rows of a folder, tuples of ``kind``: ``store[i]`` is one, and iterating gives all of them in order.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    kind: ClassVar[Any]
    name: ClassVar[str]

    def __init__(self, folder: str | Path) -> None:
        """Map the rows in ``folder``.

        Raises DataError if there are none, or they are truncated; FormatError if another version wrote them.
        """
        self.folder = Path(folder)
        self.path = self.folder / f"{self.name}s.jsonl"
        self._lines = MappedLines(self.path, self.name)
        if len(self):
            self._entry(0)

    @classmethod
    def write(cls, folder: Path, rows: Iterable[Row]) -> Self:
        """Stream ``rows`` to ``folder`` and return the store; an existing one is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        with writing_lines(folder / f"{cls.name}s.jsonl") as lines:
            for row in rows:
                lines.write(json.dumps(row._asdict(), ensure_ascii=False).encode() + b"\n")
        return cls(folder)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        row: Row = self.kind(**{key: _frozen(value) for key, value in self._entry(index).items()})
        return row

    def _entry(self, index: int) -> dict[str, Any]:
        try:
            entry = json.loads(self._lines[index])
        except ValueError as error:
            raise cut_short(self.folder) from error
        found = tuple(entry) if isinstance(entry, dict) else ()
        if set(found) != set(self.kind._fields):
            columns = [" and ".join(one) or "nothing" for one in (found, self.kind._fields)]
            raise FormatError(self.path, f"{self.name}s", *columns)
        return dict(entry)

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)


def _frozen(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


class PairStore(RowStore[Pair]):
    """The pairs of a folder."""

    kind, name = Pair, "pair"


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
    return PairStore.write(folder, pairs)
