"""Layouts of texts that people have: ``init`` finds each, its YAML reads what is there, and ``data check`` counts it.

A row of ``LAYOUTS`` is a writer of made data, the task, and options that have to be found; it reads ``TEXTS`` with
their labels, or ``PAIRS``, at least.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commands import Commands
from spreadsheets import write_spreadsheet
from vaak.config.load import load
from vaak.text.corpora.labelled import LabelledCorpus
from vaak.text.corpora.parallel import ParallelCorpus

NUMBER = 60
WORDS = ["red", "green", "blue", "old", "new", "small", "large", "quiet", "loud", "warm"]
TEXTS = [(f"the {WORDS[n % 10]} house is number {n} of {n * 7}", ("good", "bad")[n % 2]) for n in range(NUMBER)]
PAIRS = [(f"the house is number {n}", f"घर का नंबर {n} है जी") for n in range(NUMBER)]
SMALL = {"seq2seq": ["model.global_config={d_model: 32, num_layers: 1}", "data.decoding.valid_examples=2"]}


def table(path: Path, rows: list[tuple[Any, ...]], between: str = ",", encoding: str = "utf-8") -> None:
    path.write_bytes("".join(between.join(map(str, row)) + "\r\n" for row in rows).encode(encoding))


def lines(path: Path, texts: list[str], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{text}\n" for text in texts).encode(encoding))


def objects(path: Path, rows: list[dict[str, Any]]) -> None:
    lines(path, [json.dumps(row, ensure_ascii=False) for row in rows])


def folders(root: Path) -> None:
    for number, (text, label) in enumerate(TEXTS):
        lines(root / label / f"{number}.txt", [text])


def split_folders(root: Path) -> None:
    for number, (text, label) in enumerate(TEXTS):
        lines(root / ("test" if number % 10 > 7 else "train") / label / f"{number}.txt", [text])


def parallel(root: Path, *names: str, encoding: str = "utf-8") -> None:
    for place, name in enumerate(names):
        lines(root / name, [pair[place] for pair in PAIRS], encoding)


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow, file = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file.write_table(pyarrow.Table.from_pylist(rows), path)


class Layout(NamedTuple):
    write: Callable[[Path], object]
    task: str
    found: dict[str, Any]


def labelled(write: Callable[[Path], object], text: str, label: str) -> Layout:
    return Layout(write, "classification", {"type": "files", "text_column": text, "label_columns": (label,)})


def pairs(write: Callable[[Path], object], source: str, target: str, kind: str = "tsv") -> Layout:
    return Layout(write, "seq2seq", {"type": kind, "source_column": source, "target_column": target})


LAYOUTS: dict[str, Layout] = {
    "CSV Text,Label": labelled(lambda d: table(d / "a.csv", [("Text", "Label"), *TEXTS]), "Text", "Label"),
    "CSV utterance,intent": labelled(
        lambda d: table(d / "a.csv", [("utterance", "intent"), *TEXTS]), "utterance", "intent"
    ),
    "; and BOM": labelled(
        lambda d: table(d / "a.csv", [("Satz", "Klasse"), *TEXTS], ";", "utf-8-sig"), "Satz", "Klasse"
    ),
    "UTF-16 from Excel": labelled(
        lambda d: table(d / "a.csv", [("पाठ", "श्रेणी"), *TEXTS], "\t", "utf-16"), "पाठ", "श्रेणी"
    ),
    "unknown names": labelled(
        lambda d: table(d / "a.csv", [("q17", "w", "x"), *((n, *row) for n, row in enumerate(TEXTS))]), "w", "x"
    ),
    "no header": labelled(
        lambda d: table(d / "a.csv", [(n, label, text) for n, (text, label) in enumerate(TEXTS)]), "2", "1"
    ),
    "xlsx": labelled(
        lambda d: write_spreadsheet(d / "मेरा.xlsx", [("Nr", "Comment", "Category"), *((1, *row) for row in TEXTS)]),
        "Comment",
        "Category",
    ),
    "ods": labelled(lambda d: write_spreadsheet(d / "a.ods", [("text", "label"), *TEXTS]), "text", "label"),
    "JSONL with other keys": labelled(
        lambda d: objects(d / "a.jsonl", [{"id": n, "txt": row[0], "cls": row[1]} for n, row in enumerate(TEXTS)]),
        "txt",
        "cls",
    ),
    "Parquet": labelled(
        lambda d: parquet(d / "a.parquet", [{"Review": text, "Sentiment": label} for text, label in TEXTS]),
        "Review",
        "Sentiment",
    ),
    "a folder for each class": Layout(folders, "classification", {"type": "folders"}),
    "splits of folders": Layout(split_folders, "classification", {"type": "folders"}),
    "corpus.en, corpus.hi": Layout(lambda d: parallel(d, "corpus.en", "corpus.hi"), "seq2seq", {"type": "text"}),
    "english.txt, hindi.txt": Layout(lambda d: parallel(d, "English.txt", "Hindi.txt"), "seq2seq", {"type": "text"}),
    "en/a.txt, hi/a.txt": Layout(lambda d: parallel(d, "en/a.txt", "hi/a.txt"), "seq2seq", {"type": "text"}),
    "OPUS": Layout(lambda d: parallel(d, "X.en-hi.en", "X.en-hi.hi"), "seq2seq", {"type": "text"}),
    "parallel in UTF-16": Layout(
        lambda d: parallel(d, "train.src", "train.tgt", encoding="utf-16"), "seq2seq", {"type": "text"}
    ),
    "Tatoeba": pairs(
        lambda d: table(d / "a.tsv", [(n, one, n + 900, other) for n, (one, other) in enumerate(PAIRS)], "\t"), "1", "3"
    ),
    "Tatoeba of manythings": pairs(
        lambda d: table(
            d / "hin.txt.tsv", [(*pair, f"CC-BY 2.0 (France) tatoeba #{n}") for n, pair in enumerate(PAIRS)], "\t"
        ),
        "0",
        "1",
    ),
    "CSV English,Hindi": pairs(
        lambda d: table(d / "a.csv", [("id", "English", "Hindi"), *((n, *pair) for n, pair in enumerate(PAIRS))]),
        "English",
        "Hindi",
    ),
    "CSV of two scripts": pairs(lambda d: table(d / "a.csv", [("col_a", "col_b"), *PAIRS]), "col_a", "col_b"),
    "JSONL translation": pairs(
        lambda d: objects(d / "a.jsonl", [{"translation": {"hi": other, "en": one}} for one, other in PAIRS]),
        "translation.en",
        "translation.hi",
        "json",
    ),
    "Parquet of pairs": pairs(
        lambda d: parquet(d / "a.parquet", [{"text_en": one, "text_hi": other} for one, other in PAIRS]),
        "text_en",
        "text_hi",
    ),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, tmp_path: Path) -> Path:
    if name in ("xlsx", "ods"):
        pytest.importorskip("python_calamine", reason="the extra spreadsheets is not installed")
    folder = tmp_path / "मेरा डेटा"
    folder.mkdir()
    LAYOUTS[name].write(folder)
    return folder


def read(corpus: Any, task: str) -> list[tuple[str, str]]:
    if task == "classification":
        texts = LabelledCorpus(corpus)
        return [(one.text, one.labels[0][0]) for split in texts.splits for one in texts.read(split)]
    both = ParallelCorpus(corpus)
    return [(one.source, one.targets[0]) for split in both.splits for one in both.read(split)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_found_counted_and_read(name: str, vaak, tmp_path: Path):
    folder, layout = written(name, tmp_path), LAYOUTS[name]
    code, out, errors = vaak("data", "check", folder, "--json")
    assert code == 0, errors
    (found,) = json.loads(out)["corpora"]
    assert sum(split["texts"] for split in found["splits"].values()) == NUMBER
    code, _, errors = vaak("init", "--data", folder)
    assert code == 0, errors
    loaded = load(["begin.yml"])
    assert loaded.experiment.task == layout.task
    corpus = loaded.experiment.data.corpus
    assert {key: getattr(corpus, key) for key in layout.found} == layout.found
    expected = TEXTS if layout.task == "classification" else PAIRS
    assert sorted(read(corpus, layout.task)) == sorted(expected)
    assert vaak("init", "lm", "--data", folder)[0] == 0, "texts are texts"
    assert load(["lm.yml"]).experiment.task == "lm"


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_yaml_of_a_layout_is_tried(name: str, vaak, tmp_path: Path, commands: Commands):
    folder = written(name, tmp_path)
    assert vaak("init", "--data", folder, "--hardware", "cpu")[0] == 0
    asked = ["train", "begin.yml", "--try", *SMALL.get(LAYOUTS[name].task, ())]
    ended = commands.start(asked, tmp_path, circumstances=["without pictures"]).wait(300)
    assert ended.status == 0, ended.errors


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.jsonl", "corpus.csv"])
def test_a_single_file_is_a_data_set(name: str, vaak, tmp_path: Path):
    texts = [text for text, _ in TEXTS]
    content = {"txt": texts, "jsonl": [json.dumps({"text": one}) for one in texts], "csv": ["text", *texts]}
    lines(tmp_path / name, content[name.partition(".")[2]])
    lines(tmp_path / "other.txt", ["not asked for"])
    assert vaak("init", "--data", name)[0] == 0
    experiment = load(["begin.yml"]).experiment
    assert (experiment.task, [Path(one).name for one in experiment.data.corpus.train]) == ("lm", [name])


def test_latin_1_is_refused_by_init_and_utf_16_read(vaak, tmp_path: Path):
    lines(tmp_path / "a" / "a.txt", ["größer als früher", "déjà vu"] * 9, "latin-1")
    code, _, errors = vaak("init", "--data", "a")
    assert code == 2
    assert "a.txt:1: byte 2 (0xF6) is not UTF-8; convert the file" in " ".join(errors.split())
    assert not (tmp_path / "begin.yml").exists()
    lines(tmp_path / "b" / "b.txt", ["größer als früher", "déjà vu"] * 9, "utf-16")
    assert vaak("init", "--data", "b")[0] == 0


def test_what_was_found_is_said(vaak, tmp_path: Path):
    folder = written("CSV utterance,intent", tmp_path)
    said = vaak("data", "check", folder)[1]
    assert "text_column is 'utterance', label_columns is 'intent'" in " ".join(said.split())


def test_files_of_different_numbers_of_lines_are_no_pairs(vaak, tmp_path: Path):
    lines(tmp_path / "x" / "english.txt", [one for one, _ in PAIRS])
    lines(tmp_path / "x" / "hindi.txt", [other for _, other in PAIRS[1:]])
    assert vaak("init", "--data", "x")[0] == 0
    assert load(["begin.yml"]).experiment.task == "lm"


def test_conversations_and_archives_are_described(vaak, tmp_path: Path):
    objects(tmp_path / "c" / "a.jsonl", [{"messages": [{"role": "user", "content": "so"}]}] * 3)
    code, _, errors = vaak("init", "--data", "c")
    assert (code, "c has nothing to train on: 1 .jsonl" in errors) == (2, True), errors
    assert "data.corpus.type: chat" in errors
    (tmp_path / "z").mkdir()
    with zipfile.ZipFile(tmp_path / "z" / "x.zip", "w") as file:
        file.writestr("a.txt", "a text")
    code, _, errors = vaak("init", "--data", "z")
    assert (code, "1 .zip, texts in archives aren't read: unpack them" in errors) == (2, True), errors
