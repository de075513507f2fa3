"""A run with a curriculum that is stopped anywhere and resumed, or started on other ranks, takes the same steps."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from toy import StopAt, ToyDataset, ToyTask, next_microbatches, same_bits, toy_trainer, weights
from vaak.core.batch import Batch, Term
from vaak.core.errors import CheckpointError
from vaak.data.batching import training_planner
from vaak.engine import training_data
from vaak.engine.callback import Callback
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.trainer import Trainer

OPTIONS: dict[str, Any] = {
    "epochs": 4,
    "curriculum": {"difficulty": "length", "initial_difficulty": 0.2, "num_epochs": 3},
    "checkpoint": {"interval": 1, "save_total_limit": None},
}
"""Sixteen steps; the data are all open from the thirteenth on."""


def run(folder: Path, *callbacks: Callback, **changes: Any) -> Trainer:
    """A run on examples that augmentation changes, resumed where it was begun before."""
    trainer = toy_trainer(folder, *callbacks, task=ToyTask(noise=0.5), **(OPTIONS | changes))
    trainer.resume("auto")
    trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return run(tmp_path_factory.mktemp("uninterrupted"))


def test_resumed_at_every_step_is_uninterrupted(uninterrupted: Trainer, tmp_path: Path):
    assert uninterrupted.position.step == uninterrupted.total_steps == 16
    for step in range(1, 16):
        run(tmp_path, StopAt(step))
    resumed = run(tmp_path)
    assert resumed.position == uninterrupted.position
    assert same_bits(weights(resumed), weights(uninterrupted))


def test_it_is_another_run_than_without_and_sees_short_examples_first(uninterrupted: Trainer, tmp_path: Path):
    plain = run(tmp_path, curriculum=None)
    assert plain.position.step == uninterrupted.position.step
    assert plain.position.totals["token"] > uninterrupted.position.totals["token"]
    assert not same_bits(weights(plain), weights(uninterrupted))


def test_repeats_in_an_epoch_are_augmented_anew(tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=ToyTask(noise=0.5), **OPTIONS)
    seen: dict[int, set[tuple[int, ...]]] = {}
    reads, read = 0, trainer.data.microbatches(trainer.position)
    for microbatch, _ in zip(read, range(trainer.data.planner.num_microbatches), strict=False):
        assert microbatch.batch is not None
        for row, inputs in zip(microbatch.batch.indices, microbatch.batch["inputs"].tolist(), strict=True):
            seen.setdefault(row[0], set()).add(tuple(inputs[: int(trainer.data.reader.dataset.lengths[row[0]])]))
            reads += 1
    assert reads > len(seen)
    assert max(map(len, seen.values())) > 1


class FailsOnce(ToyDataset):
    """Its shortest example can't be read the second time."""

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        example = super().example(index, rng)
        if index == self.lengths.argmin() and self.reads.count(index) == 2:
            raise OSError("the network is gone")
        return example


class FlakyTask(ToyTask):
    def dataset(self, split: str) -> ToyDataset:
        return FailsOnce(self.num_examples, self.noise) if split == "train" else super().dataset(split)


def test_an_example_that_failed_once_is_left_out_there_and_not_in_its_other_passes(tmp_path: Path):
    options = OPTIONS | {"epochs": 1, "memory": {"rehearsal": False}}
    first = toy_trainer(tmp_path / "first", task=FlakyTask(noise=0.5), skip_bad=True, **options)
    first.fit()
    (journalled,) = (tmp_path / "first" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(journalled)["occurrence"] == 1
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "skipped.jsonl").write_text(journalled + "\n")
    again = toy_trainer(tmp_path / "again", task=ToyTask(noise=0.5), skip_bad=True, **options)
    again.fit()
    assert same_bits(weights(again), weights(first))


def test_two_ranks_share_the_steps_of_one(tmp_path: Path):
    def parse_step(rank: int, world_size: int) -> list[list[list[int]]]:
        ranks = Ranks(torch.device("cpu"), rank, world_size)
        trainer = toy_trainer(tmp_path / f"{rank}of{world_size}", ranks=ranks, **OPTIONS)
        return [microbatch.address.rows for microbatch in next_microbatches(trainer)]

    alone, first, second = parse_step(0, 1), parse_step(0, 2), parse_step(1, 2)
    assert alone == [first[0], second[0], first[1]]


@pytest.mark.parametrize("change", [{"num_epochs": 4}, {"pacing": "root"}, {"initial_difficulty": 0.3}])
def test_a_resume_under_another_curriculum_is_refused(tmp_path: Path, change: dict[str, Any]):
    run(tmp_path, StopAt(2))
    with pytest.raises(
        CheckpointError, match="the batches are different now: other batches have another order of examples"
    ):
        run(tmp_path, curriculum=OPTIONS["curriculum"] | change)


class Measured(ToyTask):
    """Remembers the longest row of its batches."""

    longest = 0

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        self.longest = max(self.longest, batch["inputs"].shape[1])
        return super().losses(model, batch)


def test_the_rehearsal_tries_the_longest_of_the_last_epoch_and_nothing_longer(tmp_path: Path):
    longest = []
    for epochs in (1, 4):
        task = Measured()
        toy_trainer(tmp_path / f"rehearsed-{epochs}", task=task, **OPTIONS | {"epochs": epochs}).rehearse()
        trained = Measured()
        options = OPTIONS | {"epochs": epochs, "memory": {"rehearsal": False}}
        toy_trainer(tmp_path / f"trained-{epochs}", task=trained, **options).fit()
        assert task.longest == trained.longest
        longest.append(task.longest)
    assert longest[0] < longest[1]


def test_planned_in_pieces_and_resumed_at_every_step_it_is_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Trainer
):
    monkeypatch.setattr(training_data, "training_planner", partial(training_planner, largest=5))
    in_pieces = run(tmp_path / "uninterrupted")
    assert not same_bits(weights(in_pieces), weights(uninterrupted))
    for step in range(1, in_pieces.position.step):
        run(tmp_path / "resumed", StopAt(step))
    resumed = run(tmp_path / "resumed")
    assert resumed.position == in_pieces.position
    assert same_bits(weights(resumed), weights(in_pieces))
