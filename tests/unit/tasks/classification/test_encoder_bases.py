"""Encoders of today, made small: classifiers whole and by adapters, resumed, exported, the same in a pipeline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import tiny_bases
from vaak.config.load import load
from vaak.core.storage.files import read_json
from vaak.runs.open_run import OpenedRun, open_run
from vaak.runs.start import train

Vaak = Callable[..., tuple[int, str, str]]
CONFIG = """\
task: classification
name: tiny
model: {pretrained_model: base, dropout: 0.1}
data: {corpus: {train: texts.json, train_fraction: 0.6, valid_fraction: 0.2, deduplicate: false}, max_length: 16}
training:
  {max_steps: 4, batch_size: 8, device: cpu, optimizer: {lr: 1e-2}, checkpoint: {interval: 2},
   logging: {tensorboard: false, progress_bar: false}}
"""
TEXTS = ["ba do mi", "su", "do do do ba su"]
CASES = [
    ("modernbert", "first"),
    ("modernbert", "mean"),
    ("mmbert", "mean"),
    ("xlm-roberta", "first"),
    ("xlm-roberta", "mean"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, in which commands run."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": f"ba {('do', 'mi')[n % 2]} {'su ' * (n % 5)}{n % 3 * 'do '}", "label": "yn"[n % 2]} for n in range(60)
    ]
    (tmp_path / "texts.json").write_text(json.dumps(rows))
    (tmp_path / "tiny.yml").write_text(CONFIG)
    return tmp_path


def trained(*options: str) -> OpenedRun:
    train(load(["tiny.yml"], ["run_dir=run", *options]))
    return open_run(Path("run"), device="cpu")


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize(
    ("kind", "pooling"),
    [case if case[0] == "mmbert" else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_it_trains_resumes_bit_for_bit_and_is_the_same_in_a_pipeline(
    folder: Path, kind: str, pooling: str, adapted: bool
):
    tiny_bases.ENCODERS[kind](folder / "base")
    options = [f"model.pooling={pooling}", *(["model.lora={rank: 2}"] if adapted else [])]
    opened = trained(*options)
    shutil.rmtree(Path("run/checkpoints/step-00000004"))
    resumed = trained(*options, "training.checkpoint.resume=auto").model.state_dict()
    assert all(torch.equal(one, resumed[name]) for name, one in opened.model.state_dict().items())
    task: Any = opened.task
    if (kind, pooling) == ("xlm-roberta", "mean"):  # as multilingual e5 pools
        assert "has pooling first, not mean" in task.refused_exports()["hf"]
        task.export_onnx(opened.model, folder / "onnx")
        return
    task.export_hf(opened.model, folder / "out")
    classify: Any = pipeline("text-classification", "out", top_k=None)
    for text, one in zip(TEXTS, task.predict(opened.model, TEXTS), strict=True):
        theirs = {each["label"]: each["score"] for each in classify([text])[0]}
        assert theirs == pytest.approx(one.probabilities["label"], abs=1e-5)


def test_embeddings_of_a_run_are_what_its_classes_are_computed_from(
    folder: Path, vaak: Vaak, caplog: pytest.LogCaptureFixture, tiny_run: Path
):
    tiny_bases.ENCODERS["modernbert"](folder / "base")
    opened = trained("model.pooling=mean", "training.max_steps=2")
    opened.task.export_hf(opened.model, folder / "out")
    assert read_json(folder / "out" / "config.json")["local_rope_theta"] == 1e4, "transformers 4 reads no other name"
    caplog.set_level("INFO", "vaak")
    code, said, error = vaak("predict", "run", *TEXTS, "--embeddings")
    assert code == 0, error
    assert "pooling mean, of 16 tokens at most, not normalised" in caplog.text
    tokenizer: Any = AutoTokenizer.from_pretrained("out")
    encoder: Any = AutoModel.from_pretrained("out").eval()
    for text, line in zip(TEXTS, said.splitlines(), strict=True):
        with torch.no_grad():
            expected = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(json.loads(line)["embedding"], expected, atol=1e-5)
    code, _, error = vaak("predict", tiny_run, "so", "--embeddings")
    assert code == 2
    assert "is a run of task lm; vaak predict --embeddings requires a run of task classification" in error


@pytest.mark.parametrize(
    ("named", "apply"),
    [
        ({}, torch.sigmoid),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda logits: logits),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, torch.sigmoid),
    ],
)
def test_a_cross_encoder_scores_pairs_as_sentence_transformers_does(
    folder: Path, vaak: Vaak, named: dict[str, Any], apply: Callable[[torch.Tensor], torch.Tensor]
):
    write_cross_encoder(folder, num_labels=1, **named)
    pairs = [("ba do", "mi"), ("su " * 40, "do do"), ("mi", "ba ba su")]
    code, said, error = vaak("predict", "base", *("\t".join(pair) for pair in pairs), "--pairs", "--json")
    assert code == 0, error
    tokenizer: Any = AutoTokenizer.from_pretrained("base")
    model: Any = AutoModelForSequenceClassification.from_pretrained("base").eval()
    # What CrossEncoder.predict computes: truncated at the fewer of the tokenizer's and the model's tokens.
    for pair, line in zip(pairs, said.splitlines(), strict=True):
        read = tokenizer([pair[0]], [pair[1]], truncation="longest_first", max_length=30, return_tensors="pt")
        with torch.no_grad():
            expected = float(apply(model(**read).logits)[0, 0])
        assert json.loads(line) == {"text": pair[0], "text_pair": pair[1], "score": pytest.approx(expected, abs=1e-6)}


def write_cross_encoder(folder: Path, **options: Any) -> None:
    """An XLM-R with labels, as bge's and mmarco's rerankers are."""
    tiny_bases.ENCODERS["xlm-roberta"](folder / "base")
    auto: Any = AutoModelForSequenceClassification
    config: Any = AutoConfig.from_pretrained("base")
    config.update(options)
    auto.from_config(config).save_pretrained("base")


def test_what_is_no_cross_encoder_or_no_pair_is_named(folder: Path, vaak: Vaak):
    tiny_bases.ENCODERS["xlm-roberta"](folder / "base")
    code, _, error = vaak("predict", "base", "ba\tdo", "--pairs")
    assert (code, "a cross-encoder is a ForSequenceClassification with one" in error) == (2, True), error
    write_cross_encoder(folder, num_labels=1)
    code, _, error = vaak("predict", "base", "ba\tdo", "ba do", "--pairs")
    assert (code, "input 2 has 0 tabs; expected two texts and a tab" in error) == (2, True), error
    write_cross_encoder(folder, num_labels=3)
    code, _, error = vaak("predict", "base", "ba\tdo", "--pairs")
    assert (code, "with 3 labels" in error) == (2, True), error
