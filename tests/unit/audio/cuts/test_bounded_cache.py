"""A cache of bounded size that never changes what it holds."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.cuts.sources import BoundedCache


def of(size: int, value: int = 0) -> Callable[[], np.ndarray]:
    return lambda: np.full(size, value, np.uint8)


def never() -> np.ndarray:
    raise AssertionError("it was computed twice")


def test_those_used_longest_ago_go_first() -> None:
    cache = BoundedCache(3)
    for key in "abc":
        cache.get(key, of(1))
    cache.get("a", never)
    cache.get("d", of(1))
    for key in "acd":
        cache.get(key, never)
    assert cache.get("b", of(1, 7)).tolist() == [7]


@given(st.integers(0, 30), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60))
def test_it_gives_what_was_made_and_never_grows_beyond_its_bound(most: int, asked: list[tuple[int, int]]) -> None:
    cache = BoundedCache(most)
    sizes: dict[int, int] = {}
    for key, size in asked:
        size = sizes.setdefault(key, size)
        assert cache.get(key, of(size, key)).tolist() == [key] * size
        assert cache.num_bytes == sum(array.nbytes for array in cache.arrays.values()) <= most


@pytest.mark.parametrize("most", [0, 100])
def test_arrays_are_read_only_whether_kept_or_not(most: int) -> None:
    array = BoundedCache(most).get("a", of(4))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_view_does_not_keep_the_whole() -> None:
    whole = np.zeros(1000, np.uint8)
    kept = BoundedCache(10).get("a", lambda: whole[:5])
    assert kept.base is None
    whole[:] = 1  # nor does the caller's array change under it, or become read-only
    assert kept.tolist() == [0] * 5


def test_another_process_begins_with_an_empty_one() -> None:
    cache = BoundedCache(10)
    cache.get("a", of(5))
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.max_bytes, len(copy), copy.num_bytes) == (10, 0, 0)
