"""A rehearsed evaluation doesn't let a model that can't stop yet write to the greatest length; an evaluation does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import tiny_listener
from task_case import TaskCase
from vaak.nn.decoding.sampling import Hypothesis
from vaak.tasks.asr.whisper import predict as whisper
from vaak.tasks.seq2seq import predict as seq2seq

MOST = 60
"""Tokens that each of these models may write."""
SIZES = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "max_target_length": MOST}


def _write_both(folder: Path) -> list[Path]:
    tiny_listener.write_listener(folder)
    pairs = [{"en": f"word {number}", "hi": f"wort {number}"} for number in range(40)]
    (folder / "pairs.json").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    return []


LISTENER = tiny_listener.sections("FOLDER", model={"scratch": SIZES})
TRANSLATOR = {
    "model": {"encoder": {"d_model": 16, "num_layers": 1, "num_heads": 2}, "decoder": {}},
    "data": {
        "corpus": {"train": "FOLDER/pairs.json", "train_fraction": 0.6, "valid_fraction": 0.3},
        "tokenizer": {"type": "wordpiece", "vocab_size": 60, "min_frequency": 1},
        "max_source_length": 30,
        "max_target_length": MOST,
    },
}
BOTH = TaskCase(
    "multitask",
    {"tasks": {"a": {"task": "asr", **LISTENER}, "b": {"task": "seq2seq", **TRANSLATOR}}},
    write=_write_both,
)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Hypothesis]:
    """The list to which hypotheses are added as models write them."""
    found: list[Hypothesis] = []
    for module in (whisper, seq2seq):
        write = module.write

        def noted(*arguments: Any, write: Any = write) -> list[Hypothesis]:
            found.extend(own := write(*arguments))
            return own

        monkeypatch.setattr(module, "write", noted)
    return found


@pytest.mark.slow
def test_a_rehearsal_bounds_what_an_untrained_model_writes_and_says_so(
    written: list[Hypothesis], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
):
    monkeypatch.setattr("vaak.tasks.base.log.propagate", True)
    trainer = BOTH.prepared(tmp_path).trainer(tmp_path / "run")
    with caplog.at_level(logging.INFO, "vaak"):
        metrics = trainer.evaluator.rehearse(trainer.model, "valid")
    rehearsed = [len(one.tokens) for one in written]
    assert 0 < max(rehearsed) <= 24, "the longest reference has 12 tokens"
    lines = [one for one in caplog.messages if "were cut off at" in one]
    assert len(lines) == 2, caplog.messages
    assert all("data.decoding.max_new_tokens" in line and "up to " in line for line in lines)
    written.clear()
    caplog.clear()
    with caplog.at_level(logging.INFO, "vaak"):
        evaluated = trainer.evaluator.evaluate(trainer.model, "valid")
    assert max(len(one.tokens) for one in written) > 40, "an evaluation is not bounded so"
    assert (metrics, caplog.messages) == (set(evaluated), [])
