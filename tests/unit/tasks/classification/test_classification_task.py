"""A classifier through the commands: the kit's files, evaluation files, labels, freezing; mistakes have one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vaak as library
from vaak.cli.eval import evaluate
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.engine.optim.optimizers import parameter_groups, trained_parameters
from vaak.runs.start import prepare, train
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.classification.data import RowFormat
from vaak.tasks.classification.task import ClassificationTask
from vaak.text.tokenizer import Tokenizer

KIT_TRANSFORMER = """\
model:
  name: "transformer_model"
  architecture: "transformer"
  pretrained_model: "bert-base-uncased"
  num_labels: 2
  hidden_size: 768
  num_layers: 12
  num_attention_heads: 12
  hidden_dropout_prob: 0.1
  attention_probs_dropout_prob: 0.2
"""
KIT_CNN = """\
model:
  name: "cnn_model"
  architecture: "cnn"
  vocab_size: 30522
  embed_size: 128
  num_filters: 100
  filter_sizes: [3, 4, 5]
  num_labels: 2
  dropout_prob: 0.5
"""
KIT_DATA = """\
data:
  augmentation:
    enabled: true
    techniques:
      - "synonym_replacement"
      - "random_insertion"
      - "random_swap"
      - "random_deletion"
    probability: 0.1
"""
CONFIG = """\
name: tiny
model: {architecture: cnn, embed_size: 16, num_filters: 16, filter_sizes: [1, 2], dropout: 0.1}
data:
  corpus: {train: texts.json, out_of_scope: outside.json, train_fraction: 0.6, valid_fraction: 0.2}
  tokenizer: {type: word, vocab_size: 200, min_frequency: 1}
  max_length: 20
training: {max_steps: 30, batch_size: 8, device: cpu, optimizer: {lr: 1e-2}, logging: {tensorboard: false}}
"""
OTHER = "model.architecture=transformer model.d_model=16 model.num_layers=1 model.num_heads=2"
GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


def rows() -> list[dict[str, Any]]:
    return [
        {
            "text": f"w{number % 9} {(GOOD, BAD)[number % 2][number % 3]} w{number % 11}",
            "label": ("yes", "no")[number % 2],
            "kind": number % 3,
        }
        for number in range(90)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts in which commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yml").write_text(CONFIG)
    (tmp_path / "texts.json").write_text(json.dumps(rows()))
    (tmp_path / "outside.json").write_text(json.dumps([{"text": f"x{number} y"} for number in range(20)]))
    return tmp_path


def test_the_kits_model_and_data_files_load_as_written(tmp_path: Path):
    for name, text in (("transformer", KIT_TRANSFORMER), ("cnn", KIT_CNN), ("data", KIT_DATA)):
        (tmp_path / f"{name}.yml").write_text(text)
    loaded = load([tmp_path / "transformer.yml", tmp_path / "data.yml"])
    model: ClassifierConfig = loaded.experiment.model
    assert loaded.experiment.task == "classification"
    assert (model.pretrained_model, model.num_labels, model.d_model) == ("bert-base-uncased", 2, 768)
    assert (model.num_layers, model.num_heads, model.dropout, model.attention_dropout) == (12, 12, 0.1, 0.2)
    assert loaded.experiment.data.augmentation.enabled
    loaded = load([tmp_path / "cnn.yml"])
    model = loaded.experiment.model
    assert loaded.experiment.task == load([tmp_path / "data.yml"]).experiment.task == "classification"
    assert loaded.experiment.data.tokenizer.vocab_size == 30522
    assert (model.embed_size, model.num_filters, model.filter_sizes) == (128, 100, (3, 4, 5))
    assert model.dropout == 0.5


def test_a_run_is_trained_evaluated_and_labels_texts(folder: Path, vaak: Callable[..., tuple[int, str, str]]):
    outcome = train(load(["tiny.yml"], ["training.max_steps=80"]))
    assert outcome.metrics["val_accuracy"] == 1.0
    evaluate(Path("runs/tiny"), [], ["test", "out_of_scope"], folder / "evaluation_results", "cpu")
    written = {path.name for path in (folder / "evaluation_results").iterdir()}
    assert {"evaluation.json", "test_classes.csv", "test_predictions.csv"} <= written
    assert {"test_confusion.png", "test_reliability.png"} <= written
    report = json.loads((folder / "evaluation_results" / "evaluation.json").read_text())
    assert report["metrics"]["test_accuracy"] == report["metrics"]["test_macro_f1"] == 1.0
    assert report["metrics"]["out_of_scope_auroc"] > 0.5
    assert len((folder / "evaluation_results" / "test_predictions.csv").read_text().splitlines()) == 1 + 18
    labels = vaak("classify", "runs/tiny", "w1 great w2\nw1 awful w2\n", "--device", "cpu")[1]
    assert [line.split("\t")[0] for line in labels.splitlines()] == ["yes", "no", ""]
    labels = vaak("classify", "runs/tiny", "w1 great w2", "--top-k", "2", "--device", "cpu")[1]
    assert labels.split("\t")[0] == "yes"
    assert len(labels.split("\t")) == 4
    run = library.open("runs/tiny")
    assert run.evaluate([{"text": "w1 good w3", "label": "yes"}, ("w1 poor w3", "no")])["accuracy"] == 1.0
    (folder / "other.json").write_text(json.dumps([{"text": "w1 good", "label": "maybe"}]))
    with pytest.raises(UserError, match=r"other.json: entry 0: the label 'maybe' occurs in no training text"):
        evaluate(Path("runs/tiny"), ["data.corpus.test=[other.json]", "data.corpus.train=[]"], ["test"], device="cpu")


def test_freezing_and_rates_by_depth(folder: Path):
    """The kit's strategy by the schedule: the head first, the encoder from the second epoch on, lower layers slower."""
    small = ["model={architecture: transformer, d_model: 16, num_layers: 2, num_heads: 2}", "training.epochs=2"]
    freeze = ["training.max_steps=null", "training.freeze=[{match: ^transformer, until_epoch: 1}]"]
    loaded = load(["tiny.yml"], [*small, *freeze, "training.optimizer.layer_decay=0.5"])
    train(loaded)
    first = library.open("runs/tiny")
    assert isinstance(first.task, ClassificationTask)
    model = first.task.model()
    model.freeze_parameters(["transformer"])
    assert {name for name, one in model.named_parameters() if one.requires_grad} == {"head.weight", "head.bias"}
    model.unfreeze_parameters(["transformer"])
    named = trained_parameters(model)
    rates = {
        name: group["lr"]
        for group in parameter_groups(named, loaded.experiment.training.optimizer, 1.0, 2)
        for name in group["names"]
    }
    assert rates["head.weight"] == 1.0
    assert {rate for name, rate in rates.items() if "blocks.1." in name} == {0.5}
    assert {rate for name, rate in rates.items() if "blocks.0." in name} == {0.25}
    assert rates["transformer.embedding.weight"] == 0.125


def weights(run: str, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(f"runs/{run}/checkpoints/step-{step:08d}/model.safetensors")


def test_nothing_but_the_head_is_trained_while_the_encoder_is_frozen(folder: Path):
    options = [
        "training.freeze=[{match: ^(embedding|filters), until_step: 2}]",
        "training.checkpoint={interval: 1, save_total_limit: null}",
        "training.max_steps=3",
    ]
    train(load(["tiny.yml"], options))
    first, second, third = (weights("tiny", step) for step in (1, 2, 3))
    assert torch.equal(first["embedding.weight"], second["embedding.weight"])
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert not torch.equal(second["embedding.weight"], third["embedding.weight"])


@pytest.mark.slow  # a language model is exported each time
@pytest.mark.parametrize(
    "model", ["model.dropout=0.2", "model={d_model: 16, num_layers: 1, num_heads: 2, pooling: max}"]
)
def test_an_exported_classifier_is_the_same_in_onnxruntime(folder: Path, model: str):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    overrides = [model, "training.max_steps=2"]
    if model.startswith("model={"):
        (folder / "tiny.yml").write_text(
            "\n".join(line for line in CONFIG.splitlines() if not line.startswith("model"))
        )
    train(load(["tiny.yml"], ["task=classification", *overrides]))
    run = library.open("runs/tiny")
    assert isinstance(run.task, ClassificationTask)
    run.task.export_onnx(run.model, folder / "onnx")
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    tokenizer = Tokenizer.load(folder / "onnx")
    row = RowFormat(tokenizer, json.loads(session.get_modelmeta().custom_metadata_map["ends"]), 20).row(
        tokenizer.encode("w1 great w2 w5")
    )
    (logits,) = session.run(None, {"inputs": row[None], "mask": np.ones((1, len(row)), dtype=bool)})
    (found,) = run.task.predict(run.model, ["w1 great w2 w5"])
    probabilities = torch.from_numpy(logits).double().softmax(-1)[0].tolist()
    assert dict(zip(classes["label"], probabilities, strict=True)) == pytest.approx(
        found.probabilities["label"], abs=1e-5
    )


@pytest.mark.parametrize(
    ("change", "override", "says"),
    [
        ({}, "model.num_labels=5", "model.num_labels is 5, but label has 2 labels in train (no, yes)"),
        (
            {"label": "yes"},
            "name=one",
            "corpus: label has one label only (yes) in train: there is nothing to tell apart",
        ),
        ({}, "data.augmentation={enabled: true, synonyms: gone.txt}", "gone.txt can't be read"),
        ({}, "data.augmentation={enabled: true, techniques: [translation]}", "techniques"),
        ({}, "model.pretrained_model=./gone", "architecture is cnn; word vectors are given by word_vectors"),
        ({}, "model={architecture: transformer, pretrained_model: ./gone}", "no such folder: ./gone"),
        (
            {},
            "data.augmentation.enabled=true",
            "wordnet requires nltk (pip install 'vaak[augmentation]'); or give a file",
        ),
        ({}, "data.corpus.test=strange.json", "strange.json: entry 0: the label 'maybe' occurs in no training text"),
        ({"text": " "}, "name=blank", "all its texts in texts.json were dropped (90 because empty)"),
        ({"label": None}, "name=none", "texts.json: entry 0: label is empty: every row needs a label"),
        ({}, "model.label_weights=[1, 2]", "has 2 numbers for 1 columns"),
        ({}, "model.label_weights=[0]", "one at least must be above 0"),
        ({}, "model.word_vectors=gone.txt", "gone.txt can't be read"),
        ({}, "data.corpus.label_columns=[topic]", "no column 'topic'; the columns are: text, label, kind"),
    ],
)
def test_mistakes_have_one_line(
    folder: Path, change: dict[str, Any], override: str, says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    (folder / "texts.json").write_text(json.dumps([row | change for row in rows()]))
    (folder / "strange.json").write_text(json.dumps([{"text": "w1 good", "label": "maybe"}]))
    with pytest.raises(UserError) as caught:
        prepare(load(["tiny.yml"], [override]))
    assert says in str(caught.value)


def test_a_text_that_outgrows_its_row_keeps_its_last_word(folder: Path):
    texts = [{"text": f"w{number % 7} w{number % 5} not", "label": number % 2} for number in range(40)]
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "synonyms.txt").write_text("".join(f"w{number},w1 w2 w3 w4 w5 w6\n" for number in range(9)))
    inserts = "{enabled: true, techniques: [random_insertion], probability: 0.3, synonyms: synonyms.txt}"
    given = [f"data.augmentation={inserts}", "data.corpus.deduplicate=false", "data.corpus.out_of_scope=[]"]
    loaded = load(["tiny.yml"], given)
    task = ClassificationTask(loaded.experiment, folder / "run", loaded.folder)
    task.prepare()
    dataset, word = task.dataset("train"), task.tokenizer.encode("not")[0]
    rows = [dataset.example(index, np.random.default_rng(draw)).inputs for index in range(20) for draw in range(9)]
    assert all(word in row for row in rows)
    assert all(len(row) <= dataset.lengths[index // 9] for index, row in enumerate(rows))


def test_stratify_is_said_not_to_be_read_where_all_splits_are_given(folder: Path):
    said = "data.corpus.stratify: is read by vaak crossval only"
    given = [f"data.corpus.{split}=[texts.json]" for split in ("valid", "test")]
    warnings = ["\n".join(load(["tiny.yml"], ["data.corpus.stratify=false", *more]).warnings) for more in ([], given)]
    assert [said in one for one in warnings] == [False, True]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"train tiny.yml run_dir=runs/new training.checkpoint.init_from=runs/tiny {OTHER}", "is from another model: "),
        (f"train tiny.yml training.checkpoint.resume=auto {OTHER}", "model.architecture"),
        ("eval runs/tiny model.architecture=transformer", "model.architecture is transformer, but the run was trained"),
    ],
)
def test_a_checkpoint_of_another_architecture_is_refused(vaak: Any, folder: Path, command: str, says: str):
    train(load(["tiny.yml"], ["training.max_steps=1"]))
    code, _, err = vaak(*command.split())
    assert code == 2, err
    assert says in err.splitlines()[-1]


@pytest.mark.slow
def test_a_text_of_a_megabyte_is_cut_and_counted(folder: Path):
    (folder / "texts.json").write_text(json.dumps([*rows(), {"text": "good word " * 100_000, "label": "yes"}]))
    about = json.loads((prepare(load(["tiny.yml"])) / "prepared.json").read_text())
    assert sum(split["cut"] for split in about["statistics"].values()) == 1


def test_texts_that_a_classifier_reads_in_part_are_counted(
    folder: Path, vaak: Callable[..., tuple[int, str, str]], caplog: pytest.LogCaptureFixture
):
    """``vaak classify`` labelled the beginning of a long text, without a word."""
    train(load(["tiny.yml"], ["training.max_steps=1"]))
    longest = load(["tiny.yml"]).experiment.data.max_length
    long, short = "w1 great " * longest, "w1 great"
    several = {"classify": [f"{long}\n{short}\n{long}"], "predict": [long, short, long, "--embeddings"]}
    caplog.clear()
    for command, texts in several.items():
        assert vaak(command, "runs/tiny", short, "--device", "cpu")[0] == 0
        assert "longer than" not in caplog.text
        assert vaak(command, "runs/tiny", *texts, "--device", "cpu", "--batch-size", 2)[0] == 0
        assert f"2 texts are longer than the {longest} tokens that are read (data.max_length)" in caplog.text
        caplog.clear()


def test_two_columns_give_two_lines(folder: Path, vaak: Callable[..., tuple[int, str, str]]):
    outcome = train(load(["tiny.yml"], ["data.corpus.label_columns=[label, kind]", "data.corpus.out_of_scope=[]"]))
    assert {"val_accuracy/label", "val_accuracy/kind", "val_macro_f1"} <= set(outcome.metrics)
    found = json.loads(vaak("classify", "runs/tiny", "w1 great w2", "--device", "cpu", "--json")[1])
    assert list(found["probabilities"]) == ["label", "kind"]
    assert sum(found["probabilities"]["kind"].values()) == pytest.approx(1)
    lines = vaak("classify", "runs/tiny", "w1 great w2", "--device", "cpu")[1].splitlines()
    assert [line.split("\t")[0] for line in lines] == ["label", "kind"]
