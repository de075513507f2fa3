"""A cache of arrays that never grows beyond so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np


class BoundedCache:
    """Keeps arrays by key; those used longest ago go first, and one that is larger than all room is never kept.

    Arrays are read-only, kept or not, so that a cache changes no result. Pickles empty: a process starts its own.
    """

    def __init__(self, max_bytes: float) -> None:
        self.max_bytes = int(max_bytes)
        self.num_bytes = 0
        self.arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of ``key``, made if it isn't here; what ``make`` gives is the cache's from then on."""
        if key in self.arrays:
            self.arrays.move_to_end(key)
            return self.arrays[key]
        array = make()
        if array.base is not None:  # a view, which would keep the whole of what it is cut from
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
