"""A loop of one's own with the checkpoints of the TTS trainer, as typed there: saved, killed, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR

from vaak.compat.english_tts import (
    EnglishTrainingConfig,
    MPSGradScaler,
    find_latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from vaak.core.errors import CheckpointError, UserError


class Loop:
    """Model, optimizer, schedule and scaler of a program as the trainer's documents describe it."""

    def __init__(self, optimizer: str = "AdamW") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=0.01)
        self.scheduler = CosineAnnealingWarmRestarts(self.optimizer, T_0=2, T_mult=2)
        self.scaler = MPSGradScaler()

    def epoch(self, number: int) -> float:
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return float(loss.detach())


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad"])
def test_a_loop_resumes_to_the_same_bits(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    whole = Loop(optimizer)
    losses = [whole.epoch(number) for number in range(6)]
    first, config = Loop(optimizer), EnglishTrainingConfig(checkpoint_dir="mine")
    for epoch in range(3):
        loss = first.epoch(epoch)
        path = save_checkpoint(first.model, first.optimizer, first.scheduler, epoch, loss, config, scaler=first.scaler)
        assert path == Path("mine") / f"step-{epoch:08d}"
    newest = find_latest_checkpoint("mine")
    assert newest == path
    second = Loop(optimizer)
    checkpoint = load_checkpoint(newest, second.model, second.optimizer, second.scheduler, scaler=second.scaler)
    assert checkpoint.state["epoch"] == 2
    assert checkpoint.state["loss"] == losses[2]
    assert checkpoint.state["config"]["learning_rate"] == config.learning_rate
    assert [second.epoch(number) for number in range(3, 6)] == losses[3:]
    pairs = zip(whole.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not list(Path("mine").rglob("*.p*t*"))  # no pickle


def test_what_comes_after_the_loss_may_come_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    loop = Loop()
    orders: list[tuple[Any, ...]] = [
        ({"lr": 0.1}, "there", loop.scaler),
        ("there", loop.scaler, {"lr": 0.1}),
        (loop.scaler, {"lr": 0.1}, Path("there")),
    ]
    for others in orders:
        path = save_checkpoint(loop.model, loop.optimizer, loop.scheduler, 1, torch.tensor(0.5), *others)
        assert path == Path("there") / "step-00000001"
        state = json.loads((path / "state.json").read_text())
        assert (state["config"], state["loss"], set(state["parts"])) == (
            {"lr": 0.1}, 0.5, {"optimizer", "scheduler", "scaler"},
        )  # fmt: skip
    assert save_checkpoint(loop.model, loop.optimizer, epoch=2).parent == Path("checkpoints")
    with pytest.raises(UserError, match="two values for output_dir"):
        save_checkpoint(loop.model, loop.optimizer, None, 1, 0.5, "here", output_dir="there")


def test_mistakes_have_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    loop = Loop()
    path = save_checkpoint(loop.model, loop.optimizer, None, 1, 0.5)
    with pytest.raises(CheckpointError, match="has no scheduler for a loop of your own: it was saved without"):
        load_checkpoint(path, loop.model, loop.optimizer, loop.scheduler)
    with pytest.raises(CheckpointError, match="is from another model"):
        load_checkpoint(path, nn.Linear(4, 1))
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint("nowhere", loop.model)

    class Callable(LambdaLR):
        def state_dict(self) -> dict[str, Any]:
            return {"function": print}

    scheduler = Callable(loop.optimizer, lambda epoch: 1.0)
    with pytest.raises(UserError, match=r"scheduler.function is of type builtin_function_or_method.*no pickle"):
        save_checkpoint(loop.model, loop.optimizer, scheduler, 1, 0.5)
    with pytest.raises(UserError, match="a dictionary or a data class, not int"):
        save_checkpoint(loop.model, loop.optimizer, None, 1, 0.5, 3)
    assert find_latest_checkpoint("checkpoints") == path
