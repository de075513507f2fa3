"""Exact sums of gradients are the same bits on any number of ranks, and near what a sum of fractions gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from toy import ToyModel, ToyTask, toy_trainer
from vaak.config.training import MOST_EXACT, DistributedConfig, TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.distributed.exact import BINARY_PLACES, GROWTH_BITS, ExactGradients
from vaak.engine.distributed.launcher import check_microbatches, with_batches_per_process

Microbatch = list[list[float] | None]
"""The gradient of each parameter; None: it isn't reached."""
SIZES = (3, 2)


class Threads:
    """Ranks that are threads of this process."""

    device = torch.device("cpu")

    def __init__(self, world_size: int) -> None:
        self.world_size, self.barrier = world_size, Barrier(world_size, timeout=20)
        self.said: list[Any] = [None] * world_size

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """Return the results of ``work`` on each rank."""
        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(work, [_Rank(self, rank) for rank in range(self.world_size)]))


class _Rank:
    def __init__(self, all_of_them: Threads, rank: int) -> None:
        self._all, self.rank = all_of_them, rank
        self.world_size, self.device = all_of_them.world_size, all_of_them.device

    def gather(self, value: Any) -> list[Any]:
        self._all.said[self.rank] = value
        self._all.barrier.wait()
        said = list(self._all.said)
        self._all.barrier.wait()
        return said

    def start_adding_up(self, tensor: Tensor) -> Any:
        raise NotImplementedError

    def add_up(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self.gather(tensor.clone())).sum(0))


def summed(microbatches: Sequence[Microbatch | None], world_size: int) -> tuple[list[list[float] | None], int]:
    """Return the gradients, which are the same on every rank, and how often the step was computed."""

    def work(rank: _Rank) -> tuple[Any, int]:
        parameters = [nn.Parameter(torch.zeros(size)) for size in SIZES]
        gradients = ExactGradients(parameters, rank)
        gradients.begin()
        for times in range(1, 4):
            for number in range(rank.rank, len(microbatches), world_size):
                own = microbatches[number]
                if own is None:  # no example of its microbatches could be read
                    continue
                for parameter, values in zip(parameters, own, strict=True):
                    parameter.grad = None if values is None else torch.tensor(values)
                gradients.take_in(number, {"main": torch.tensor(float(number))})
            reduced = gradients.reduce({}, {"main": "row"})
            if reduced is not None:
                there = [number for number, one in enumerate(microbatches) if one is not None]
                assert float(reduced[0].get("main", 0.0)) == sum(there)
                return [None if one.grad is None else one.grad.tolist() for one in parameters], times
        raise AssertionError("it doesn't end")

    first, *others = Threads(world_size).run(work)
    assert all(repr(one) == repr(first) for one in others)
    return first


LARGEST = 2.0**20
numbers = st.integers(-(2**24), 2**24).flatmap(
    lambda digits: st.integers(-44, -4).map(lambda exponent: math.ldexp(digits, exponent))
)
microbatch = st.tuples(*(st.none() | st.lists(numbers, min_size=size, max_size=size) for size in SIZES)).map(list)


@given(st.lists(microbatch, min_size=1, max_size=7), st.sampled_from([2, 3, 5]), st.randoms())
def test_they_depend_neither_on_ranks_nor_on_order(microbatches: list[Microbatch], world_size: int, random: Any):
    alone, times = summed(microbatches, 1)
    assert summed(microbatches, world_size) == (alone, times)
    first, *rest = microbatches
    random.shuffle(rest)
    assert summed([first, *rest], 1)[0] == alone
    for number, found in enumerate(alone):
        reached = [values for one in microbatches if (values := one[number]) is not None]
        assert (found is None) == (not reached)
        if found is None:
            continue
        largest = max(abs(value) for values in reached for value in values)
        for place, own in enumerate(found):
            exact = math.fsum(values[place] for values in reached)
            apart = len(reached) * 2.0 ** -(BINARY_PLACES - GROWTH_BITS - 2) * max(largest, LARGEST)
            assert own == pytest.approx(exact, rel=2**-23, abs=apart)


def test_small_numbers_keep_what_float32_has():
    """With one microbatch a step, numbers down to 2^-18 of the largest come back with all of their bits."""
    values = [1.0, 1.2345678e-5, -3.3333333e-4]
    (found, _), _ = summed([[values, None]], 1)
    assert found == torch.tensor(values).tolist()


def test_larger_numbers_than_the_first_microbatch_has_repeat_the_step():
    small: Microbatch = [[1e-3, 0.0, 0.0], [0.0, 0.0]]
    large: Microbatch = [[7e8, -1.0, 1e-3], [5.0, 5.0]]
    for ranks in (1, 2, 3):
        found, times = summed([small, large, small], ranks)
        assert times == 2
        assert found == [[pytest.approx(7e8, rel=1e-7), -1.0, pytest.approx(1e-3, rel=0.1)], [5.0, 5.0]]


def test_more_processes_than_microbatches_are_refused_with_the_number_to_set():
    """Without exact sums the batch is multiplied; with them one process would have other bits."""
    config = TrainingConfig(gradient_accumulation_steps=2)
    exact = config.model_copy(update={"distributed": DistributedConfig(reduction="exact")})
    assert with_batches_per_process(config, 3).gradient_accumulation_steps == 6
    with pytest.raises(UserError, match=r"set training\.gradient_accumulation_steps to 3 or more"):
        with_batches_per_process(exact, 3)
    assert with_batches_per_process(exact, 2) is exact
    with pytest.raises(UserError, match=r"set training\.gradient_accumulation_steps to 3 or more"):
        check_microbatches(exact, 3)  # on resume, where nothing is multiplied


@pytest.mark.parametrize(("times_larger", "computed"), [(64.0, 1), (128.0, 2)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_numbers_64_times_as_large_still_have_room_and_no_larger_ones(times_larger: float, computed: int, ranks: int):
    """One more bit of growth, in 16,384 microbatches, and the sums would overflow."""
    first: Microbatch = [[1.5, 0.5, -1.0], [1.0, 1.0]]
    later: Microbatch = [[1.5 * times_larger, 0.0, 0.0], [1.0, 1.0]]
    found, times = summed([first, later], ranks)
    assert (times, found[0]) == (computed, [1.5 + 1.5 * times_larger, 0.5, -1.0])
    assert BINARY_PLACES + GROWTH_BITS + int(math.log2(MOST_EXACT)) == 62, "a sum of the most stays within 63 bits"


def test_what_follows_a_ranks_own_batches_is_refused(tmp_path: Path):
    class Normed(ToyTask):
        def model(self) -> ToyModel:
            model = super().model()
            model.norm = nn.BatchNorm1d(4)
            return model

    with pytest.raises(UserError, match=r"reduction: exact isn't possible with norm \(BatchNorm1d\)"):
        toy_trainer(tmp_path, task=Normed(), distributed={"reduction": "exact"})


def test_microbatches_that_nobody_could_read_are_left_out():
    there: Microbatch = [[1e-5, 2e-5, 0.0], [3.0, 4.0]]
    for microbatches in ([None, there, there], [None, None, there], [None, None, None]):
        alone = summed(microbatches, 1)
        assert alone[1] == 1
        assert all(summed(microbatches, ranks) == alone for ranks in (2, 3))
    assert alone[0] == [None, None]


def test_after_a_microbatch_of_zeros_numbers_of_0_places_are_taken_for_granted():
    """Nothing says how large they will be: as if they were below 1, with room for 64, on any number of ranks."""
    zeros: Microbatch = [[0.0, 0.0, 0.0], [0.0, 0.0]]
    for largest, computed in ((63.0, 1), (64.0, 2)):
        later: Microbatch = [[2.0**-BINARY_PLACES, 0.0, 0.0], [largest, 0.0]]
        for ranks in (1, 2):
            found, times = summed([zeros, later], ranks)
            assert (times, found[1]) == (computed, [largest, 0.0])
            assert computed == 2 or found[0] == [2.0**-BINARY_PLACES, 0.0, 0.0], (
                "the smallest that there are places for"
            )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen(bad: float):
    fine: Microbatch = [[1.0, 2.0, 3.0], [1.0, 1.0]]
    for where in (0, 1):
        microbatches = [fine, fine]
        microbatches[where] = [[1.0, bad, 3.0], [1.0, 1.0]]
        for ranks in (1, 2):
            found, _ = summed(microbatches, ranks)
            assert found[0] is not None
            assert all(math.isnan(value) for value in found[0])
            assert found[1] == [2.0, 2.0]
