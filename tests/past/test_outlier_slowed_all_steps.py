"""One long example that did not fit had every batch after it computed in chunks, to the end of the run.

A cut now holds for microbatches at least as large as the one that failed (rows times the longest), as a function of
the journal and of the place in the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backwards import out_of_memory
from toy import StopAt, ToyDataset, ToyTask, same_bits, toy_trainer, weights
from vaak.core.batch import Batch, Term
from vaak.engine.callback import Callback
from vaak.engine.trainer import Trainer

OUTLIER = 17
OPTIONS: dict[str, Any] = {"epochs": 3, "checkpoint": {"interval": 1, "save_total_limit": None}}


class WithOutlier(ToyDataset):
    """Rows of three tokens, and one of nine."""

    def __init__(self, num_examples: int) -> None:
        super().__init__(num_examples)
        self.lengths[:] = 3
        self.lengths[OUTLIER] = 9
        self.fingerprint = "with an outlier"


@dataclass
class SmallMachine(ToyTask):
    """Memory for twenty cells (rows times the longest), which is enough for four rows of three, or two of nine."""

    padded_size: int = 20
    computed: list[list[int]] = field(default_factory=list)
    failures: int = 0

    def dataset(self, split: str) -> ToyDataset:
        return WithOutlier(self.num_examples) if split == "train" else super().dataset(split)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        if batch["inputs"].numel() > self.padded_size:
            self.failures += 1
            raise out_of_memory()
        self.computed.append([index for row in batch.indices for index in row])
        return super().losses(model, batch)


def begun(folder: Path, task: ToyTask, *callbacks: Callback, rehearsal: bool = False, **options: Any) -> Trainer:
    trainer = toy_trainer(folder, *callbacks, task=task, memory={"rehearsal": rehearsal}, **(OPTIONS | options))
    trainer.resume("auto")
    return trainer


@pytest.mark.parametrize("rehearsal", [False, True])
def test_only_the_batches_of_the_outlier_are_computed_in_chunks(rehearsal: bool, tmp_path: Path):
    """Once it has failed, it never fails again; all others are computed whole, however many there are."""
    task = SmallMachine()
    trainer = begun(tmp_path, task, rehearsal=rehearsal)
    trainer.fit()
    assert task.failures == 1
    (cut,) = trainer.state.chunk_rules.rules
    assert (cut.padded_size, cut.num_chunks) == (36.0, 2)
    whole = [rows for rows in task.computed if len(rows) == 4]
    chunks = [rows for rows in task.computed if len(rows) < 4]
    assert {len(rows) for rows in chunks} == {2}
    assert len(chunks) == 2 * (3 + rehearsal), "the outlier's batch in each epoch"
    assert sum(OUTLIER in rows for rows in chunks) == 3 + rehearsal
    assert not any(OUTLIER in rows for rows in whole)


def test_the_weights_are_those_of_a_large_machine(tmp_path: Path):
    exact: dict[str, Any] = {"dropout": 0.0, "noise": 0.0, "dtype": torch.float64}
    small = begun(tmp_path / "small", SmallMachine(**exact))
    large = begun(tmp_path / "large", SmallMachine(padded_size=1000, **exact))
    for trainer in (small, large):
        trainer.fit()
    for name, tensor in weights(large).items():
        torch.testing.assert_close(weights(small)[name], tensor, rtol=1e-10, atol=1e-10, msg=name)


def test_stopped_at_every_step_it_is_cut_alike_to_the_bit(tmp_path: Path):
    """With dropout, of which each chunk draws its own. From the first failure on the machine is a large one."""
    once = begun(tmp_path / "once", SmallMachine())
    once.fit()
    failed = once.state.chunk_rules.rules[0].step
    for stop in range(1, 13):
        task = SmallMachine(padded_size=20 if stop <= failed else 1000)
        begun(tmp_path / "again", task, StopAt(stop)).fit()
    again = begun(tmp_path / "again", SmallMachine(padded_size=1000))
    again.fit()
    assert again.state.chunk_rules.rules == once.state.chunk_rules.rules
    assert same_bits(weights(again), weights(once))


def test_a_larger_one_that_does_not_fit_is_cut_finer_and_the_smaller_stays(tmp_path: Path):
    """Memory for one long row: in two chunks it does not fit, in four it does."""
    task = SmallMachine(padded_size=12)
    trainer = begun(tmp_path, task)
    trainer.fit()
    assert [(cut.padded_size, cut.num_chunks) for cut in trainer.state.chunk_rules.rules] == [(36.0, 2), (36.0, 4)]
    assert task.failures == 2
    assert {len(rows) for rows in task.computed if OUTLIER in rows} == {1}


def test_the_memory_manager_too_asks_for_what_is_as_large_only(tmp_path: Path):
    class Asks(Callback):
        asked = False

        def on_step_end(self, trainer: Any, report: Any) -> None:
            largest = trainer.data.padded_size(max(trainer.last[0].microbatches, key=trainer.data.padded_size))
            if largest == 36.0 and not self.asked:
                self.asked = True
                trainer.split_microbatches("memory is at 90 %")

    task = SmallMachine(padded_size=1000)
    trainer = begun(tmp_path, task, Asks())
    trainer.fit()
    (cut,) = trainer.state.chunk_rules.rules
    assert (cut.padded_size, cut.num_chunks) == (36.0, 2)
    assert [len(rows) for rows in task.computed if OUTLIER in rows] == [4, 2, 2]
    assert {len(rows) for rows in task.computed if OUTLIER not in rows} == {2, 4}
    assert sum(len(rows) == 2 for rows in task.computed) == 4
