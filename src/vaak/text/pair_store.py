r"""Cleaned pairs of a split on disk: any of them at once, none in memory.

FOLDER/
  pairs.jsonl    a line a pair: {"source": text, "targets": [text, …], "where": "file:line"}
  offsets.bin    int64, one more than pairs: pair i is the bytes offsets[i]:offsets[i + 1]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import DataError
from vaak.core.files import sync_file
from vaak.text.parallel import Pair


class PairStore:
    """The pairs of a folder: ``store[i]`` is one, and iterating gives all of them in order.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the pairs in ``folder``. Raises DataError where there are none, or they are cut short."""
        self.folder = Path(folder)
        path = self.folder / "pairs.jsonl"
        try:
            size = path.stat().st_size
            self.offsets = np.asarray(np.memmap(self.folder / "offsets.bin", "<i8", mode="r"))
            self._bytes = np.asarray(np.memmap(path, "u1", mode="r")) if size else np.empty(0, "u1")
        except OSError as error:
            raise DataError(f"{self.folder}: there are no pairs here: {error.strerror}") from error
        except ValueError as error:  # no whole number of offsets
            raise DataError(f"{self.folder}: this has been cut short; delete the folder to make it anew") from error
        if self.offsets[-1] != size:
            raise DataError(f"{path}: this has been cut short; delete the folder to make it anew")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        entry = json.loads(self._bytes[self.offsets[index] : self.offsets[index + 1]].tobytes())
        return Pair(entry["source"], tuple(entry["targets"]), entry["where"])

    def __iter__(self) -> Iterator[Pair]:
        return map(self.__getitem__, range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return PairStore, (self.folder,)


class Texts:
    """The sources, or the first targets, or both, of a store's pairs; can be read again and again."""

    def __init__(self, store: PairStore, *sides: str) -> None:
        self.store, self.sides = store, sides

    def __iter__(self) -> Iterator[str]:
        for pair in self.store:
            for side in self.sides:
                yield pair.source if side == "source" else pair.targets[0]


def write_pairs(folder: Path, pairs: Iterable[Pair]) -> PairStore:
    """Stream ``pairs`` to ``folder`` and return the store; one that is there already is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "pairs.jsonl", folder / "offsets.bin"
    place = 0
    with open(paths[0], "wb") as lines, open(paths[1], "wb") as offsets:
        offsets.write(place.to_bytes(8, "little"))
        for pair in pairs:
            line = json.dumps(pair._asdict(), ensure_ascii=False).encode() + b"\n"
            place += lines.write(line)
            offsets.write(place.to_bytes(8, "little"))
    for path in paths:
        sync_file(path)
    return PairStore(folder)
