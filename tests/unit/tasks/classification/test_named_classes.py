"""Classes of Hugging Face sets have their names in figures, labels and exports; runs of their numbers are evaluated."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_bert import write_bert
from vaak.cli.eval import evaluate
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.start import train
from vaak.text.corpora import readers

datasets: Any = pytest.importorskip("datasets")
pytest.importorskip("transformers")

NAMES = ("terrible", "fine")
"""Not in the order of letters, so that neither a number nor a place can be taken for another's."""
WORDS = (("bad", "poor"), ("good", "great"))
CONFIG = """\
name: tiny
task: classification
model: {pretrained_model: base, pooling: first}
data: {corpus: {train: DATA, train_fraction: 0.6, valid_fraction: 0.2, deduplicate: false}, max_length: 8}
training: {max_steps: 25, batch_size: 8, device: cpu, optimizer: {lr: 1e-2}, logging: {tensorboard: false}}
"""


def write_set(path: Path, names: tuple[str, ...], number: int = 60) -> None:
    labels = [row % 2 for row in range(number)]
    rows = {
        "text": [f"w{row % 7} {WORDS[one][row % 3 % 2]} w{row % 5}" for row, one in enumerate(labels)],
        "label": labels,
    }
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    made = datasets.Dataset.from_dict(rows, features=features)
    made.to_parquet(path)
    made.save_to_disk(path.with_suffix(""))
    table = path.with_suffix(".jsonl")  # as the rows were read before: with numbers
    table.write_text("".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in zip(*rows.values(), strict=True)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs on names and on numbers of the same set."""
    folder = tmp_path_factory.mktemp("named")
    write_set(folder / "set.parquet", NAMES)
    write_bert(folder / "base", (*(f"w{number}" for number in range(7)), *WORDS[0], *WORDS[1]))
    for run, data in (("names", "set.parquet"), ("numbers", "set.jsonl")):
        text = CONFIG.replace("DATA", str(folder / data)).replace("base", str(folder / "base"))
        (folder / f"{run}.yml").write_text(text)
        train(load([folder / f"{run}.yml"], [f"run_dir={folder / run}"]))
    return folder


def test_names_are_in_figures_labels_and_exports(
    trained: Path, tmp_path: Path, vaak: Callable[..., tuple[int, str, str]]
):
    evaluate(trained / "names", [], ["test"], tmp_path / "out", "cpu")
    with (tmp_path / "out" / "test_classes.csv").open() as file:
        classes = [[*row.values()] for row in csv.DictReader(file)]
    assert {NAMES[0], NAMES[1]} <= {cell for row in classes for cell in row}
    with (tmp_path / "out" / "test_predictions.csv").open() as file:
        predicted = list(csv.DictReader(file))
    assert {cell for row in predicted for cell in row.values()} >= {*NAMES}
    code, said, errors = vaak("classify", trained / "names", "w1 bad\nw1 great\n", "--device", "cpu")
    assert (code, [line.split("\t")[0] for line in said.splitlines() if line]) == (0, [*NAMES]), errors
    assert vaak("export", trained / "names", "--format", "hf", "--output", tmp_path / "hf")[0] == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["id2label"] == {"0": "fine", "1": "terrible"}  # by letters, as the model's outputs
    assert config["label2id"] == {"fine": 0, "terrible": 1}


def evaluate_on(run: Path, data: Path, output: Path) -> dict[str, float]:
    evaluate(run, ["data.corpus.train=[]", f"data.corpus.test=[{data}]"], ["test"], output, "cpu")
    metrics: dict[str, float] = json.loads((output / "evaluation.json").read_text())["metrics"]
    return metrics


def test_a_run_of_numbers_is_evaluated_on_the_set_with_names(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    expected = evaluate_on(trained / "numbers", trained / "set.jsonl", tmp_path / "1")
    assert "have names" not in caplog.text
    found = evaluate_on(trained / "numbers", trained / "set.parquet", tmp_path / "2")
    assert "label: the classes of this run are numbers, those of its data have names: 0 is terrible, 1 is fine" in (
        caplog.text
    )
    assert found == expected
    assert found["test_accuracy"] == 1.0


def test_names_that_are_other_numbers_are_no_numbers_of_classes(trained: Path, tmp_path: Path):
    """Classes 0 and 1 called 1 and 2 (stars): 1 must not be taken for the number of the second."""
    write_set(tmp_path / "stars.parquet", ("1", "2"))
    assert evaluate_on(trained / "numbers", tmp_path / "stars.parquet", tmp_path / "out")["test_accuracy"] == 1.0


def test_a_run_of_other_numbers_is_refused_in_one_line(trained: Path, tmp_path: Path):
    write_set(tmp_path / "three.parquet", (*NAMES, "great"))
    with pytest.raises(UserError, match=r"three.parquet: row 0: the label 'terrible' occurs in no training text"):
        evaluate_on(trained / "numbers", tmp_path / "three.parquet", tmp_path / "out")


@pytest.mark.slow
def test_a_set_that_was_saved_to_disk_is_trained_on_by_its_names(
    trained: Path, tmp_path: Path, vaak: Callable[..., tuple[int, str, str]]
):
    """As ``Dataset.save_to_disk`` and a folder of Parquet have it: figures, classify and the export have the names."""
    (tmp_path / "parquet").mkdir()
    shutil.copy(trained / "set.parquet", tmp_path / "parquet" / "train.parquet")
    for name, place in (("saved", trained / "set"), ("folder", tmp_path / "parquet")):
        run, text = tmp_path / name, CONFIG.replace("train: DATA", f"type: huggingface, name: {place}")
        (tmp_path / f"{name}.yml").write_text(text.replace("base", str(trained / "base")))
        train(load([tmp_path / f"{name}.yml"], [f"run_dir={run}", "training.max_steps=2"]))
        code, said, errors = vaak("classify", run, "w1 bad", "--top-k", 2, "--device", "cpu")
        assert code == 0, errors
        assert {*said.split("\t")[::2]} == {*NAMES}
        assert vaak("export", run, "--format", "hf", "--output", run / "hf")[0] == 0
        assert json.loads((run / "hf" / "config.json").read_text())["id2label"] == {"0": "fine", "1": "terrible"}


RESUMED = """\
name: tiny
task: classification
model: {architecture: cnn, embed_size: 8, num_filters: 4, filter_sizes: [1]}
data:
  corpus: {train: DATA, train_fraction: 0.6, valid_fraction: 0.2, deduplicate: false}
  tokenizer: {type: word, min_frequency: 1}
  max_length: 8
training: {max_steps: 20, batch_size: 8, device: cpu, optimizer: {lr: 0.1}, logging: {tensorboard: false}}
"""


def lose_data(run: Path) -> None:
    shutil.rmtree(run / "prepared")


@pytest.mark.parametrize("cached", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_of_numbers_whose_data_are_made_again_keeps_its_classes(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Numbers were read as such before names were; the names in the order of letters are in another order."""
    write_set(tmp_path / "set.parquet", NAMES)
    (tmp_path / "tiny.yml").write_text(RESUMED.replace("DATA", str(tmp_path / "set.parquet")))
    run, cache = tmp_path / "run", ("data.cache_dir=" + str(tmp_path / "cache"),) if cached else ()
    with monkeypatch.context() as old:
        old.setattr(readers, "class_names_in", lambda schema: {})
        train(load([tmp_path / "tiny.yml"], [f"run_dir={run}"]))
    assert json.loads((run / "prepared" / "classes.json").read_text()) == {"label": ["0", "1"]}
    lose_data(run)
    on = ("training.max_steps=21", "training.checkpoint.resume=auto", *cache)
    train(load([tmp_path / "tiny.yml"], [f"run_dir={run}", *on]))
    assert json.loads((run / "prepared" / "classes.json").read_text()) == {"label": ["0", "1"]}
    said = (run / "train.log").read_text()
    assert "the classes of this run are numbers, those of its data have names: 0 is terrible, 1 is fine" in said
    evaluate(run, [], ["test"], tmp_path / "out", "cpu")
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["metrics"]["test_accuracy"] == 1.0
    train(load([tmp_path / "tiny.yml"], [f"run_dir={tmp_path / 'new'}", "training.max_steps=1", *cache]))
    assert json.loads((tmp_path / "new" / "prepared" / "classes.json").read_text()) == {"label": ["fine", "terrible"]}


def test_a_run_whose_labels_are_others_when_its_data_are_made_again_is_refused(tmp_path: Path):
    write_set(tmp_path / "set.parquet", NAMES)
    (tmp_path / "tiny.yml").write_text(RESUMED.replace("DATA", str(tmp_path / "set.parquet")))
    run = tmp_path / "run"
    train(load([tmp_path / "tiny.yml"], [f"run_dir={run}"]))
    lose_data(run)
    write_set(tmp_path / "set.parquet", ("terrible", "good"))
    on = ("training.max_steps=21", "training.checkpoint.resume=auto")
    with pytest.raises(UserError, match=r"row 5: the label 'good' occurs in no training text"):
        train(load([tmp_path / "tiny.yml"], [f"run_dir={run}", *on]))


def test_words_that_are_others_when_data_are_made_again_are_refused_each_time(tmp_path: Path):
    """Tokens of any task are compared with those of the checkpoint."""
    write_set(tmp_path / "set.parquet", NAMES)
    (tmp_path / "tiny.yml").write_text(RESUMED.replace("DATA", str(tmp_path / "set.jsonl")))
    run = tmp_path / "run"
    train(load([tmp_path / "tiny.yml"], [f"run_dir={run}"]))
    lose_data(run)
    table = (tmp_path / "set.jsonl").read_text()
    (tmp_path / "set.jsonl").write_text(table.replace("great", "superb"))
    message = r"step-00000020: its tokens differ from those of .* again \('great' before, 'superb' now\): restore"
    on = ("training.max_steps=21", "training.checkpoint.resume=auto")
    for _ in range(2):
        with pytest.raises(UserError, match=message):
            train(load([tmp_path / "tiny.yml"], [f"run_dir={run}", *on]))
