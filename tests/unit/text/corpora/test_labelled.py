"""Labelled texts: the same from every kind of file, split by classes, none in two splits; mistakes have one line."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spreadsheets import write_spreadsheet
from vaak.core.errors import DataError, UserError
from vaak.tasks.classification.config import LabelledCorpusConfig
from vaak.text.corpora.labelled import LabelledCorpus, LabelledText, TextStore

ROWS = [{"text": f"text, number {number}", "label": number % 3} for number in range(30)]


def corpus_of(folder: Path, rows: list[dict[str, Any]] = ROWS, **options: Any) -> LabelledCorpus:
    folder.mkdir(exist_ok=True)
    (folder / "train.json").write_text(json.dumps(rows), encoding="utf-8")
    return LabelledCorpus(LabelledCorpusConfig(train=(str(folder / "train.json"),), **options))


def given_split(path: Path, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return (str(path),)


def test_every_kind_of_file_has_the_same_texts(tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("python_calamine", reason="the extra spreadsheets is not installed")
    names = ("a.json", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.xlsx", "a.ods")
    for name in names[-2:]:
        write_spreadsheet(tmp_path / name, [("label", "text"), *((row["label"], row["text"]) for row in ROWS)])
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ["label", "text"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    read = []
    for name in names:
        corpus = LabelledCorpus(LabelledCorpusConfig(train=(str(tmp_path / name),)))
        read.append([(one.text, one.labels) for split in corpus.splits for one in corpus.read(split)])
    assert all(one == read[0] for one in read)
    assert sorted(read[0]) == sorted((row["text"], ((str(row["label"]),),)) for row in ROWS)


def test_a_table_without_a_header_has_columns_by_number(tmp_path: Path):
    (tmp_path / "a.csv").write_text("".join(f'"{row["label"]}","{row["text"]}"\n' for row in ROWS))
    corpus = LabelledCorpus(
        LabelledCorpusConfig(train=(str(tmp_path / "a.csv"),), text_column="1", label_columns=("0",))
    )
    read = [(one.text, one.labels) for split in corpus.splits for one in corpus.read(split)]
    assert sorted(read) == sorted((row["text"], ((str(row["label"]),),)) for row in ROWS)
    (tmp_path / "b.csv").write_text("0,1\n" + (tmp_path / "a.csv").read_text())
    named = LabelledCorpus(
        LabelledCorpusConfig(train=(str(tmp_path / "b.csv"),), text_column="1", label_columns=("0",))
    )
    assert sorted((one.text, one.labels) for split in named.splits for one in named.read(split)) == sorted(read)


def test_a_folder_or_a_file_for_each_class(tmp_path: Path):
    """Names are those of the folders or files, in NFC though macOS writes NFD; a file's text has several lines."""
    said: dict[str, list[str]] = {"अच्छा": [], "très bien": []}
    for place, own in enumerate(said):
        folder = tmp_path / "my data" / unicodedata.normalize("NFD", own)
        folder.mkdir(parents=True)
        for number in range(20):
            said[own].append(f"text {number} of {place}")
            (folder / f"{number}.txt").write_text(f"text {number}\nof {place}\n", encoding="utf-16" if number else None)
        lines = tmp_path / "my data" / f"{unicodedata.normalize('NFD', own)}.txt"
        lines.write_text("".join(f"{text}\n" for text in said[own]))
    for kind, pattern, between in (("folders", "*/*.txt", "\n"), ("lines", "*.txt", " ")):
        corpus = LabelledCorpus(LabelledCorpusConfig(type=kind, train=(str(tmp_path / "my data" / pattern),)))
        read = [(one.text, *one.labels[0]) for split in corpus.splits for one in corpus.read(split)]
        expected = [(text.replace(" of", f"{between}of"), own) for own, texts in said.items() for text in texts]
        assert sorted(read) == sorted(expected)
    with pytest.raises(DataError, match=r"corpus.label_columns: texts of the type folders have one label"):
        LabelledCorpus(LabelledCorpusConfig(type="folders", train=("x.txt",), label_columns=("a", "b")))


def test_labels_of_fasttext_are_words_of_the_lines(tmp_path: Path):
    said = [(f"so it is {number}", ["good", "très_bien"][number % 2]) for number in range(40)]
    path = tmp_path / "a.txt"
    path.write_text("".join(f"__label__{label} {text}\n" for text, label in said) + "\n")
    corpus = LabelledCorpus(LabelledCorpusConfig(type="fasttext", train=(str(path),)))
    assert sorted((one.text, *one.labels[0]) for split in corpus.splits for one in corpus.read(split)) == sorted(said)
    several = "".join(f"__label__a {text} __label__b\n" for text, _ in said)
    path.write_text(several + "without one\n")
    corpus = LabelledCorpus(LabelledCorpusConfig(type="fasttext", train=(str(path),), multi_label=True))
    read = [one for split in corpus.splits for one in corpus.read(split)]
    assert sorted(Counter(one.labels for one in read).items()) == [(((),), 1), ((("a", "b"),), 40)]
    for text, problem in ((several, "a.txt:1: 2 labels; set multi_label"), ("so\n", "a.txt:1: no word is a label")):
        path.write_text(text)
        with pytest.raises(DataError, match=problem):
            list(LabelledCorpus(LabelledCorpusConfig(type="fasttext", train=(str(path),))).read("train"))


def test_a_dataset_of_hugging_face_has_the_same_texts(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
    corpus = LabelledCorpus(LabelledCorpusConfig(name=str(tmp_path / "saved")))
    found = {one.text for split in corpus.splits for one in corpus.read(split)}
    assert found == {row["text"] for row in ROWS}


def test_folds_see_what_splits_keep(tmp_path: Path):
    """A row without a text is of no split, and so of no fold."""
    corpus = corpus_of(tmp_path, [{"text": "", "label": 0}, *ROWS[:4], {"text": "", "label": 1}], stratify=True)
    expected = [(str(row["text"]), str(row["label"])) for row in ROWS[:4]]
    assert [(one.key, one.stratum) for one in corpus.examples("train", None, None)] == expected
    assert [(one.key, *one.groups) for one in corpus.examples("train", None, "label")] == expected


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=30, max_size=80))
def test_classes_are_split_alike_and_no_text_is_in_two_splits(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
):
    rows = [{"text": f"t{number}", "label": label} for number, label in pairs]
    corpus = corpus_of(tmp_path_factory.mktemp("c"), rows, train_fraction=0.6, valid_fraction=0.2)
    first = {row["text"]: str(row["label"]) for row in reversed(rows)}
    sizes = Counter(first.values())
    for split, fraction in (("train", 0.6), ("valid", 0.2), ("test", 0.2)):
        try:
            found = list(corpus.read(split))
        except DataError:  # nothing fell into it
            found = []
        assert len({one.text for one in found}) == len(found)
        for one in found:
            assert first.pop(one.text) == one.labels[0][0]
        counts = Counter(one.labels[0][0] for one in found)
        assert all(abs(counts[label] - fraction * size) <= 1 for label, size in sizes.items())
    assert not first


def test_classes_too_small_for_the_fractions_are_cut_together(tmp_path: Path):
    """Of classes of four, none has a text in the last tenth; train still knows every label."""
    rows = [{"text": f"t{number}", "label": number % 15} for number in range(60)]
    corpus = corpus_of(tmp_path, [*rows, *({"text": "", "label": 15} for _ in range(9))])
    found = {split: [one.labels for one in corpus.read(split)] for split in corpus.splits}
    assert {split: len(labels) for split, labels in found.items()} == {"train": 48, "valid": 6, "test": 6}
    assert set(found["train"]) == {((str(label),),) for label in range(15)}


@pytest.mark.parametrize("stratify", [True, False])
def test_numbers_of_texts_for_valid_and_test(tmp_path: Path, stratify: bool):
    rows = [{"text": f"t{number}", "label": number % 5} for number in range(12)]
    corpus = corpus_of(tmp_path, rows, valid_examples=4, test_examples=3, stratify=stratify)
    found = {split: [one.labels for one in corpus.read(split)] for split in corpus.splits}
    assert {split: len(labels) for split, labels in found.items()} == {"train": 5, "valid": 4, "test": 3}
    assert not stratify or len(set(found["train"])) == 5, "train keeps a text of each label"
    with pytest.raises(UserError, match="there are 12, of which valid_examples: 9 and test_examples: 3 leave none"):
        list(corpus_of(tmp_path, rows, valid_examples=9, test_examples=3, stratify=stratify).read("train"))


def test_what_is_dropped_is_counted_by_reason(tmp_path: Path):
    rows = [
        *({"text": f"t{number}", "label": number % 2} for number in range(10)),
        {"text": "t0", "label": 0},
        {"text": "t1", "label": 0},
        {"text": " ", "label": 0},
    ]
    valid = given_split(tmp_path / "valid.json", [{"text": "t2 ", "label": 0}, {"text": "v", "label": 1}])
    corpus = corpus_of(tmp_path, rows, valid=valid)
    assert {one.text for one in corpus.read("train")} == {"t0", "t1", *(f"t{number}" for number in range(3, 10))}
    assert corpus.statistics["train"].dropped == {
        "duplicate": 1,
        "duplicate with another label": 1,
        "empty": 1,
        "also in an evaluation split": 1,
    }
    assert [one.text for one in corpus.read("valid")] == ["t2", "v"]


@pytest.mark.parametrize(
    ("row", "options", "says"),
    [
        ({"text": "a"}, {}, "entry 30: no column 'label'; the columns are: text (set label_columns)"),
        (
            {"text": "a", "label": None},
            {},
            "entry 30: label is empty: every row needs a label; label or remove this row",
        ),
        ({"text": "a", "label": ""}, {}, "entry 30: label is empty: every row needs a label; label or remove this row"),
        (
            {"text": "a", "label": ["x"]},
            {},
            "entry 30: label is a list of labels; set multi_label: true, or give one label",
        ),
        ({"text": "a", "label": 0.5}, {}, "entry 30: label is 0.5; a label is a text or a whole number"),
        ({"text": 3, "label": 1}, {}, "entry 30: text is a int, not a string (text_column)"),
        ("a", {}, "entry 30: expected an object with the keys text and label, not a str"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path: Path, row: Any, options: dict[str, Any], says: str):
    corpus = corpus_of(tmp_path, [*ROWS, row], **options)
    with pytest.raises(DataError, match="entry 30") as caught:
        list(corpus.read("train"))
    assert str(caught.value).endswith(says)


def test_a_blank_text_of_a_given_split_is_an_error(tmp_path: Path):
    corpus = corpus_of(tmp_path, valid=given_split(tmp_path / "v.json", [{"text": "", "label": 1}]))
    with pytest.raises(DataError, match=r"v.json: entry 0: the text is empty; valid is kept complete: fix or remove"):
        list(corpus.read("valid"))


def test_several_labels_are_lists_or_cells(tmp_path: Path):
    rows: list[dict[str, Any]]
    rows = [{"text": "a", "tags": ["y", "x"]}, {"text": "b", "tags": "x | z"}, {"text": "c", "tags": []}]
    corpus = corpus_of(tmp_path, rows, label_columns=("tags",), multi_label=True, stratify=False, valid=())
    found = {
        one.text: one.labels[0] for split in corpus.splits for one in corpus.entries(split, corpus.new_statistics())
    }
    assert found == {"a": ("x", "y"), "b": ("x", "z"), "c": ()}


def test_the_grammars_sentences_are_of_16_kinds():
    corpus = LabelledCorpus(LabelledCorpusConfig(num_sentences=160))
    texts = [*corpus.read("train"), *corpus.read("valid"), *corpus.read("test")]
    assert len({one.text for one in texts}) == len(texts) >= 155
    assert len({one.labels for one in texts}) == 16


def test_texts_on_disk_are_what_was_written(tmp_path: Path):
    rows = [LabelledText("क", (("a",), ("b", "c")), "f:1"), LabelledText("x" * 5_000_000, ((), ()), "f:2")]
    assert list(TextStore.write(tmp_path / "store", rows)) == rows
