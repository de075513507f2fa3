"""The calls of the research kit's guide, typed as it types them: only the imports are Vaak's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from vaak.core.errors import UserError
from vaak.nn.models import TransformerModel
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.classification.model import TransformerClassifier

VOCAB_SIZE, LENGTH = 12, 6
LOOP: dict[str, Any] = {
    "batch_size": 8,
    "device": "cpu",
    "learning_rate": 0.01,
    "logging": {"tensorboard": False, "interval": 1},
    "checkpoint": {"interval_epochs": 100},
}


def examples(number: int) -> list[tuple[list[int], int]]:
    """Rows of even tokens, and rows of odd ones."""
    rows = torch.randint(1, VOCAB_SIZE // 2, (number, LENGTH), generator=torch.Generator().manual_seed(number))
    return [((2 * row + place % 2).tolist(), place % 2) for place, row in enumerate(rows)]


def classifier() -> TransformerClassifier:
    torch.manual_seed(0)
    config = ClassifierConfig(d_model=16, num_layers=1, num_heads=2, dropout=0.0)
    transformer = TransformerModel(config, VOCAB_SIZE, causal=False, max_length=LENGTH)
    return TransformerClassifier(config, transformer, 2)


def encoder_of(model: TransformerClassifier) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.transformer.named_parameters()}


def test_the_fine_tuning_strategy(tmp_path: Path):
    from vaak.compat.research_kit import Trainer

    model = classifier()
    trainer = Trainer(model, {"train": examples(24), "valid": examples(16)}, tmp_path / "run", **LOOP)
    with pytest.raises(UserError, match="training hasn't begun: call train first"):
        trainer.optimizer.param_groups[0]["lr"] = 1e-5
    drawn, head = encoder_of(model), model.head.weight.detach().clone()

    # Freeze base model
    model.freeze_parameters(["transformer"])
    # Train classification head
    trainer.train(epochs=2)

    assert all(torch.equal(one, drawn[name]) for name, one in model.transformer.named_parameters())
    assert not torch.equal(model.head.weight, head)
    steps = int(trainer.optimizer.state[model.head.weight]["step"])
    assert steps == 2 * 3

    # Unfreeze and continue training
    model.unfreeze_parameters(["transformer"])
    trainer.optimizer.param_groups[0]["lr"] = 1e-5  # Lower LR for base model
    run = trainer.train(epochs=8)

    assert run.directory == tmp_path / "run-2"
    assert run.model is model
    assert run.config.training.optimizer.lr == 1e-5
    assert run.config.training.epochs == 8
    assert max(record["learning_rate"] for record in run.history("step")) <= 1e-5
    moved = max((one - drawn[name]).abs().max() for name, one in model.transformer.named_parameters())
    assert 0 < moved < 1e-5 * 8 * 3 * 4
    assert int(trainer.optimizer.state[model.head.weight]["step"]) == steps + 8 * 3, "moments were taken over"
    assert run.config.training.random_seed == 43, "its batches are in another order"

    assert trainer.train(epochs=1).config.training.optimizer.lr == 1e-5, "it stays until it is set again"
    assert trainer.train(epochs=1, learning_rate=2e-4).config.training.optimizer.lr == 2e-4

    run = trainer.train(epochs=4, learning_rate=0.01)
    assert run.metrics["val_accuracy"] > 0.9
    assert not model.training


def test_learning_rate_finding(tmp_path: Path):
    from vaak.study.lr_finder import LRFinder

    model, criterion = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    dataset = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    train_dataloader = DataLoader(dataset, batch_size=16, shuffle=True)

    lr_finder = LRFinder(model, optimizer, criterion)
    lr_finder.range_test(train_dataloader, end_lr=1, num_iter=100)
    figure = lr_finder.plot()

    assert figure.axes
    assert lr_finder.history["lr"][-1] <= 1


@pytest.mark.slow
def test_augmentation_and_curriculum():
    from vaak.data.curriculum import CurriculumScheduler
    from vaak.text.augmentation import DataAugmenter

    train_data = [{"text": "one two three four five", "label": 0}, {"text": "six seven eight nine", "label": 1}]
    augmenter = DataAugmenter(augmentation_prob=0.1)
    augmented_data = augmenter.augment_dataset(
        data=train_data,
        text_column="text",
        augmentation_factor=1,
    )
    assert augmented_data[:2] == train_data
    assert [row["label"] for row in augmented_data] == [0, 1, 0, 1]

    scheduler = CurriculumScheduler(
        initial_difficulty=0.3,
        final_difficulty=1.0,
        num_epochs=10,
    )
    assert [scheduler.get_difficulty(epoch) for epoch in (0, 10)] == [0.3, 1.0]


def test_distillation_of_classifiers(tmp_path: Path):
    from vaak.compat.research_kit import DistillationTrainer

    small_model, large_model = classifier(), classifier()
    trainer = DistillationTrainer(
        student_model=small_model,
        teacher_model=large_model,
        temperature=4.0,
        alpha=0.7,
    )
    run = trainer.train({"train": examples(16)}, tmp_path / "run", epochs=1, **LOOP)
    assert set(run.history("step")[0]) >= {"distillation", "cross_entropy"}
    assert run.model is small_model


def test_inspection_and_checkpoints_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from vaak.compat.research_kit import Trainer

    model = classifier()
    trainer = Trainer(model, {"train": examples(16)}, tmp_path / "run", **LOOP)
    trainer.train(epochs=1)
    inputs, mask = torch.tensor([examples(1)[0][0]]), torch.ones(1, LENGTH, dtype=torch.bool)
    loss = torch.nn.functional.cross_entropy(model(inputs, mask), torch.tensor([1]))
    loss.backward()
    capsys.readouterr()

    for name, param in model.named_parameters():
        if param.grad is not None:
            print(f"{name}: grad_norm = {param.grad.norm()}")
    print(model)
    print(f"Total parameters: {sum(p.numel() for p in model.parameters())}")
    for name, param in model.named_parameters():
        print(f"{name}: {param.device}")

    out = capsys.readouterr().out
    assert "head.weight: grad_norm = " in out
    assert "head.weight: cpu" in out
    assert out.count("grad_norm") > 3

    optimizer, checkpoint_file = trainer.optimizer, tmp_path / "checkpoint.pth"
    torch.save(
        {
            "epoch": 1,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "loss": loss,
            "config": {"learning_rate": 0.01},
        },
        checkpoint_file,
    )
    checkpoint = torch.load(checkpoint_file)
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    assert checkpoint["epoch"] == 1
