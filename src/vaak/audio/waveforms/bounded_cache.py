"""A cache of arrays with a limit in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np


class BoundedCache:
    """Keeps arrays by key; the least recently used are removed first, and one larger than the limit is never kept.

    Arrays are read-only, cached or not, so that a cache changes no result. Pickles empty: each process has its own.
    """

    def __init__(self, max_bytes: float) -> None:
        self.max_bytes = int(max_bytes)
        self.num_bytes = 0
        self.arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of ``key``, made if it isn't cached; the result of ``make`` then belongs to the cache."""
        if key in self.arrays:
            self.arrays.move_to_end(key)
            return self.arrays[key]
        array = make()
        if array.base is not None:  # a view, which would keep its whole base in memory
            array = array.copy()
        array.flags.writeable = False
        if array.nbytes <= self.max_bytes:
            self._keep(key, array)
        return array

    def _keep(self, key: Hashable, array: np.ndarray) -> None:
        while self.num_bytes + array.nbytes > self.max_bytes:
            self.num_bytes -= self.arrays.popitem(last=False)[1].nbytes
        self.arrays[key] = array
        self.num_bytes += array.nbytes

    def __len__(self) -> int:
        return len(self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self.max_bytes,)
