"""The console says each record in a line, and only those figures that one reads as training goes."""

from __future__ import annotations

import io
import json
import logging
import math
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import TaskID

from toy import StopAt, toy_trainer
from vaak.callbacks import progress_bar as progress
from vaak.callbacks.console import ConsoleCallback, smooth_loss
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


def test_the_last_step_of_an_epoch_is_of_that_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "vaak"):
        trainer = toy_trainer(tmp_path, StepLogCallback(1), ConsoleCallback(), validation={"interval": 4})
        trainer.fit()
    said = [
        next(part for part in line.split("  ") if part.startswith("epoch")) for line in caplog.messages if "/8" in line
    ]
    assert said == ["epoch 1"] * 4 + ["epoch 2"] * 4
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records if record["kind"] == "step"] == [0] * 4 + [1] * 4
    assert [record["epoch"] for record in records if record["kind"] == "evaluation"] == [0, 1]


def test_parts_of_parts_stay_in_the_file(caplog: pytest.LogCaptureFixture):
    record = {"kind": "evaluation", "step": 3, "val_accuracy": 0.5, "val_accuracy/number": 0.25, "scheduled": True}
    with caplog.at_level(logging.INFO, "vaak"):
        ConsoleCallback().say(record)
    assert caplog.messages == ["step 3  val_accuracy 50.00 %"]


def test_a_line_has_what_a_person_follows(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "vaak"):
        trainer = toy_trainer(tmp_path, StepLogCallback(1), ConsoleCallback(), validation={"interval": 4})
        trainer.fit()
    (line,) = (message for message in caplog.messages if message.startswith("step 6/8"))
    assert "epoch 2" in line
    assert "(best " in line
    assert "GiB" in line
    assert "elapsed, " in line
    assert line.count("/s") == 1, "one throughput"
    assert "nan" not in line


def test_a_narrow_bar_breaks_no_word(monkeypatch: pytest.MonkeyPatch):
    for width in (30, 50, 80, 160):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(progress, "console", lambda console=console: console)
        monkeypatch.setattr(progress, "show", lambda bar: None)
        bar = progress.start_progress(2, 1000, "val_loss 5.3117 (best 5.3117)")
        bar.update(TaskID(0), completed=20, loss="5.1234", rate="lr 1.00e-02", epoch="epoch 1", memory="0.3 GiB")
        text = "".join(segment.text for segment in console.render(bar.get_renderable()))
        assert text.count("\n") == (1 if width == 160 else 2), (width, text)
        assert "nan" not in text
        assert max(map(len, text.splitlines())) <= width
        assert ("val_loss 5.3117 (best 5.3117)" in text) == (width >= 30)
        if width >= 80:
            for words in ("epoch 1", "20/1000", "loss 5.1234", "left", "elapsed", "lr 1.00e-02", "0.3 GiB", "steps/s"):
                assert words in text, (width, words)


def test_the_loss_of_the_bar_forgets_by_steps_and_not_by_redraws():
    """With hundreds of steps between two redraws it stayed near the loss of the first step."""
    shown = None
    for loss, steps in ((9.0, 1), (3.0, 100), (math.nan, 100), (2.0, 1)):
        shown = smooth_loss(shown, loss, steps)
    assert shown == pytest.approx(0.9 * 3.0 + 0.1 * 2.0, rel=1e-3)


def test_a_resumed_run_shows_its_losses_from_the_first_line_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """They were ``nan`` until the smoothing had something."""
    for stopping in ((StopAt(5),), ()):
        caplog.clear()
        with caplog.at_level(logging.INFO, "vaak"):
            trainer = toy_trainer(
                tmp_path, StepLogCallback(1), ConsoleCallback(), *stopping, checkpoint={"interval": 1}
            )
            trainer.resume("auto")
            trainer.fit()
    lines = [message for message in caplog.messages if message.startswith("step ")]
    assert lines[0].startswith("step 6/8  loss ")
    assert "nan" not in "".join(lines)
