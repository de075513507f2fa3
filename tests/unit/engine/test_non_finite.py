"""A step that isn't finite: its cause and which example, recorded, with the model unchanged."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from backwards import NanBackwards
from toy import ToyDataset, ToyModel, ToyTask, next_data, next_microbatches, same_bits, toy_trainer, weights
from vaak.core.batch import Batch, Term
from vaak.core.errors import NonFiniteError
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.inspection import ModulePlace
from vaak.engine.non_finite import NonFinite, record_path
from vaak.engine.trainer import Trainer


class PlantedDataset(ToyDataset):
    """Its batches hold a number for each row, ``added``: 0, and NaN for the examples ``nan``."""

    nan: tuple[int, ...] = ()

    def example(self, index: int, rng: np.random.Generator) -> Any:
        return super().example(index, rng), math.nan if index in self.nan else 0.0

    def collate(self, rows: list[list[Any]]) -> Batch:
        batch = super().collate([[tokens for tokens, _ in row] for row in rows])
        batch.tensors["added"] = torch.tensor([[added] for row in rows for _, added in row])
        return batch


class Adder(nn.Module):
    """A toy model that adds to its input what a batch says; its mean is a buffer that the forward writes."""

    mean: Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.toy = ToyModel(dropout)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, inputs: Tensor, added: Tensor) -> Tensor:
        outputs = self.toy(inputs) + added.unsqueeze(-1)
        self.mean.copy_(outputs.detach().mean())
        return outputs


@dataclass
class PlantedTask(ToyTask):
    """``bad`` examples are NaN in the ``where``: data, loss or backward."""

    where: str = "data"
    culprits: tuple[int, ...] = ()
    splittable: bool = True
    seen: list[int] = field(default_factory=list)

    def dataset(self, split: str) -> ToyDataset:
        if split != "train":
            return PlantedDataset(10)
        dataset = PlantedDataset(self.num_examples, self.noise)
        dataset.nan = self.culprits if self.where == "data" else ()
        return dataset

    def model(self) -> Any:
        return Adder(self.dropout)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = super().losses(lambda inputs: model(inputs, batch["added"]), batch)  # type: ignore[arg-type]
        bad = bool({index for row in batch.indices for index in row} & set(self.culprits))
        total = terms["main"].total
        if bad and self.where == "backward":
            terms["main"] = Term(NanBackwards.apply(total), "token")
        ratio = total.detach() * (math.nan if bad and self.where == "loss" else 0.0)
        return terms | {"ratio": Term(ratio, "example", self.splittable)}


def trainer_of(folder: Path, task: ToyTask, **training: Any) -> Trainer:
    trainer = toy_trainer(folder, task=task, **training)
    trainer.model.train()
    return trainer


def second_of(trainer: Trainer, number: int = 1) -> list[int]:
    """The examples of a microbatch of the first step, row by row."""
    return [index for row in next_microbatches(trainer)[number].address.rows for index in row]


def planted(folder: Path, where: str, **options: Any) -> tuple[Trainer, int]:
    """A trainer whose first step has one bad example, in its second microbatch, and which it is."""
    bad = second_of(trainer_of(folder / "plain", PlantedTask()))[2]
    return trainer_of(folder / "run", PlantedTask(where=where, culprits=(bad,), **options)), bad


def diagnosed(trainer: Trainer) -> NonFinite:
    """The diagnosis of the next step; the model and its optimizers are as they were."""
    before, moments = weights(trainer), trainer.saving.snapshot().optimizer
    training, data = trainer.model.training, next_data(trainer)
    (objective,) = trainer.step.objectives
    found = trainer.step.diagnosis.of(objective, trainer.state, data, trainer.model)
    assert same_bits(before, weights(trainer))
    assert same_bits(moments, trainer.saving.snapshot().optimizer)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in trainer.model.modules())
    assert not any(parameter._backward_hooks for parameter in trainer.model.parameters())
    assert trainer.model.training == training
    return found


def record_of(trainer: Trainer) -> Any:
    return json.loads(record_path(trainer.directory, 1, trainer.ranks.rank).read_text())


def test_a_weight(tmp_path: Path):
    trainer = trainer_of(tmp_path, ToyTask())
    with torch.no_grad():
        trainer.model.get_parameter("head.weight")[3, 1] = math.nan
    found = diagnosed(trainer)
    assert found.finding is not None
    assert (found.finding.kind, found.finding.parameter, found.microbatch) == ("weight", "head.weight", 0)
    assert found.finding.place == ModulePlace("head", "output")
    assert [example.index for example in found.examples] == second_of(trainer, 0)
    said = found.sentence(tmp_path)
    assert "the loss main is not a finite number, nor is head.weight, first in head (output)" in said
    assert "toy.txt" not in said  # it isn't the fault of an example
    record = record_of(trainer)
    assert (record["kind"], record["module"], record["parameter"]) == ("weight", "head", "head.weight")
    assert record["losses"] == {"main": "nan"}
    assert [module["module"] for module in record["modules"]] == ["embedding", "dropout", "features", "head", "model"]
    assert record["modules"][-2]["non_finite"] == pytest.approx(1 / 13)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize(
    ("where", "kind", "said"),
    [
        ("data", "data", "the loss main is not a finite number, nor is added of the batch, first in model (input)"),
        ("loss", "loss", "the loss ratio is not a finite number, though all outputs of the model are"),
        ("backward", "gradient", "the gradient is not a finite number, first in model (gradient of its output)"),
    ],
)
def test_one_row(where: str, kind: str, said: str, chunks: int, tmp_path: Path):
    trainer, bad = planted(tmp_path, where)
    trainer.state.chunk_rules.count = lambda *_: chunks  # type: ignore[method-assign]
    found = diagnosed(trainer)
    assert found.finding is not None
    assert (found.finding.kind, found.microbatch, found.chunk) == (kind, 1, chunks - 1)
    assert [example.index for example in found.examples] == [bad]
    run = trainer.directory
    assert found.sentence(run) == (
        f"step 1: {said}; example {bad} (toy.txt line {bad + 1}); recorded in {run}/non_finite/step-00000001.json; "
        f"inspect it with vaak replay {run} --step 1 --debug; the weights are those of step 0"
    )
    assert record_of(trainer)["examples"] == [{"index": bad, "description": f"toy.txt line {bad + 1}"}]


def test_rows_that_cannot_be_told_apart_are_all_named(tmp_path: Path):
    trainer, _ = planted(tmp_path, "loss", splittable=False)
    found = diagnosed(trainer)
    assert [example.index for example in found.examples] == second_of(trainer)
    assert " and 1 more; recorded" in found.sentence(tmp_path)


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path):
    trainer = trainer_of(tmp_path, ToyTask())
    found = diagnosed(trainer)
    assert (found.finding, found.examples) == (None, [])
    assert "though that of each microbatch of this process is" in found.sentence(tmp_path)
    assert record_of(trainer)["kind"] is None


def test_gradients_that_only_fp16s_scale_makes_too_large_are_not_taken_for_it(tmp_path: Path):
    trainer, bad = planted(tmp_path, "loss")
    trainer.state.loss_scale.value = 1e39  # as an overflowing scale
    found = diagnosed(trainer)
    assert found.finding is not None
    assert (found.finding.kind, found.finding.loss) == ("loss", "ratio")
    assert [example.index for example in found.examples] == [bad]


def test_the_plain_model_is_run_where_training_runs_a_compiled_one(tmp_path: Path):
    trainer, bad = planted(tmp_path, "data")

    def compiled(*_: Tensor) -> Tensor:
        raise AssertionError

    (objective,) = trainer.step.objectives
    forward = replace(objective.gradient.forward, model=compiled)  # type: ignore[arg-type]
    objective = replace(objective, gradient=replace(objective.gradient, forward=forward))
    trainer.step = replace(trainer.step, objectives=(objective,))
    assert [example.index for example in diagnosed(trainer).examples] == [bad]


def test_another_rank_writes_a_file_of_its_own(tmp_path: Path):
    ranks = Ranks(torch.device("cpu"), rank=1)
    trainer = toy_trainer(tmp_path, task=PlantedTask(where="loss", culprits=tuple(range(40))), ranks=ranks)
    trainer.step.diagnosis.of(trainer.step.objectives[0], trainer.state, next_data(trainer), trainer.model)
    assert [path.name for path in (tmp_path / "non_finite").iterdir()] == ["step-00000001.rank1.json"]


def test_a_disk_that_cannot_be_written_hides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    trainer, bad = planted(tmp_path, "data")
    (trainer.directory / "non_finite").write_text("in the way")
    found = diagnosed(trainer)
    assert f"example {bad}" in found.sentence(tmp_path)
    assert "recorded" not in found.sentence(tmp_path)
    assert "can't be written" in caplog.text


def test_a_step_raises_it_and_the_weights_stay(tmp_path: Path):
    trainer, bad = planted(tmp_path, "backward")
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match=rf"^step 1: the gradient is not a finite number.*example {bad} \(toy"):
        trainer.take_step(next_data(trainer))
    del before["mean"]  # a forward that writes a buffer is its own affair
    assert same_bits(before, {name: tensor for name, tensor in weights(trainer).items() if name != "mean"})
