"""The research kit's trainer as the kit writes it, on two small classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vaak.compat.research_kit import DistillationTrainer, MultiTaskTrainer, Trainer, accuracy, cross_entropy
from vaak.config import tasks
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.library.simple_task import padded


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty registry, as training in memory registers a task under a name."""
    monkeypatch.setattr(tasks, "REGISTERED_TASKS", {})


def classifier(width: int, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Tanh(), nn.Linear(width, classes))


class Masked(nn.Module):
    """A classifier of padded sequences, which gets the mask with them."""

    def __init__(self, width: int, classes: int = 3) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, width), nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head((self.embedding(inputs) * mask[..., None]).sum(1))
        return logits


def test_the_kits_call_trains_the_small_model_in_place(tmp_path: Path):
    torch.manual_seed(0)
    small_model, large_model = Masked(4), Masked(16)
    examples = [([1 + number % 8] * (1 + number % 3), number % 3) for number in range(48)]
    trainer = DistillationTrainer(student_model=small_model, teacher_model=large_model, temperature=4.0, alpha=0.7)
    before = small_model.head.weight.detach().clone()
    taught = large_model.head.weight.detach().clone()
    loop: dict[str, Any] = {
        "max_steps": 30,
        "batch_size": 8,
        "device": "cpu",
        "learning_rate": 0.05,
        "logging": {"tensorboard": False},
    }
    run = trainer.train({"train": examples, "valid": examples}, tmp_path / "run", **loop)
    steps = run.history("step")
    assert steps[-1]["distillation"] < 0.5 * steps[0]["distillation"]
    assert not torch.equal(small_model.head.weight, before)
    assert torch.equal(small_model.head.weight, run.model.get_parameter("head.weight").cpu())
    assert torch.equal(large_model.head.weight, taught)


def test_its_losses_are_the_direct_formula_however_the_examples_are_split():
    torch.manual_seed(0)
    student, teacher = classifier(5).double(), classifier(9).double()
    inputs, targets = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    trainer = DistillationTrainer(student, teacher, temperature=3.0, alpha=0.6)
    pieces = [Batch({"inputs": inputs[rows], "targets": targets[rows]}, {}) for rows in (slice(0, 4), slice(4, 6))]
    found = sum(term.total for piece in pieces for term in trainer.losses(student, piece).values()) / 6
    p, q = F.softmax(teacher(inputs) / 3, -1), F.softmax(student(inputs) / 3, -1)
    soft, hard = (p * (p / q).log()).sum(1).mean(), F.cross_entropy(student(inputs), targets)
    torch.testing.assert_close(found, 0.6 * 9 * soft + 0.4 * hard, rtol=1e-12, atol=1e-12)


def test_mistakes_have_one_line():
    with pytest.raises(UserError, match="temperature is 0; expected a number above 0"):
        DistillationTrainer(classifier(2), classifier(2), temperature=0)
    with pytest.raises(UserError, match="alpha is 7; expected a number from 0 to 1"):
        DistillationTrainer(classifier(2), classifier(2), alpha=7)
    batch = Batch({"inputs": torch.randn(2, 4), "targets": torch.tensor([0, 1])}, {})
    with pytest.raises(UserError, match=r"logits of shapes \(2, 3\) and \(2, 5\)"):
        DistillationTrainer(classifier(2), classifier(2, 5)).losses(classifier(2), batch)


def test_the_kits_call_trains_several_models_in_place_and_what_they_share(tmp_path: Path):
    torch.manual_seed(0)
    model1, model2 = Masked(6), Masked(6, classes=2)
    model2.embedding = model1.embedding
    dataset1 = [([1 + number % 8] * (1 + number % 3), number % 3) for number in range(48)]
    dataset2 = [([1 + number % 8], number % 2) for number in range(16)]
    trainer = MultiTaskTrainer(
        models={"task1": model1, "task2": model2},
        datasets={"task1": {"train": dataset1, "valid": dataset1}, "task2": {"train": dataset2, "valid": dataset2}},
        loss_weights={"task1": 0.7, "task2": 0.3},
    )
    loop: dict[str, Any] = {"device": "cpu", "learning_rate": 0.05, "logging": {"tensorboard": False}}
    run = trainer.train(tmp_path / "run", epochs=20, batch_size=8, gradient_accumulation_steps=4, **loop)
    steps = run.history("step")
    assert steps[-1]["loss"] < 0.6 * steps[0]["loss"]
    both = [step for step in steps if {"task1/loss", "task2/loss"} <= step.keys()]
    assert both
    assert both[0]["loss"] == pytest.approx(0.7 * both[0]["task1/loss"] + 0.3 * both[0]["task2/loss"])
    assert model2.embedding is model1.embedding
    assert torch.equal(model2.head.weight, run.model.get_parameter("tasks.task2.head.weight").cpu())
    with pytest.raises(UserError, match="the task b has no dataset"):
        MultiTaskTrainer({"a": model1, "b": model2}, {"a": dataset1})


class SecondPlace(Masked):
    """Requires its mask, which it calls otherwise."""

    def forward(self, inputs: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs, real)


class OnlyByName(Masked):
    """Takes a mask as transformers' models do."""

    def forward(self, input_ids: Any, token_type_ids: Any = None, attention_mask: Any = None) -> torch.Tensor:
        assert token_type_ids is None
        return super().forward(input_ids, attention_mask)


LOOP: dict[str, Any] = {"max_steps": 2, "batch_size": 4, "device": "cpu", "logging": {"tensorboard": False}}


def test_an_ordinary_module_is_trained_by_all_three(tmp_path: Path):
    examples = [(torch.randn(6), number % 2) for number in range(12)]
    models = [nn.Linear(6, 2), nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1), nn.Linear(4, 2))]
    data = {"train": examples, "valid": examples}
    for number, model in enumerate(models):
        assert Trainer(model, data, tmp_path / f"plain-{number}", **LOOP).train().metrics["val_accuracy"] >= 0
    DistillationTrainer(models[0], models[1]).train(data, tmp_path / "distilled", **LOOP)
    MultiTaskTrainer({"a": models[0], "b": models[1]}, {"a": data, "b": data}).train(tmp_path / "joint", **LOOP)


@pytest.mark.parametrize("kind", [Masked, SecondPlace, OnlyByName])
def test_a_mask_is_given_to_what_takes_one(kind: type[Masked]):
    model = kind(4)
    batch = padded([([1, 2, 3], 0), ([4], 1)])
    alone = accuracy(model, padded([([4], 1)]))
    assert accuracy(model, batch)[1] == alone[0]
    expected = F.cross_entropy(Masked.forward(model, batch["inputs"], batch["inputs_mask"]), batch["targets"])
    torch.testing.assert_close(cross_entropy(model, batch).total / 2, expected)


def test_padding_that_a_model_would_read_as_data_is_an_error():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(UserError, match=r"inputs differ in length, .* Sequential.forward has no parameter mask"):
        cross_entropy(model, padded([([1, 2, 3], 0), ([4], 1)]))


def test_tasks_without_validation_are_named_and_the_others_are_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    examples = [(torch.randn(6), number % 2) for number in range(12)]
    models = {"a": nn.Linear(6, 2), "b": nn.Linear(6, 2)}
    trainer = MultiTaskTrainer(models, {"a": {"train": examples, "valid": examples}, "b": examples})
    with caplog.at_level("WARNING", "vaak"):
        run = trainer.train(tmp_path / "one", **LOOP)
    assert "b: no examples for valid, so evaluations are of the other tasks" in caplog.text
    assert run.metrics["val_loss"] == run.metrics["val_a/loss"]
    assert 0 <= run.metrics["val_a/accuracy"] <= 1
    assert not any("b/" in name for name in run.metrics)
    with caplog.at_level("WARNING", "vaak"):
        MultiTaskTrainer(models, {"a": examples, "b": examples}).train(tmp_path / "none", **LOOP)
    assert "no task has examples for valid, so nothing is evaluated" in caplog.text
