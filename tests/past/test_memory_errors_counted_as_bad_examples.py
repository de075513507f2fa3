"""With on_bad_example: skip, an example that the machine had no memory to read was dropped as a bad one, for good."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest
import torch

from toy import ToyDataset, ToyTask
from vaak.config.training import PerformanceConfig, TrainingConfig
from vaak.core.batch import Batch
from vaak.core.errors import DataError, HostMemoryError, UserError
from vaak.core.out_of_memory import is_out_of_memory
from vaak.core.random_keys import Purpose
from vaak.data.loader import Address, MicrobatchReader, load
from vaak.engine.distributed.ranks import start_ranks
from vaak.engine.evaluation import Evaluator


def wrapped() -> None:
    """As Lhotse's reader does it."""
    try:
        raise MemoryError
    except MemoryError as error:
        raise DataError("cut 7 (a.wav): Lhotse can't read it: MemoryError") from error


def during_another() -> None:
    try:
        np.empty(1 << 50, np.uint8)
    finally:
        raise ValueError("nothing was read")


def out_of_files() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def unmappable() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


SHORTAGES: dict[str, Callable[[], object]] = {
    "numpy": lambda: np.empty(1 << 50, np.uint8),
    "torch": lambda: torch.empty(1 << 50, dtype=torch.uint8),
    "wrapped": wrapped,
    "during another": during_another,
    "mapping": unmappable,
    "open files": out_of_files,
}


class Short(ToyDataset):
    """The machine has no memory for example 5, or for a batch; example 3 is bad."""

    def __init__(self, shortage: str, *, in_collate: bool = False) -> None:
        super().__init__(8, bad=[3])
        self.shortage, self.in_collate = shortage, in_collate

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        if index == 5 and not self.in_collate:
            SHORTAGES[self.shortage]()
        return super().example(index, rng)

    def collate(self, rows: list[list[np.ndarray]]) -> Batch:
        if self.in_collate:
            SHORTAGES[self.shortage]()
        return super().collate(rows)


def addresses() -> list[Address]:
    return [Address(1, 0, 0, [[1], [3]]), Address(1, 1, 0, [[4], [5]])]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shortage", SHORTAGES)
def test_it_is_an_error_of_the_machine(shortage: str, num_workers: int):
    performance = PerformanceConfig(num_workers=num_workers)
    read = load(
        MicrobatchReader(Short(shortage), (Purpose.DATA,), 0, skip_bad=True), addresses(), performance, pin_memory=False
    )
    first = next(read)
    assert [skip.index for skip in first.skipped] == [3]
    message = r"^the machine ran out of memory .* example 5 \(toy.txt line 6\)"
    with pytest.raises(HostMemoryError, match=message) as caught:
        next(read)
    assert "\n" not in str(caught.value)
    assert "--resume auto" in str(caught.value)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_so_it_is_where_a_batch_is_put_together(num_workers: int):
    performance = PerformanceConfig(num_workers=num_workers)
    reader = MicrobatchReader(Short("numpy", in_collate=True), (Purpose.DATA,), 0, skip_bad=True)
    with pytest.raises(HostMemoryError, match="while a batch of 1 rows was put together"):
        next(load(reader, addresses(), performance, pin_memory=False))


def test_so_it_is_in_an_evaluation():
    task, config = ToyTask(), TrainingConfig(device="cpu", batch_size=4)
    task.dataset = lambda split: Short("numpy")  # type: ignore[method-assign]
    with pytest.raises(HostMemoryError, match="example 5"):
        Evaluator(task, config, start_ranks(config), skip_bad=True).evaluate(task.model(), "valid")


def test_bad_examples_are_still_skipped_and_the_option_is_named():
    class Broken(ToyDataset):
        def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
            errors = [DataError("a.wav: it is empty"), UserError("soxr is missing"), OSError(errno.EIO, "I/O error")]
            raise errors[index]

    for index, message in enumerate(
        [
            r"^a.wav: it is empty; or leave such examples out with data.on_bad_example: skip$",
            "^soxr is missing$",
            r"^example 2 \(toy.txt line 3\) can't be read: OSError: .*; fix it, or set data.on_bad_example: skip$",
        ]
    ):
        with pytest.raises(UserError, match=message):
            MicrobatchReader(Broken(8), (Purpose.DATA,), 0)[Address(1, 0, 0, [[index]])]
        assert (
            len(MicrobatchReader(Broken(8), (Purpose.DATA,), 0, skip_bad=True)[Address(1, 0, 0, [[index]])].skipped)
            == 1
        )
