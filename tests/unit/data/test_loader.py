"""The same batches for any number of workers, from any place, at the cost of those asked for."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from toy import ToyDataset
from vaak.config.training import PerformanceConfig
from vaak.core.errors import DataError, UserError
from vaak.core.random_keys import Purpose
from vaak.data import loader
from vaak.data.batching import FixedPlanner, evaluation_plan
from vaak.data.loader import Address, Microbatch, MicrobatchReader, evaluation_addresses, load, training_addresses


def addresses(num_examples: int = 40, accumulation: int = 3, **place: int) -> Any:
    """Addresses of microbatches of 4, so 10 an epoch for 40 examples, or 4 steps."""
    where = {"step": 0, "epoch": 0, "place": 0, "rank": 0, "world_size": 1} | place
    return training_addresses(FixedPlanner(num_examples, 4, seed=1), accumulation, **where)


def loaded(count: int, num_workers: int = 0, **place: int) -> list[Microbatch]:
    reader = MicrobatchReader(ToyDataset(40, noise=0.5), (Purpose.DATA,), seed=1)
    iterator = load(reader, addresses(**place), PerformanceConfig(num_workers=num_workers), pin_memory=False)
    return list(islice(iterator, count))


def assert_same(first: list[Microbatch], second: list[Microbatch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.address == other.address
        assert one.batch is not None
        assert other.batch is not None
        assert one.batch["inputs"].equal(other.batch["inputs"])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_give_the_same_augmented_batches_over_an_epochs_end(num_workers: int):
    assert_same(loaded(25), loaded(25, num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_begun_in_the_middle_it_gives_the_tail(num_workers: int):
    whole = loaded(25)
    assert_same(whole[6:], loaded(19, num_workers, step=2, place=6))
    assert_same(whole[16:], loaded(9, num_workers, step=6, epoch=1, place=6))


def test_batches_do_not_depend_on_the_models_generator():
    torch.manual_seed(1)
    before = torch.default_generator.get_state()
    first = loaded(5, 2)
    assert torch.default_generator.get_state().equal(before)  # and the loader takes nothing from it
    torch.manual_seed(2)
    assert_same(first, loaded(5, 2))


def test_a_later_place_reads_no_more_than_the_first(monkeypatch: pytest.MonkeyPatch):
    """Nothing is replayed or skipped: the reads of three microbatches at place 50,000 are as many as at place 0."""
    monkeypatch.setattr(loader, "BURST_SECONDS", 0.0)
    reads = []
    for place in (0, 50_000):
        dataset = ToyDataset(400_000)
        at = addresses(400_000, accumulation=1, step=place, place=place)
        fetched = list(
            islice(load(MicrobatchReader(dataset, (Purpose.DATA,), 1), at, PerformanceConfig(), pin_memory=False), 3)
        )
        assert [microbatch.address.step for microbatch in fetched] == [place + 1, place + 2, place + 3]
        reads.append(len(dataset.reads))
    assert reads == [12, 12]


def test_what_is_read_ahead_comes_in_order_and_fails_at_its_place(monkeypatch: pytest.MonkeyPatch):
    """All is read in one burst, but an unreadable example raises only when its turn comes."""
    monkeypatch.setattr(loader, "BURST_SECONDS", 600.0)
    dataset = ToyDataset(40, bad=(int(next(islice(addresses(), 4, None)).rows[0][0]),))
    whole = load(
        MicrobatchReader(dataset, (Purpose.DATA,), 1), islice(addresses(), 8), PerformanceConfig(), pin_memory=False
    )
    assert [next(whole).address.step for _ in range(4)] == [1, 1, 1, 2]
    assert len(dataset.reads) > 16
    with pytest.raises(DataError, match="can't be read"):
        next(whole)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_every_step_without_changing_it(world_size: int):
    """Steps of 3, 3, 3 and 1 microbatches; rank r of w has the microbatches r, r + w, ... of each."""
    whole = list(islice(addresses(), 20))
    by_step: dict[int, list[Address]] = {}
    for rank in range(world_size):
        for one in addresses(rank=rank, world_size=world_size):
            if one.step > 8:
                break
            assert one.number % world_size == rank
            by_step.setdefault(one.step, []).append(one)
    shared = [one for step in sorted(by_step) for one in sorted(by_step[step], key=lambda one: one.number)]
    assert shared == whole


def test_the_last_step_of_an_epoch_has_what_is_left():
    steps = [one.step for one in islice(addresses(), 20)]
    assert [steps.count(step) for step in range(1, 9)] == [3, 3, 3, 1, 3, 3, 3, 1]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_every_example_once(world_size: int):
    plan = evaluation_plan(ToyDataset(37).lengths, 4)
    seen = [
        index
        for rank in range(world_size)
        for one in evaluation_addresses(plan, rank, world_size)
        for row in one.rows
        for index in row
    ]
    assert sorted(seen) == list(range(37))


@pytest.mark.parametrize(("given", "useful", "cores", "expected"), [(None, 4, 2, 1), (None, 4, 16, 4), (None, 4, 1, 0)])
def test_workers_that_are_left_open_follow_from_cores_and_task(given, useful, cores, expected, monkeypatch):
    monkeypatch.setattr(loader, "count_own_cores", lambda: cores)
    dataset = ToyDataset(10)
    dataset.useful_workers = useful
    assert loader.num_workers(PerformanceConfig(num_workers=given), dataset) == expected
    assert loader.num_workers(PerformanceConfig(num_workers=3), dataset) == 3
    assert loader.num_workers(PerformanceConfig(), ToyDataset(10)) == 0, "text is read faster than handed over"


def test_a_lost_worker_is_raised_where_its_batch_is_fetched_and_nowhere_else():
    """Torch's own way is to raise wherever Python is: a callback that catches all errors then hid it."""
    reader = MicrobatchReader(ToyDataset(40, noise=0.5), (Purpose.DATA,), seed=1)
    before = set(multiprocessing.active_children())
    batches = load(reader, addresses(), PerformanceConfig(num_workers=2), pin_memory=False)
    next(batches)
    (worker, *others) = set(multiprocessing.active_children()) - before
    assert others
    os.kill(worker.pid or 0, signal.SIGKILL)
    time.sleep(0.3)  # the signal of its end is handled here
    with pytest.raises(UserError, match="a data loader worker was killed from outside"):
        for _ in batches:
            pass
    for other in others:
        other.join(5)
        assert not other.is_alive()


class WithThreads:
    """Freed by the garbage collector alone, as a session of onnxruntime in a cycle is; notes in which process."""

    def __init__(self, path: Path) -> None:
        self.path, self.itself = path, self

    def __del__(self) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")


class CollectingDataset(ToyDataset):
    def example(self, index: int, generators: Any) -> Any:
        gc.collect()
        return super().example(index, generators)


def test_a_worker_does_not_free_what_its_parent_held(tmp_path: Path):
    gc.collect()
    gc.disable()
    try:
        WithThreads(tmp_path / "freed")
        reader = MicrobatchReader(CollectingDataset(40, noise=0.5), (Purpose.DATA,), seed=1)
        options = PerformanceConfig(num_workers=1, multiprocessing_context="fork")
        list(islice(load(reader, addresses(), options, pin_memory=False), 3))
        gc.collect()
    finally:
        gc.enable()
    assert (tmp_path / "freed").read_text().split() == [str(os.getpid())]
