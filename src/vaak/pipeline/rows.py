"""Rows of numbers by key, in shards: such as an embedding of every utterance. Read from disk, never all in memory.

::

    FOLDER/
      index.json         shape and type of a row, rows of a shard, and the keys in order; written first
      rows-00000.bin     rows of consecutive keys, little-endian; written completely or not at all

A shard is what a killed process may lose: at most 100 rows. Shards are cut by the keys alone and each is made by
itself, so any number of processes makes the same files.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vaak.core.artifact import Artifact
from vaak.core.errors import DataError, UserError
from vaak.core.progress import progress
from vaak.core.storage.files import remove_temporary, write_bytes
from vaak.pipeline.jobs import Jobs

log = logging.getLogger("vaak")

ROWS_FORMAT = "vaak rows 1"
INDEX = "index.json"
ROWS_PER_SHARD = 100
SHARD_BYTES = 64 << 20
TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}

Maker = Callable[[list[str]], np.ndarray]
"""Gives the rows of keys: ``(len(keys), *shape)``."""


@runtime_checkable
class Portable(Protocol):
    """A maker of rows that can be recreated in another process: by ``from_json`` of its class, from this JSON."""

    def as_json(self) -> dict[str, Any]: ...


class PipelineRowStore:
    """The rows in a folder; ``keys`` in order, ``shape`` of a row. Raises DataError if there are none."""

    def __init__(self, folder: Path) -> None:
        self.folder, about = folder, _artifact_in(folder).read()
        self.keys: list[str] = about["keys"]
        self.shape: tuple[int, ...] = tuple(about["shape"])
        self.dtype: str = about["dtype"]
        self.rows_per_shard: int = about["rows_per_shard"]
        self._places = {key: index for index, key in enumerate(self.keys)}

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: object) -> bool:
        """Return whether a row is there, whole."""
        place = self._places.get(str(key))
        return place is not None and self.has_shard(place // self.rows_per_shard)

    @property
    def num_shards(self) -> int:
        return -(-len(self) // self.rows_per_shard)

    def get_keys(self, shard: int) -> list[str]:
        """Return the keys of a shard."""
        return self.keys[shard * self.rows_per_shard : (shard + 1) * self.rows_per_shard]

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"rows-{shard:05d}.bin"

    def has_shard(self, shard: int) -> bool:
        """Return whether a shard is there, whole."""
        size = disk_bytes(len(self.get_keys(shard)), self.shape, self.dtype)
        path = self.path(shard)
        return path.is_file() and path.stat().st_size == size

    def shard(self, number: int) -> np.ndarray:
        """Return the stored rows of a shard, memory-mapped. Raises DataError if it is missing or truncated."""
        if not self.has_shard(number):
            raise DataError(f"{self.path(number)}: this is missing or truncated; --resume makes it again")
        return np.asarray(np.memmap(self.path(number), TYPES[self.dtype], "r")).reshape(-1, *self.shape)

    def row(self, key: str) -> np.ndarray:
        """Return the row of a key, float32, its own memory. Raises KeyError if the key is unknown."""
        shard, place = divmod(self._places[key], self.rows_per_shard)
        row: np.ndarray = self.shard(shard)[place].astype(np.float32)
        return row

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows in order, a shard at a time: ``(row, column)`` float32."""
        for number in range(self.num_shards):
            rows = self.shard(number)
            yield rows.reshape(len(rows), -1).astype(np.float32)

    def columns(self, first: int, last: int) -> np.ndarray:
        """Return some columns of all rows: ``(row, last - first)`` float32."""
        parts = (self.shard(number) for number in range(self.num_shards))
        return np.concatenate([part.reshape(len(part), -1)[:, first:last].astype(np.float32) for part in parts])

    @property
    def num_columns(self) -> int:
        return int(np.prod(self.shape))

    def matrix(self) -> np.ndarray:
        """Return all rows in memory: ``(row, column)`` float32."""
        return self.columns(0, self.num_columns)


def _artifact_in(folder: Path) -> Artifact:
    keys = {"shape": list, "dtype": str, "rows_per_shard": int, "keys": list}
    return Artifact(folder, INDEX, "rows", ROWS_FORMAT, keys, remedy="run the stage that makes it")


def disk_bytes(num_rows: int, shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of rows on disk, without their keys.

    >>> disk_bytes(10_000, (1280,), "float32") / 2**20, disk_bytes(10_000, (1280,), "float16") / 2**20
    (48.828125, 24.4140625)
    """
    return num_rows * int(np.prod(shape)) * TYPES[dtype].itemsize


def make_rows(
    folder: Path,
    keys: Sequence[str],
    begin: Callable[[], Maker],
    *,
    shape: Sequence[int],
    dtype: str = "float32",
    jobs: Jobs | None = None,
) -> PipelineRowStore:
    """Return the rows of ``keys``, making those missing in ``folder``; messages call them by the folder's name.

    ``begin`` has to pickle; each process of ``jobs`` calls it for the function that makes rows of this ``shape``, which
    are stored as ``dtype``.

    Raises DataError for a row that has another shape or isn't finite, UserError for a key that occurs twice.
    """
    if len(set(keys)) != len(keys):
        ((twice, _),) = Counter(keys).most_common(1)
        raise UserError(f"{folder.name}: the key {twice} occurs twice; each has to be unique")
    per_shard = min(ROWS_PER_SHARD, max(1, SHARD_BYTES // disk_bytes(1, shape, dtype)))
    about = {"format": ROWS_FORMAT, "shape": [*shape], "dtype": dtype, "rows_per_shard": per_shard, "keys": [*keys]}
    folder.mkdir(parents=True, exist_ok=True)
    artifact = _artifact_in(folder)
    if artifact.find() == about:
        remove_temporary(folder)
    else:
        # Old shards go before the new index comes: after a kill in between, no old row may stand under a new key.
        for path in folder.glob("*rows-*"):
            path.unlink()
        artifact.claim(about)
    store = PipelineRowStore(folder)
    missing = [number for number in range(store.num_shards) if not store.has_shard(number)]
    there = store.num_shards - len(missing)
    if there and missing:
        log.info("%s: %d of %d shards are there already", folder.name, there, store.num_shards)
    jobs = jobs or Jobs()
    own = missing
    if jobs.helpers is not None and isinstance(begin, Portable):
        about = {"module": type(begin).__module__, "name": type(begin).__name__, "values": begin.as_json()}
        jobs.helpers.order(make_own_shards, folder=str(folder), begin=about, shards=missing)
        # Shards are dealt out in turn: rank 0's are the first and every N-th after it.
        own = missing[:: jobs.helpers.world_size]
    with progress(folder.name, len(keys), already=min(there * per_shard, len(keys))) as advance:
        for shard, made in jobs.map(partial(shard_maker, begin, store), own):
            write_bytes(store.path(shard), made)
            advance(len(store.get_keys(shard)))
        for shard in (shard for shard in missing if shard not in own):
            assert jobs.helpers is not None
            jobs.helpers.wait_for(partial(store.has_shard, shard))
            advance(len(store.get_keys(shard)))
    return store


def make_own_shards(folder: str, begin: Mapping[str, Any], shards: Sequence[int]) -> None:
    """Make every N-th of the shards, as one of N processes; ``begin`` names a Portable's class, and its values."""
    made = getattr(importlib.import_module(begin["module"]), begin["name"]).from_json(begin["values"])
    store, content = PipelineRowStore(Path(folder)), None
    for shard in shards[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]:
        content = content or shard_maker(made, store)
        write_bytes(store.path(shard), content(shard))


def shard_maker(begin: Callable[[], Maker], store: PipelineRowStore) -> Callable[[int], bytes]:
    """Return the function that makes the content of a shard."""
    make = begin()

    def content(shard: int) -> bytes:
        keys = store.get_keys(shard)
        rows = np.asarray(make(keys))
        if rows.shape != (len(keys), *store.shape):
            raise DataError(f"rows of {keys[0]} and so on have the shape {rows.shape[1:]}; expected {store.shape}")
        # A number too large for float16 becomes infinite, and is reported below with its key.
        with np.errstate(over="ignore"):
            stored = rows.astype(TYPES[store.dtype])
        finite = np.isfinite(stored.reshape(len(keys), -1)).all(axis=1)
        if not finite.all():
            raise DataError(f"{keys[int(np.argmin(finite))]}: its row isn't finite as {store.dtype}; try float32")
        return stored.tobytes()

    return content


class Rows:
    """The rows of several stores by key, the first store that has one."""

    def __init__(self, *stores: PipelineRowStore) -> None:
        self.stores = stores

    def row(self, key: str) -> np.ndarray:
        """Return the row of a key, float32. Raises DataError if no store has it."""
        for store in self.stores:
            if key in store:
                return store.row(key)
        raise DataError(f"no row of {key} in {', '.join(str(store.folder) for store in self.stores)}")


def completed(
    store: PipelineRowStore, keys: Sequence[str], folder: Path, begin: Callable[[], Maker], jobs: Jobs | None = None
) -> Rows:
    """Return the rows of ``keys``: those that are missing in ``store`` are made in ``folder``, with a warning.

    ``begin`` and ``jobs`` are those of ``make_rows``.
    """
    missing = [key for key in keys if key not in store]
    if not missing:
        return Rows(store)
    log.warning("%s lacks %d of %d rows, such as %s: they are made", store.folder, len(missing), len(keys), missing[0])
    return Rows(store, make_rows(folder, missing, begin, shape=store.shape, dtype=store.dtype, jobs=jobs))
