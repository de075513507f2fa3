"""The console says each record in a line, and only those figures that one reads as training goes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from toy import toy_trainer
from vaak.callbacks.console.lines import ConsoleCallback
from vaak.callbacks.step_log import StepLogCallback


def test_every_record_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "vaak"):
        trainer = toy_trainer(tmp_path, StepLogCallback(4), ConsoleCallback(), validation={"interval": 4})
        trainer.fit()
    written = [message for message in caplog.messages if message.startswith("checkpoint written: ")]  # when it is
    messages = [message for message in caplog.messages if message not in written]
    kinds = [message.split()[0] + " " + message.split()[1] for message in messages]
    assert kinds == ["step 1/8", "step 4/8", "step 4", "epoch 1", "step 8/8", "step 8", "epoch 2"]
    assert f"val_loss {trainer.metrics['val_loss']:.4f}" in messages[-2]
    assert "tokens/s" in messages[0]
    assert "lr 5.00e-03" in messages[0]
    folders = [trainer.checkpoints / "step-00000004", trainer.checkpoints / "step-00000008"]
    assert written == [f"checkpoint written: {folder}" for folder in folders]


def test_parts_of_parts_stay_in_the_file(caplog: pytest.LogCaptureFixture):
    record = {"kind": "evaluation", "step": 3, "val_accuracy": 0.5, "val_accuracy/number": 0.25, "scheduled": True}
    with caplog.at_level(logging.INFO, "vaak"):
        ConsoleCallback().say(record)
    assert caplog.messages == ["step 3  val_accuracy 0.5000"]
