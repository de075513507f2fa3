"""A run that begins with another's weights takes rows of tokens, labels and speakers by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vaak.config.load import load
from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint
from vaak.runs.start import temporary_trainer, train

MODEL = """\
task: lm
name: first
model: {d_model: 16, num_layers: 1, num_heads: 2, tie_embeddings: false}
data: {corpus: {type: text, train: first.txt}, tokenizer: {type: character, vocab_size: 300}, max_length: 16}
training: {max_steps: 2, batch_size: 4, device: cpu, logging: {tensorboard: false, progress_bar: false}}
"""
CLASSIFIER = """\
task: classification
name: first
model: {architecture: cnn, embed_size: 8, num_filters: 4, filter_sizes: [1]}
data:
  corpus: {train: first.json, train_fraction: 0.6, valid_fraction: 0.2}
  tokenizer: {type: word, min_frequency: 1}
  max_length: 8
training: {max_steps: 2, batch_size: 4, device: cpu, logging: {tensorboard: false, progress_bar: false}}
"""


def texts(labels: str) -> str:
    """Rows whose words and labels sort otherwise with other ``labels``."""
    rows = [{"text": f"word {labels[n % len(labels)]} w{n % 5}", "label": labels[n % len(labels)]} for n in range(40)]
    return json.dumps(rows)


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("first.txt").write_text("".join(f"{'b' * n} c {'d' * 2 * n}\n" for n in range(1, 40)))
    Path("other.txt").write_text("".join(f"a {'b' * 2 * n} x {'d' * n}\n" for n in range(1, 40)))
    Path("lm.yml").write_text(MODEL)
    Path("first.json").write_text(texts("bcd"))
    Path("other.json").write_text(texts("abdx"))
    Path("classifier.yml").write_text(CLASSIFIER)
    return tmp_path


def begun(file: str, *overrides: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The task and the weights of a second run at its start, on other data, and those that it begins with."""
    train(load([file]))
    source = load_checkpoint(resolve_checkpoint(Path("runs/first")), weights_only=True).model
    with temporary_trainer(load([file], ["training.checkpoint.init_from=runs/first", *overrides])) as trainer:
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        return (trainer.task, source), weights


def test_tokens_are_taken_by_their_names(first: Path, caplog: pytest.LogCaptureFixture):
    (task, source), weights = begun("lm.yml", "data.corpus.train=other.txt")
    names = task.row_names()["tokens"]
    theirs = {name: place for place, name in enumerate(source_names(load(["lm.yml"]), Path("runs/first"), "tokens"))}
    assert names.index("b") != theirs["b"], "their places differ, or this shows nothing"
    assert weights["embedding.weight"].shape != source["embedding.weight"].shape
    for parameter in ("embedding.weight", "head.weight"):
        for place, name in enumerate(names):
            if name in theirs:
                assert torch.equal(weights[parameter][place], source[parameter][theirs[name]])
        assert not torch.equal(weights[parameter][names.index("a")], torch.zeros(16))
    said = [record.getMessage() for record in caplog.records if "taken by name" in record.getMessage()]
    assert len(said) == 1
    assert "newly drawn: 'a', 'x'" in said[0]


def test_labels_are_taken_by_their_names(first: Path, caplog: pytest.LogCaptureFixture):
    (task, source), weights = begun("classifier.yml", "data.corpus.train=other.json")
    assert task.row_names()["labels"] == [f"label: {name}" for name in "abdx"]
    for parameter in ("head.weight", "head.bias"):
        for ours, theirs in ((1, 0), (2, 2)):  # b and d, of b, c and d
            assert torch.equal(weights[parameter][ours], source[parameter][theirs])
    assert any(
        "newly drawn: 'label: a', 'label: x'; not taken: 'label: c'" in one.getMessage() for one in caplog.records
    )


def test_the_same_names_are_not_worth_a_line(first: Path, caplog: pytest.LogCaptureFixture):
    (_, source), weights = begun("classifier.yml")
    assert all(torch.equal(weights[name], tensor) for name, tensor in source.items())
    assert not [one for one in caplog.records if "taken by" in one.getMessage()]


def source_names(loaded: Any, run: Path, kind: str) -> list[str]:
    return list(loaded.task(run).row_names()[kind])
