"""Inputs are computed together as if alone: in their order, within the limits, whatever is damaged or does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import DataError, UserError
from vaak.engine.memory import MemoryReading
from vaak.tasks import batches
from vaak.tasks.batches import AT_MOST, Batches, Done

CPU = torch.device("cpu")


def square(numbers: list[int]) -> list[int]:
    assert numbers[0] == max(numbers)
    return [number**2 for number in numbers]


@given(
    st.lists(st.integers(1, 50), max_size=40),
    st.integers(1, 10),
    st.none() | st.integers(1, 200),
    st.none() | st.integers(1, 30),
)
def test_results_come_in_order_and_batches_keep_within_their_limits(
    numbers: list[int], size: int, max_padded_size: int | None, ahead: int | None
):
    seen: list[list[int]] = []

    def compute(some: list[int]) -> list[int]:
        seen.append(some)
        return square(some)

    found = list(Batches(CPU, size, max_padded_size=max_padded_size, ahead=ahead).results(numbers, int, compute))
    assert found == [number**2 for number in numbers]
    assert sorted(number for some in seen for number in some) == sorted(numbers)
    for some in seen:
        assert len(some) == 1 or (
            len(some) <= size and (max_padded_size is None or len(some) * max(some) <= max_padded_size)
        )
    if max_padded_size is None and ahead is None and size > 1:
        assert len(seen) <= -(-len(numbers) // size) + -(-len(numbers) // (4 * size))


def test_one_bad_source_ends_alone_and_empty_ones_are_there_too():
    sources = {"a": [3, 1], "none": [], "bad": [2, 9, 4], "b": [5], "end": []}

    def read(name: str) -> Iterator[int]:
        for number in sources[name]:
            if number == 9:
                raise DataError("bad is damaged")
            yield number

    for size in (None, 1, 2, 100):
        found = list(Batches(CPU, size).of_sources(sources, read, int, square))
        ends = [one for one in found if isinstance(one, Done)]
        assert [end.source for end in ends] == list(sources)
        assert [str(end.error) for end in ends if end.error] == ["bad is damaged"]
        assert all(end.seconds > 0 for end in ends)
        results = [one for one in found if not isinstance(one, Done)]
        by_name = {name: [result for _, result in some] for name, some in groupby(results, key=lambda one: one[0])}
        assert by_name == {"a": [9, 1], "bad": [4], "b": [25]}
        places = [one.source if isinstance(one, Done) else one[0] for one in found]
        assert [name for name, _ in groupby(places)] == list(sources)


def test_what_can_not_be_read_is_raised_after_the_results_before_it():
    def parts() -> Iterator[int]:
        yield from (1, 2)
        raise DataError("the third is damaged")

    found = Batches(CPU).results(parts(), int, square)
    assert [next(found), next(found)] == [1, 4]
    with pytest.raises(DataError, match="the third is damaged"):
        next(found)


def test_with_one_part_at_a_time_none_is_read_ahead():
    read: list[int] = []
    found = Batches(CPU, 1).results((read.append(number) or number for number in range(5)), int, square)
    assert (next(found), read) == (0, [0])


@pytest.mark.parametrize("size", [None, pytest.param(16, marks=pytest.mark.slow)])
def test_batches_become_smaller_where_memory_runs_out(size: int | None, caplog: pytest.LogCaptureFixture):
    sizes: list[int] = []

    def compute(some: list[int]) -> list[int]:
        sizes.append(len(some))
        if len(some) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return square(some)

    assert list(Batches(CPU, size).results(range(40), int, compute)) == [number**2 for number in range(40)]
    assert sizes[:3] == [16, 8, 4]
    assert max(sizes[3:]) == 8  # the other half of the first batch; from then on 4
    assert set(sizes[7:]) == {4}
    assert "out of memory with 16 inputs together: from here on at most 8 (--batch-size)" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        list(Batches(CPU, size, recovers=False).results(range(40), int, compute))


def test_an_input_that_does_not_fit_alone_is_said_in_one_line():
    def compute(some: list[int]) -> list[int]:
        raise MemoryError

    with pytest.raises(UserError, match="one input does not fit even alone"):
        list(Batches(CPU).results([1, 2], int, compute))


@pytest.mark.slow
def test_a_source_with_a_part_that_does_not_fit_ends_alone():
    def compute(some: list[int]) -> list[int]:
        if 9 in some:
            raise MemoryError
        return square(some)

    sources = {"a": [3, 1], "large": [2, 9, 4], "b": [5]}
    found = list(Batches(CPU).of_sources(sources, lambda name: iter(sources[name]), int, compute))
    results = [one for one in found if not isinstance(one, Done)]
    assert results == [("a", 9), ("a", 1), ("large", 4), ("b", 25)]
    ends = [one for one in found if isinstance(one, Done)]
    assert [(end.source, end.error is None) for end in ends] == [("a", True), ("large", False), ("b", True)]
    alone = Batches(CPU).results([2, 9, 4], int, compute)
    assert next(alone) == 4
    with pytest.raises(UserError, match="one input does not fit even alone"):
        next(alone)


@pytest.mark.parametrize(("bytes_of_a_part", "largest"), [(1, AT_MOST), (10, 64), (20, 32), (1000, 16)])
def test_a_gpu_is_given_more_while_that_fits(bytes_of_a_part: int, largest: int, monkeypatch: pytest.MonkeyPatch):
    """Of 1,000 bytes, three quarters may be used."""
    rest, peak, sizes = 50, [50], list[int]()
    monkeypatch.setattr(batches, "reset_peak", lambda device: peak.append(rest))
    monkeypatch.setattr(batches, "read_memory", lambda device: MemoryReading(peak[-1], 1000, peak[-1]))

    def compute(some: list[int]) -> list[int]:
        sizes.append(len(some))
        peak[-1] += bytes_of_a_part * len(some)
        return square(some)

    numbers = range(2000)
    assert list(Batches(torch.device("cuda")).results(numbers, int, compute)) == [number**2 for number in numbers]
    assert max(sizes) == largest
    assert sizes[0] == 16
