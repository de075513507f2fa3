"""Averaged weights are evaluated, saved and resumed; frozen ones don't change."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from quick_cases import mostly_slow
from toy import StopAt, ToyTask, same_bits, toy_trainer, weights
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.trainer import Trainer

EMA: dict[str, Any] = {"ema": {"decay": 0.9, "start_step": 2}}
FREEZE: dict[str, Any] = {"freeze": [{"match": "embedding", "until_step": 3}, {"match": r"head\.bias"}]}


def run(folder: Path, *callbacks: Callback, **training: Any) -> Trainer:
    trainer = toy_trainer(folder, *callbacks, task=ToyTask(), **training)
    trainer.resume("auto")
    trainer.fit()
    return trainer


@pytest.mark.parametrize(
    "options", mostly_slow([EMA, FREEZE, EMA | FREEZE], EMA | FREEZE), ids=["ema", "freeze", "both"]
)
def test_resumed_at_every_step_is_uninterrupted(options: dict[str, Any], tmp_path: Path):
    options = options | {"feature_redraw_interval": 2, "optimizer": {"lr": 0.01, "weight_decay": 0.1}}
    once = run(tmp_path / "once", **options)
    for step in range(1, 8):
        run(tmp_path / "again", StopAt(step), **options)
    again = run(tmp_path / "again", **options)
    first, second = once.saving.snapshot(), again.saving.snapshot()
    assert same_bits(first.model, second.model)
    assert same_bits(first.optimizer, second.optimizer)
    assert same_bits(first.average, second.average)
    assert bool(first.average) == ("ema" in options)


def test_the_average_is_evaluated_and_training_goes_on_with_its_own_weights(tmp_path: Path):
    options: dict[str, Any] = {"validation": {"interval": 2}}
    plain = run(tmp_path / "plain", **options)
    averaged = run(tmp_path / "averaged", **options, **EMA)
    only_kept = run(tmp_path / "only-kept", **options, ema={"decay": 0.9, "start_step": 2, "evaluate": False})
    assert same_bits(weights(averaged), weights(plain))
    assert only_kept.metrics == plain.metrics
    assert averaged.metrics["val_loss"] != plain.metrics["val_loss"]
    for name, tensor in averaged.saving.snapshot().average.items():
        averaged.model.get_parameter(name).data.copy_(tensor)
    assert averaged.evaluator.evaluate(averaged.model, "valid") == averaged.metrics


def test_a_checkpoint_holds_the_average_beside_the_weights(tmp_path: Path):
    trainer = run(tmp_path, **EMA)
    saved = load_checkpoint(trainer.checkpoints / "step-00000008")
    assert same_bits(saved.average, trainer.saving.snapshot().average)
    assert same_bits(saved.model, trainer.saving.snapshot().model)


def test_frozen_weights_stay_until_they_are_let_go(tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=ToyTask(), **FREEZE)
    seen = [weights(trainer)]

    class See(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            seen.append(weights(trainer))

    trainer.callbacks.append(See())
    trainer.fit()
    changed = {
        name: [not torch.equal(one[name], other[name]) for one, other in itertools.pairwise(seen)] for name in seen[0]
    }
    assert changed["embedding.weight"] == [False] * 3 + [True] * 5
    assert changed["head.bias"] == [False] * 8
    assert all(changed["head.weight"])
    assert "head.bias" not in {name.rsplit("/")[-1] for name in trainer.saving.snapshot().optimizer}


def test_an_average_without_its_checkpoint_begins_anew(tmp_path: Path):
    """A run that is resumed with training.ema, and was begun without."""
    run(tmp_path, StopAt(4))
    trainer = toy_trainer(tmp_path, task=ToyTask(), **EMA)
    trainer.resume("auto")
    assert trainer.saving.snapshot().average == {}
    trainer.fit()
    assert trainer.saving.snapshot().average.keys() == {name for name, _ in trainer.model.named_parameters()}
