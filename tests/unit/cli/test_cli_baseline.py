"""``vaak baseline``: by the metrics of ``vaak eval``, against independent scorers; and models below are named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

import tiny_diarizer
from ngram_reference import NgramModel
from tiny_bert import write_bert
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.core.storage.files import read_json, write_json
from vaak.scoring.diarization_errors import score_segments
from vaak.tasks.classification.metrics import embed_texts
from vaak.tasks.classification.pretrained import Pretrained
from vaak.text.word_dictionary import words

LOOP = "training: {max_steps: 2, batch_size: 4, device: cpu, logging: {tensorboard: false}}\n"
SMALL = "{d_model: 16, num_layers: 1, num_heads: 2}"
YAML = {
    "lm": f"task: lm\nmodel: {SMALL}\ndata: {{corpus: {{num_sentences: 200}}, tokenizer: {{vocab_size: 300}}}}\n",
    "seq2seq": "task: seq2seq\nmodel: {encoder: SMALL, decoder: SMALL}\n".replace("SMALL", SMALL)
    + "data: {corpus: {num_sentences: 200}, tokenizer: {vocab_size: 300}}\n",
    "classification": "task: classification\nmodel: {architecture: cnn, embed_size: 4, num_filters: 4}\n"
    "data: {corpus: {num_sentences: 300}, max_length: 32}\n",
}


@pytest.fixture
def made(vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of a task to its prepared task object and the baselines that the command gives."""
    monkeypatch.chdir(tmp_path)

    def of(task: str) -> tuple[Any, dict[str, Any]]:
        if task == "diarization":
            tiny_diarizer.write_corpus(tmp_path)
        else:
            (tmp_path / "tiny.yml").write_text(f"name: tiny\n{YAML[task]}{LOOP}")
        code, out, errors = vaak("baseline", "tiny.yml", "--split", "test", "--json")
        assert code == 0, errors
        assert json.loads(out)["data"]["test"]["number"] > 0
        loaded = load([Path("tiny.yml")])
        return task_class(task)(loaded.experiment, Path("runs/tiny"), loaded.folder), json.loads(out)

    return of


def test_a_classifiers_are_those_of_scikit_learn(made: Any):
    feature_extraction = pytest.importorskip("sklearn.feature_extraction.text")
    svm = pytest.importorskip("sklearn.svm")
    metrics = pytest.importorskip("sklearn.metrics")
    task, found = made("classification")
    train, test = task.prepared.stores("train"), task.prepared.stores("test")
    texts = {name: [row.text for row in stores.texts] for name, stores in (("train", train), ("test", test))}
    vectors = feature_extraction.TfidfVectorizer(
        tokenizer=words, token_pattern=None, ngram_range=(1, 2), sublinear_tf=True
    )
    model = svm.LinearSVC(random_state=0).fit(vectors.fit_transform(texts["train"]), train.targets[:, 0])
    predicted, true = model.predict(vectors.transform(texts["test"])), test.targets[:, 0]
    values = found["figures"]["TF-IDF + linear SVM"]
    assert values["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted))
    expected = metrics.f1_score(true, predicted, average="macro", zero_division=0)
    assert values["macro_f1"] == pytest.approx(expected)
    commonest = np.bincount(train.targets[:, 0]).argmax()
    assert found["figures"]["most frequent class"]["accuracy"] == pytest.approx(np.mean(true == commonest))
    assert set(values) == {"accuracy", "micro_f1", "macro_f1", "weighted_f1"}


def test_a_pretrained_models_embeddings_are_a_baseline(
    vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    transformers = pytest.importorskip("transformers")
    linear_model = pytest.importorskip("sklearn.linear_model")
    monkeypatch.chdir(tmp_path)
    bert = write_bert(tmp_path / "bert", ("the", "boy", "good", "bad", "a", "is"))
    texts = {"train": ["the boy is good", "a good boy", "the bad boy", "is bad", "bad", "good"], "test": ["a bad boy"]}
    labels = {"train": ["up", "up", "down", "down", "down", "up"], "test": ["down"]}
    for split, own in texts.items():
        lines = [json.dumps({"text": text, "label": label}) for text, label in zip(own, labels[split], strict=True)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    (tmp_path / "tiny.yml").write_text(
        "name: tiny\ntask: classification\nmodel: {pretrained_model: ./bert}\n"
        "data: {max_length: 16, corpus: {type: files,"
        f" train: train.jsonl, valid: test.jsonl, test: test.jsonl}}}}\n{LOOP}"
    )
    code, out, errors = vaak("baseline", "tiny.yml", "--split", "test", "--json")
    assert code == 0, errors
    metrics = json.loads(out)["figures"]["embeddings + logistic regression"]
    # Each text alone, by transformers itself: the rest of a batch changes nothing.
    tokenizer, model = (one.from_pretrained(bert) for one in (transformers.AutoTokenizer, transformers.AutoModel))
    with torch.inference_mode():
        means = {
            split: np.stack([model.eval()(**tokenizer(one, return_tensors="pt"))[0][0].mean(0).numpy() for one in own])
            for split, own in texts.items()
        }
    fitted = linear_model.LogisticRegression(max_iter=1000).fit(means["train"], labels["train"])
    assert metrics["accuracy"] == fitted.score(means["test"], labels["test"])
    loaded = load([Path("tiny.yml")])
    task: Any = task_class("classification")(loaded.experiment, Path("runs/tiny"), loaded.folder)
    base = Pretrained.load(str(bert), task.prepared.tokenizer.vocab_size, task.options)
    for split, expected in means.items():
        assert embed_texts(base, task.dataset(split)) == pytest.approx(expected, abs=1e-5)
    assert vaak("train", "tiny.yml")[0] == 0
    bert.rename(tmp_path / "elsewhere")
    code, out, errors = vaak("baseline", "runs/tiny", "--split", "test", "--json")
    assert code == 0, errors
    assert "embeddings + logistic regression is left out: " in caplog.text
    assert list(json.loads(out)["figures"])[:-1] == ["most frequent class", "TF-IDF + linear SVM"]


def test_a_language_models_are_scored_on_the_same_tokens_and_bytes(made: Any):
    task, found = made("lm")
    (metrics,) = found["figures"].values()
    dataset, rng = task.dataset("test"), np.random.default_rng(0)
    batch = dataset.collate([[dataset.example(index, rng)] for index in range(len(dataset.lengths))])
    tokens, num_bytes = (int(batch.counts[unit].sum()) for unit in ("token", "byte"))
    assert metrics["loss"] * tokens == pytest.approx(metrics["bits_per_byte"] * num_bytes * math.log(2))
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    train = task.dataset("train")
    model = NgramModel([train.ids(index).tolist() for index in range(len(train.lengths))], 5, 300)
    nats = 0.0
    for index in range(len(dataset.lengths)):
        ids = dataset.ids(index).tolist()
        for place in range(1, len(ids)):
            nats -= math.log(model.probability(ids[:place], ids[place]))
    assert metrics["loss"] == pytest.approx(nats / tokens)
    for before in ([], [3], [3, 7], dataset.ids(0).tolist()[:6], dataset.ids(1).tolist()[:3]):
        total = sum(model.probability(before, token) for token in range(300))
        assert total == pytest.approx(1.0, abs=1e-9)


def test_a_translators_are_those_of_sacrebleu(made: Any):
    task, found = made("seq2seq")
    dataset = task.dataset("test")
    pairs = dataset.first_pairs(dataset.num_translated)
    copies, references = [pair.source for pair in pairs], [[pair.targets[0] for pair in pairs]]
    expected = sacrebleu.corpus_chrf(copies, references).score
    assert found["figures"]["copy of the source"]["chrf"] == pytest.approx(expected)
    by_word = found["figures"]["word by word (IBM Model 1)"]
    assert by_word["chrf"] > 2 * found["figures"]["most frequent target"]["chrf"]
    assert found["figures"]["phrase by phrase"]["bleu"] > by_word["bleu"]


def test_a_diarizers_are_scored_on_whole_recordings(made: Any):
    pytest.importorskip("sklearn")
    task, found = made("diarization")
    dataset, rng = task.dataset("test"), np.random.default_rng(0)
    errors = scored = 0.0
    for index in range(len(dataset.lengths)):
        example = dataset.example(index, rng)
        segments = list(task.collator.reference(example))
        whole = [segments[0]._replace(start=0.0, end=example.duration, speaker="x")]
        score = score_segments(segments, whole, uem=example.uem, **task.data.scoring.model_dump()).error
        errors, scored = errors + score.errors, scored + score.scored
    assert found["figures"]["one speaker"]["der"] == pytest.approx(errors / scored)
    assert found["figures"]["perfect without overlap"]["der"] == pytest.approx(0.0, abs=1e-6)
    assert 0 < found["figures"]["energy and spectral clustering"]["der"] < found["figures"]["one speaker"]["der"]


@pytest.mark.slow
def test_a_model_below_its_baseline_is_named(vaak: Any, made: Any, tmp_path: Path):
    made("classification")
    assert vaak("baseline", "tiny.yml")[0] == 0
    code, out, errors = vaak("train", "tiny.yml")
    assert code == 0, errors
    below = "below its baseline: val_accuracy is"
    assert below in out
    code, out, _ = vaak("eval", "runs/tiny")
    assert below in out
    assert "TF-IDF + linear SVM has" in out
    assert below in vaak("baseline", "runs/tiny")[1]
    write_json(tmp_path / "texts.json", [{"text": "एक", "label": "gender_agreement"}])
    assert below not in vaak("eval", "runs/tiny", "data.corpus={type: files, valid: [texts.json]}")[1]
    about = read_json(Path("runs/tiny/baselines.json"))
    for metrics in about["valid"]["figures"].values():
        metrics["accuracy"] = 0.0
    write_json(Path("runs/tiny/baselines.json"), about)
    assert below not in vaak("eval", "runs/tiny")[1]


def test_a_task_without_baselines_says_so(vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yml").write_text(YAML["lm"].replace("{d_model", "{model_type: encoder, d_model") + LOOP)
    code, out, errors = vaak("baseline", "tiny.yml")
    assert (code, out) == (2, "")
    assert "a decoder's baseline" in errors.splitlines()[-1]
