"""What the table of docs/resuming.md allows, a resume can do: the state of a checkpoint fits the changed run."""

from __future__ import annotations

from pathlib import Path

import tiny_runs
from vaak.config.changes import get_rule

CHANGES = (
    "model.dropout=0.3",
    "model.attention_dropout=0.2",
    "model.norm_eps=0.001",
    "model.rope_scaling_factor=2",
    "training.optimizer.betas=[0.8, 0.99]",
    "training.optimizer.layer_decay=0.5",
    "training.optimizer.groups=[{match: norm, lr_scale: 0.5}]",
    "training.optimizer.fused=false",
    "training.scheduler.type=plateau",
    "training.loss.label_smoothing=0.1",
    "training.scheduler.type=cosine",
    "training.early_stopping=9",
    "training.ema=0.9",
    "training.mixed_precision=bf16",
    "training.ema.start_step=2",
    "training.performance.gradient_checkpointing=true",
    "training.ema=null",
    "training.freeze.0.until_step=99",
    "training.checkpoint.mode=max",
    "data.token_dropout=0.1",
    "data.stride=3",
    "training.logging.interval=3",
)
ALWAYS = ("training.freeze=[{match: norm, until_step: 1}]", "training.epochs=99")


def test_one_run_is_resumed_under_more_and_more_changes(tmp_path: Path):
    """Eight at each resume, for which there is time."""
    text, run = tmp_path / "text", tmp_path / "run"
    tiny_runs.write_corpus(text)
    tiny_runs.train(text, run, *ALWAYS, "training.max_steps=2")
    for number in range(8, len(CHANGES) + 8, 8):
        for change in CHANGES[number - 8 : number]:
            key = change.partition("=")[0]
            assert get_rule("lm", key).always in ("free", "other numbers"), key
        overrides = (*ALWAYS, *CHANGES[:number], f"training.max_steps={2 + number}")
        outcome = tiny_runs.train(text, run, *overrides, "training.checkpoint.resume=auto")
        assert (outcome.reason, outcome.step) == ("finished", 2 + number), CHANGES[number - 8 : number]
