"""A microbatch is a function of its address; unreadable examples are named, or skipped and counted."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from toy import ToyDataset
from vaak.config.training import BatchingConfig, TrainingConfig
from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError, optional_import
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Padding
from vaak.data.loader import Address, MicrobatchReader, Skip
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.training_data import TrainingData


class DrawingDataset(ToyDataset):
    """Every example is what the generators of Python, NumPy and torch, and the one it is given, draw for it."""

    draws_globally = True

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        torch_draw = float(torch.rand((), dtype=torch.float64))
        return np.array([index, random.random(), np.random.random(), torch_draw, rng.random()])

    def collate(self, rows: list[list[np.ndarray]]) -> Batch:
        return Batch({"drawn": torch.from_numpy(np.stack([row[0] for row in rows]))}, {})


def address(*indices: int, epoch: int = 0, step: int = 1, number: int = 0) -> Address:
    return Address(step, number, epoch, [[index] for index in indices])


def drawn(reader: MicrobatchReader, at: Address) -> dict[int, list[float]]:
    batch = reader[at].batch
    assert batch is not None
    return {int(row[0]): row[1:].tolist() for row in batch["drawn"]}


def test_all_generators_are_functions_of_seed_epoch_and_index():
    reader = MicrobatchReader(DrawingDataset(8), (Purpose.DATA,), seed=3)
    whole = drawn(reader, address(*range(8)))
    for index in reversed(range(8)):  # alone, in another order, in another step: the same
        assert drawn(reader, address(index, step=9, number=2)) == {index: whole[index]}
    flat = [tuple(values) for values in whole.values()]
    assert len(set(flat)) == 8
    key = draw_key(Purpose.DATA, 3, 0, 5, 0)
    assert whole[5][0] == random.Random(key).random()
    assert whole[5][1] == np.random.RandomState(key).random()
    assert whole[5][2] == float(torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(key)))


def test_a_dataset_that_draws_from_its_rng_alone_leaves_the_others_where_they_are():
    def states() -> list[object]:
        return [
            random.getstate(),
            np.random.get_state(legacy=False)["state"]["key"].tolist(),
            torch.get_rng_state().tolist(),
        ]

    before, dataset = states(), ToyDataset(8, noise=0.5)
    assert not dataset.draws_globally
    first = MicrobatchReader(dataset, (Purpose.DATA,), seed=3)[address(*range(8))].batch
    assert states() == before
    dataset.draws_globally = True
    second = MicrobatchReader(dataset, (Purpose.DATA,), seed=3)[address(*range(8))].batch
    assert states() != before
    assert first is not None
    assert second is not None
    assert torch.equal(first["inputs"], second["inputs"])


def test_another_epoch_seed_or_purpose_draws_otherwise():
    readers = [
        MicrobatchReader(DrawingDataset(8), purpose, seed)
        for purpose, seed in (((Purpose.DATA,), 3), ((Purpose.DATA,), 4), ((Purpose.EVALUATION, "valid"), 3))
    ]
    draws = [drawn(reader, address(2))[2] for reader in readers] + [drawn(readers[0], address(2, epoch=1))[2]]
    assert all(first != second for first, second in pairwise(draws))


def test_a_repeat_in_the_same_epoch_draws_otherwise():
    reader = MicrobatchReader(DrawingDataset(8), (Purpose.DATA,), seed=3)
    draws = [drawn(reader, replace(address(2), occurrence=occurrence))[2] for occurrence in range(3)]
    assert len({tuple(values) for values in draws}) == 3
    assert draws[0] == drawn(reader, address(2))[2]


def test_rows_keep_the_order_of_the_address():
    batch = MicrobatchReader(ToyDataset(8), (Purpose.DATA,), 0)[address(4, 1, 6)].batch
    assert batch is not None
    assert batch.indices == [[4], [1], [6]]
    assert batch.num_rows == 3


def test_what_cannot_be_read_is_named():
    with pytest.raises(DataError, match=r"example 5 \(toy.txt line 6\) can't be read: ValueError: the file is torn"):
        MicrobatchReader(ToyDataset(8, bad=[5]), (Purpose.DATA,), 0)[address(4, 5)]


def test_a_users_error_says_enough_itself():
    class Strict(ToyDataset):
        def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
            raise UserError("line 3 has no text")

    with pytest.raises(UserError, match=r"^line 3 has no text$"):
        MicrobatchReader(Strict(8), (Purpose.DATA,), 0)[address(1)]


def test_a_skipped_example_leaves_the_others_as_they_were():
    clean = MicrobatchReader(ToyDataset(8, noise=0.5), (Purpose.DATA,), 0)[address(4, 6)].batch
    read = MicrobatchReader(ToyDataset(8, noise=0.5, bad=[5]), (Purpose.DATA,), 0, skip_bad=True)[address(4, 5, 6)]
    assert clean is not None
    assert read.batch is not None
    assert read.batch["inputs"].equal(clean["inputs"])
    assert read.batch.indices == [[4], [6]]
    assert read.skipped == [Skip(0, 5, "toy.txt line 6", "ValueError: the file is torn")]


def test_a_missing_package_is_not_the_fault_of_an_example():
    class Coded(ToyDataset):
        def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
            with optional_import("the codec requires nowhere", "audio"):
                importlib.import_module("nowhere")
            raise AssertionError

    with pytest.raises(UserError, match=r"^the codec requires nowhere: pip install 'vaak\[audio\]'$"):
        MicrobatchReader(Coded(8), (Purpose.DATA,), 0, skip_bad=True)[address(1)]


def test_nothing_left_is_a_microbatch_without_a_batch():
    read = MicrobatchReader(ToyDataset(8, bad=[5]), (Purpose.DATA,), 0, skip_bad=True)[address(5)]
    assert read.batch is None
    assert len(read.skipped) == 1
    assert read.pin_memory().batch is None


def test_a_known_bad_example_is_not_tried_again():
    dataset = ToyDataset(8)
    reader = MicrobatchReader(dataset, (Purpose.DATA,), 0, known_bad=[(0, 5, 0)])
    assert [skip.reason for skip in reader[address(4, 5)].skipped] == ["skipped before"]
    assert dataset.reads == [4]
    assert not reader[address(5, epoch=1)].skipped  # another epoch draws otherwise, and may read it
    assert not reader[replace(address(5), occurrence=1)].skipped  # so does a repeat in the same epoch


def test_a_batch_that_could_not_be_split_is_an_error_when_it_is_read():
    class Careless(ToyDataset):
        def collate(self, rows: list[list[np.ndarray]]) -> Batch:
            return replace(super().collate(rows), extra={"names": ["of the first row"]})

    with pytest.raises(UserError, match=r"a batch of 2 rows has extra\['names'\] with 1 entries"):
        MicrobatchReader(Careless(8), (Purpose.DATA,), 0)[address(1, 2)]


def test_lengths_are_rounded_as_the_dataset_says():
    class Padded(ToyDataset):
        def padding(self, batch: Batch) -> dict[str, Padding]:
            return {"inputs": Padding(3, longest=8), "targets": Padding(-100, step=2), "left out": Padding()}

    dataset = Padded(8)
    where = address(int(dataset.lengths.argmin()))
    whole, rounded = (MicrobatchReader(dataset, (Purpose.DATA,), 0, round_lengths=by)[where].batch for by in (None, 5))
    assert whole is not None
    assert rounded is not None
    length = whole["inputs"].shape[1]
    assert length < 5
    assert rounded["inputs"].tolist() == [[*whole["inputs"][0].tolist(), *[3] * (5 - length)]]
    assert rounded["targets"].tolist() == [[*whole["targets"][0].tolist(), *[-100] * (10 - length)]]
    rounded = MicrobatchReader(dataset, (Purpose.DATA,), 0, round_lengths=20)[where].batch
    assert rounded is not None
    assert rounded["inputs"].shape == (1, 8), "never longer than the longest"


def test_lengths_of_a_dataset_that_does_not_say_how_it_pads_are_not_rounded():
    with pytest.raises(UserError, match=r"round_lengths: ToyDataset doesn't say how its batches are padded; leave it"):
        MicrobatchReader(ToyDataset(8), (Purpose.DATA,), 0, round_lengths=5)[address(0)]


def test_the_size_of_a_microbatch_is_that_of_its_rounded_rows(tmp_path: Path):
    """By which the largest is tried before training, and what memory ran out for is remembered."""

    class Padded(ToyDataset):
        def padding(self, batch: Batch) -> dict[str, Padding]:
            return {"inputs": Padding(), "targets": Padding(-100)}

    config = TrainingConfig(batch_size=3, batching=BatchingConfig(round_lengths=4))
    data = TrainingData(Padded(20), config, Ranks(torch.device("cpu")), tmp_path)
    plan = data.planner.plan(0)
    padded_sizes = plan.padded_sizes(data.dataset.lengths, data.multiple)
    for position in range(len(plan)):
        microbatch = data.reader[Address(0, 0, 0, plan.microbatch(position))]
        assert microbatch.batch is not None
        assert data.padded_size(microbatch) == microbatch.batch["inputs"].numel()
        assert padded_sizes[position] == microbatch.batch["inputs"].shape[0] * min(
            microbatch.batch["inputs"].shape[1], 9
        )
