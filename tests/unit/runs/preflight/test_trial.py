"""``vaak train FILE --try``: all that would come happens once, and nothing stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vaak.config.load import load, load_layers
from vaak.core.errors import UserError
from vaak.runs.preflight.trial import (
    CPU_MICROBATCHES,
    CPU_ROWS,
    NEW_TOKENS,
    STEPS,
    shortened,
    try_run,
    with_small_batches,
)
from vaak.runs.start import train

LATER = """
training:
  epochs: 30
  max_steps: 9000
  batch_size: 8
  scheduler: {type: linear, warmup_steps: 100, long_warmup: refuse}
  ema: {decay: 0.9, start_step: 2000}
  freeze: [{match: embedding, until_epoch: 3}]
  validation: {interval: 1000}
  checkpoint: {interval: 1000, resume: auto}
  logging: {tensorboard: false}
"""


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_happens_once_and_nothing_stays(
    vaak, tiny_text: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "later.yml").write_text(LATER)
    before, places = list_files(tiny_run), []

    def watched(loaded, task):
        assert loaded.experiment.training.batch_size == CPU_ROWS
        outcome = train(loaded, task=task)
        records = [json.loads(line) for line in (outcome.directory / "metrics.jsonl").read_text().splitlines()]
        kinds = [record["kind"] for record in records]
        saved = [path.name for path in outcome.directory.glob("checkpoints/step-*")]
        places.append((outcome.directory, kinds.count("step"), kinds.count("evaluation"), saved))
        return outcome

    monkeypatch.setattr("vaak.runs.preflight.trial.train", watched)
    asked = (tiny_text / "tiny.yml", tmp_path / "later.yml", f"run_dir={tiny_run}", "--try")
    code, out, errors = vaak("train", *asked)
    assert code == 0, errors
    ((directory, *found),) = places
    assert found == [STEPS, 1, [f"step-{STEPS:08}"]]
    assert f"tried: {STEPS} steps" in out
    assert "val_loss" in out
    assert not directory.exists()
    assert list_files(tiny_run) == before
    code, out, _ = vaak("train", *asked, "--json")
    result = json.loads(out.splitlines()[-1])
    assert (code, result["step"], result["run"]) == (0, STEPS, None)


def test_what_comes_later_comes_within_a_few_steps():
    options = {
        "epochs": 7,
        "scheduler": {"type": "cosine_restarts", "warmup_steps": 400, "first_cycle_epochs": 2},
        "ema": {"start_step": 900},
        "freeze": [{"match": "head", "until_epoch": 4}, {"match": "embedding", "until_step": 70}, {"match": "norm"}],
        "checkpoint": {"resume": "auto", "save_dir": "elsewhere"},
        "logging": {"wandb": True},
    }
    short = shortened(load_layers([{"task": "lm", "data": {"corpus": "grammar"}, "training": options}]).experiment)
    training = short.training
    assert training.max_steps == STEPS
    assert 0 < training.scheduler.warmup_steps < STEPS
    assert training.scheduler.first_cycle_epochs is None
    assert training.ema is not None
    assert 1 < training.ema.start_step < STEPS
    frozen = [(one.until_step, one.until_epoch) for one in training.freeze]
    assert frozen == [(STEPS // 2, None), (STEPS // 2, None), (None, None)]
    assert (training.checkpoint.resume, training.checkpoint.save_dir, training.logging.wandb) == (None, None, False)


def test_the_options_of_a_models_own_parts_count_too():
    """The discriminators of a vocoder begin at a step."""
    model = {"discriminators": {"start_step": 5000}}
    short = shortened(load_layers([{"task": "vocoder", "model": model, "datasets": []}]).experiment)
    assert short.model.discriminators.start_step == STEPS // 2


def test_texts_are_short():
    """An untrained translator writes as many tokens as it may."""
    for given, expected in ((None, NEW_TOKENS), (200, NEW_TOKENS), (3, 3)):
        options = {"task": "seq2seq", "data": {"decoding": {"max_new_tokens": given}}}
        assert shortened(load_layers([options]).experiment).data.decoding.max_new_tokens == expected


def test_a_try_neither_resumes_nor_takes_several_processes(vaak, tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    code, _, errors = vaak("train", tiny_text / "tiny.yml", "--try", "--resume", "auto")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "--try can't be combined with --resume" in errors
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="--try runs in one process"):
        try_run(load([tiny_text / "tiny.yml"]))


def test_a_cpu_takes_small_batches():
    """No more rows and microbatches than it can take in seconds, and never more than the recipe has."""
    for given, expected in (((64, 8), (CPU_ROWS, CPU_MICROBATCHES)), ((2, 1), (2, 1))):
        options = dict(zip(("batch_size", "gradient_accumulation_steps"), given, strict=True))
        small = with_small_batches(load_layers([{"task": "lm", "training": options}]).experiment).training
        assert (small.batch_size, small.gradient_accumulation_steps) == expected
        assert not small.memory.rehearsal


def test_an_example_that_fits_in_no_batch_is_said(vaak, tiny_text: Path):
    """A CPU's batches have no budget, but the recipe's has to be possible."""
    asked = (tiny_text / "tiny.yml", "training.batching={type: bucketed, max_tokens: 3}", "--try")
    code, _, errors = vaak("train", *asked)
    assert (code, "training.batching.max_tokens" in errors.splitlines()[-1]) == (2, True)
    assert vaak("train", *asked[:1], "training.batching={type: bucketed, max_tokens: 500}", "--try")[0] == 0
