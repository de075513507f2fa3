"""``vaak compare`` on classifiers: whatever they read the texts by, on the same texts, and on no others."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from vaak.config.load import load
from vaak.runs.start import train
from vaak.study import compare

CONFIG = """\
task: classification
name: weak
model: {architecture: cnn, embed_size: 16, num_filters: 16, filter_sizes: [1, 2], dropout: 0.1}
data:
  corpus: {train: texts.json, test: one/test.json, out_of_scope: outside.json, valid_fraction: 0.1}
  tokenizer: {type: word, vocab_size: 200, min_frequency: 1}
  max_length: 20
training: {max_steps: 2, batch_size: 8, device: cpu, optimizer: {lr: 1e-2}, logging: {tensorboard: false}}
"""
TRANSFORMER = ("model={architecture: transformer, d_model: 16, num_layers: 1, num_heads: 2}", "training.max_steps=60")
GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {"text": f"w{number} {(GOOD, BAD)[number % 2][number % 3]} w{number % 11}", "label": ("yes", "no")[number % 2]}
        for number in range(first, last)
    ]


def trained(name: str, *overrides: str) -> Path:
    return train(load(["tiny.yml"], [f"name={name}", f"run_dir=runs/{name}", *overrides])).directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three classifiers: one that learned nothing, one, and one of another kind and tokenizer."""
    folder = tmp_path_factory.mktemp("classifiers")
    (folder / "tiny.yml").write_text(CONFIG)
    (folder / "texts.json").write_text(json.dumps(rows(0, 150)))
    (folder / "outside.json").write_text(json.dumps([{"text": f"x{number} y"} for number in range(15)]))
    others = rows(150, 190)
    swapped = [row | {"label": {"yes": "no", "no": "yes"}[row["label"]]} for row in others]
    reworded = [row | {"text": row["text"].replace("w", "v", 1)} for row in others]
    for name, texts in {"one": others, "two": swapped, "three": reworded, "four": others[:-1]}.items():
        (folder / name).mkdir()
        (folder / name / "test.json").write_text(json.dumps(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trained("weak", "training.optimizer.lr=1e-7")
        trained("cnn", "training.max_steps=60")
        trained("transformer", *TRANSFORMER, "data.tokenizer.min_frequency=3", "data.max_length=24")
        for name in ("two", "three", "four"):
            trained(name, f"data.corpus.test={name}/test.json", "training.max_steps=1")
    return folder


@pytest.fixture(autouse=True)
def _inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, and with fewer samples than the 10,000 of the command."""
    monkeypatch.chdir(made)
    for name in ("approximate_randomisation", "paired_bootstrap"):
        monkeypatch.setattr(compare, name, partial(getattr(compare, name), num_samples=400))


def right(vaak: Any, run: str) -> list[bool]:
    """Whether each test text is labelled right, by the table of an evaluation."""
    code, _, err = vaak("eval", f"runs/{run}", "--split", "test", "--output", f"evaluated-{run}")
    assert code == 0, err
    with open(f"evaluated-{run}/test_predictions.csv") as file:
        return [row["label"] == row["predicted_label"] for row in csv.DictReader(file)]


@pytest.mark.slow
def test_runs_of_any_kind_are_compared_text_by_text(vaak: Any):
    names = ("weak", "cnn", "transformer")
    code, out, err = vaak("compare", *(f"runs/{name}" for name in names), "--metric", "accuracy", "--json")
    assert code == 0, err
    report = json.loads(out)
    weak, *others = (right(vaak, name) for name in names)
    assert report["figure"] == pytest.approx(sum(weak) / 40)
    for found, own in zip(report["comparisons"], others, strict=True):
        assert found["pairs"] == 40
        assert found["figure"] == pytest.approx(sum(own) / 40)
        [test] = (test for test in found["tests"] if test["name"] == "McNemar")
        won = sum(new and not old for new, old in zip(own, weak, strict=True))
        lost = sum(old and not new for new, old in zip(own, weak, strict=True))
        assert test["p_value"] == pytest.approx(binomtest(won, won + lost).pvalue)
        assert found["interval"][0] <= found["difference"] <= found["interval"][1]
        assert found["p_value"] < 0.05, "both learned the words; the first did not"
    code, out, err = vaak("compare", "runs/weak", "runs/cnn", "--metric", "macro_f1")
    assert code == 0, err
    assert "macro_f1 of runs/weak: " in out
    assert "approximate randomisation" in out
    code, out, err = vaak("compare", "runs/weak", "runs/cnn", "--split", "out_of_scope", "--metric", "auroc", "--json")
    assert code == 0, err
    [found] = json.loads(out)["comparisons"]
    assert (found["pairs"], found["effect"]) == (55, None), "a single text has no such figure"
    assert 0 < found["p_value"] <= 1


@pytest.mark.parametrize(
    ("other", "says"),
    [
        pytest.param(
            "two", "isn't the same in runs/cnn and runs/two: its content or labels differ", marks=pytest.mark.slow
        ),
        pytest.param(
            "three", "isn't the same in runs/cnn and runs/three: its content or labels differ", marks=pytest.mark.slow
        ),
        ("four", "have different examples: 1 are in one only, like test.json: entry 39 of runs/cnn"),
    ],
)
def test_other_test_sets_are_refused_though_their_files_have_one_name(vaak: Any, other: str, says: str):
    code, out, err = vaak("compare", "runs/cnn", f"runs/{other}")
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    code, _, err = vaak(
        "compare", "runs/cnn", f"runs/{other}", "data.corpus.test=one/test.json", "--metric", "accuracy"
    )
    assert code == 0, err
