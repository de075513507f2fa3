"""Reads what training is about to read, in large pieces and in the order of storage, so that the system keeps it.

Where an epoch comes by shards (``vaak.data.pieces.by_shards``), the examples of a piece are read from a few stretches
of a few files. A thread reads these stretches from one end to the other while the piece before is trained on, and keeps
nothing: the system's page cache has them when an example is asked for, whichever process reads it. So nothing that is
read depends on it, nor on whether it comes in time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vaak.core.errors import UserError
from vaak.core.task import Dataset
from vaak.data.plan import Plan

READ_BYTES = 2**23
"""Bytes of one read."""
LARGEST_GAP = 2**18
"""Bytes between two stretches that are read along with them: as soon read as jumped over."""


class ByteStretch(NamedTuple):
    """``size`` bytes of a file from ``first`` on."""

    path: Path
    first: int
    size: int


def join_stretches(stretches: Iterable[tuple[Path, int, int]], largest_gap: int = LARGEST_GAP) -> list[ByteStretch]:
    """Return the stretches in the order of storage, those of a file as one where they touch, or almost.

    >>> join_stretches([(Path("a"), 40, 10), (Path("a"), 0, 30), (Path("b"), 0, 5)], largest_gap=10)
    [ByteStretch(path=PosixPath('a'), first=0, size=50), ByteStretch(path=PosixPath('b'), first=0, size=5)]
    """
    found = list[ByteStretch]()
    for path, first, size in sorted(stretches):
        last = found[-1] if found else None
        if last is not None and last.path == path and first - (last.first + last.size) <= largest_gap:
            end = max(last.first + last.size, first + size)
            found[-1] = last._replace(size=end - last.first)
        else:
            found.append(ByteStretch(path, first, size))
    return found


def read_through(stretches: Iterable[ByteStretch]) -> None:
    """Read the stretches, those of a file one after another, and forget them. Raises OSError."""
    for path, of_file in groupby(stretches, key=lambda one: one.path):
        with open(path, "rb", buffering=0) as file:
            for _, first, size in of_file:
                file.seek(first)
                for begin in range(0, size, READ_BYTES):
                    file.read(min(READ_BYTES, size - begin))


class ReadAhead:
    """Reads the pieces of a dataset's plans ahead: the one that is reached, and the next."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._reached: tuple[int, int] | None = None
        self._wanted = queue.SimpleQueue[tuple[Plan, int] | None]()
        self._thread = threading.Thread(target=self._read, name="vaak-read-ahead", daemon=True)
        self._thread.start()

    def reach(self, epoch: int, plan: Plan, position: int) -> None:
        """Tell that microbatch ``position`` of the plan of an epoch is about to be read."""
        ends = np.cumsum([piece.size for piece in plan.pieces])
        number = int(np.searchsorted(ends, position, side="right"))
        if self._reached == (epoch, number):
            return
        ahead = [number + 1] if self._reached == (epoch, number - 1) else [number, number + 1]
        self._reached = epoch, number
        for one in ahead:
            if one < len(plan.pieces):
                self._wanted.put((plan, one))

    def close(self) -> None:
        """End the thread, after what it is reading."""
        self._wanted.put(None)

    def _read(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            plan, number = wanted
            indices = np.unique(plan.pieces[number].make().indices)
            # What isn't there, or can't be read, is for whoever reads the example to say.
            with contextlib.suppress(OSError, UserError):
                read_through(join_stretches(self.dataset.list_bytes(indices.tolist())))
