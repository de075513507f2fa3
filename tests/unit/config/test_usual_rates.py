"""Training a pretrained base at a rate meant for scratch gives a warning, whether or not the rate was given."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tiny_bert
import vaak
from vaak.config.load import load
from vaak.core.splits import SPLITS
from vaak.tasks.classification.spec import RATES
from vaak.tasks.rates import SMALL_PARAMETERS, select_rates

TEXTS = {
    "lm": "model: {pretrained: theirs, LORA}\ndata: {corpus: {train: a.txt}}",
    "seq2seq": "model: {pretrained: theirs, LORA}\ndata: {corpus: {train: a.tsv}}",
    "classification": "model: {architecture: transformer, pretrained_model: theirs, LORA}\n"
    "data: {corpus: {train: a.csv}}",
    "asr": "model: {base: theirs, LORA}\ndatasets: [{name: a, train: a}]",
}
WHOLE = {"lm": "2e-05", "seq2seq": "0.0001", "classification": "2e-05", "asr": "1e-05"}


def said(folder: Path, task: str, *changes: str, lora: str = "lora: null") -> list[str]:
    text = f"task: {task}\nname: x\n{TEXTS[task].replace('LORA', lora)}\n"
    (folder / "x.yml").write_text(text)
    found = load([folder / "x.yml"], changes).warnings
    return [str(one) for one in found if "pretrained base" in str(one)]


@pytest.mark.parametrize("task", TEXTS)
def test_a_rate_for_scratch_is_said(task: str, tmp_path: Path):
    (line,) = said(tmp_path, task, "training.optimizer.lr=1e-3")
    assert (
        f"training.optimizer.lr is 0.001; a pretrained base, all of it trained, usually learns at {WHOLE[task]}" in line
    )
    low = f"training.optimizer.lr={WHOLE[task]}"
    assert "warm-up; give training.scheduler.warmup_ratio" in said(tmp_path, task, low)[0]
    assert said(tmp_path, task, low, "training.scheduler.warmup_ratio=0.1") == []


@pytest.mark.parametrize("task", ["lm", "asr"])
def test_the_default_rate_of_a_task_is_said_too(task: str, tmp_path: Path):
    assert "usually learns at" in said(tmp_path, task)[0]
    lora = "lora: {rank: 4}"
    assert said(tmp_path, task, lora=lora) == []
    assert "a low-rank adapter of a pretrained base" in said(tmp_path, task, "training.optimizer.lr=1e-6", lora=lora)[0]
    assert "a low-rank adapter of a pretrained base" in said(tmp_path, task, "training.optimizer.lr=0.1", lora=lora)[0]


def test_a_small_encoder_learns_at_rates_that_were_measured_on_one(tmp_path: Path):
    """At 2e-4, MiniLM is far better than at the 2e-5 of large encoders: docs/lab/2026-11-29-pretrained.md."""
    theirs = tiny_bert.write_bert(tmp_path / "bert", ["a", "b"])

    def said_of(base: object, lr: float, lora: str = "null") -> list[str]:
        changes = (f"model.pretrained_model={base}", f"model.lora={lora}", f"training.optimizer.lr={lr}")
        return said(tmp_path, "classification", *changes, "training.scheduler.warmup_ratio=0.1")

    adapters = "{rank: 4}"
    assert said_of(theirs, 2e-4) == said_of(theirs, 6e-3, adapters) == []
    assert "usually learns at 2e-05" in said_of("theirs", 2e-4)[0], "its size isn't known"
    assert "usually learns at 0.0003" in said_of("theirs", 6e-3, adapters)[0]
    assert "all of it trained, usually learns at 0.0002; above, it forgets" in said_of(theirs, 2e-3)[0]
    assert "a low-rank adapter of a pretrained base usually learns at 0.006" in said_of(theirs, 1e-4, adapters)[0]
    header = json.dumps({"large": {"dtype": "F32", "shape": [SMALL_PARAMETERS + 1], "data_offsets": [0, 0]}}).encode()
    (theirs / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "usually learns at 2e-05" in said_of(theirs, 2e-4)[0]


@pytest.mark.slow
def test_a_real_small_encoder_learns_in_few_steps_at_its_usual_rate_alone(tmp_path: Path):
    """MiniLM has hardly moved after 40 steps at the rate of large encoders."""
    weights, data = os.environ.get("VAAK_WEIGHTS"), os.environ.get("VAAK_DATA")
    if not weights or not data:
        pytest.skip("VAAK_WEIGHTS or VAAK_DATA is not set: there are no real weights, or no texts")
    splits = {split: json.loads(Path(data, f"classification/clinc150/{split}.json").read_text()) for split in SPLITS}
    intents = sorted({row["label"] for row in splits["train"]})[::10]
    for split, rows in splits.items():
        kept = [[row for row in rows if row["label"] == intent][:4] for intent in intents]
        (tmp_path / f"{split}.json").write_text(json.dumps([row for own in kept for row in own]))
    encoder, files = str(Path(weights, "minilm")), {split: [str(tmp_path / f"{split}.json")] for split in SPLITS}
    found = {}
    for name, rate in (("usual", select_rates(RATES, encoder)), ("large", RATES)):
        config = {
            "task": "classification",
            "model": {"architecture": "transformer", "pretrained_model": encoder},
            "data": {"corpus": {"type": "files", **files, "label_columns": ["label"]}, "max_length": 64},
            "training": {
                "max_steps": 40,
                "batch_size": 15,
                "optimizer": {"lr": rate.whole},
                "scheduler": {"type": "linear", "warmup_ratio": 0.1},
                "validation": {"at_start": False, "interval_epochs": 100},
                "checkpoint": {"interval_epochs": 100},
            },
        }
        found[name] = vaak.fit(config, tmp_path / name).metrics["val_accuracy"]
    assert found["usual"] > 0.9
    assert found["large"] < found["usual"] - 0.1


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path):
    high = "training.optimizer.lr=1e-3"
    assert said(tmp_path, "lm", high, "training.optimizer.type=muon") == []
    assert said(tmp_path, "lm", high, "training.freeze=[{match: embedding}]") == []
    (tmp_path / "scratch.yml").write_text("task: lm\nname: x\ndata: {corpus: {train: a.txt}}\n")
    assert not any("pretrained" in str(one) for one in load([tmp_path / "scratch.yml"], [high]).warnings)
