"""Layouts of texts that people have: ``init`` finds each, its YAML reads what is there, and ``data check`` counts it.

A row of ``LAYOUTS`` is a writer of made data, the task, and options that have to be found; it reads ``TEXTS`` with
their labels, ``PAIRS``, or conversations of these.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commands import Commands
from documents import read_layout_table
from spreadsheets import write_spreadsheet
from vaak.config.load import load
from vaak.text.corpora.corpus import CorpusBuilder
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


def pack(root: Path, name: str, write: Callable[[Path], object]) -> None:
    """Write files, and then an archive in their place."""
    loose = root / "loose"
    loose.mkdir()
    write(loose)
    files = sorted(path for path in loose.rglob("*") if path.is_file())
    if name.endswith(".zip"):
        with zipfile.ZipFile(root / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, str(path.relative_to(loose)))
    else:
        kind = name.rpartition(".")[2]
        mode: Any = f"w:{ {'tar': '', 'tgz': 'gz'}.get(kind, kind) }"
        with tarfile.open(root / name, mode) as tar:
            tar.add(loose, "data")
    shutil.rmtree(loose)


def imdb(root: Path) -> None:
    for number, (text, label) in enumerate(TEXTS):
        folder = "test" if number % 10 > 7 else "train"
        lines(root / folder / {"good": "pos", "bad": "neg"}[label] / f"{number}_{number % 10}.txt", [text])
        lines(root / "train" / "unsup" / f"{number}_0.txt", [f"not labelled {number}"])
    lines(root / "imdb.vocab", ["the", "house"])


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow, file = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file.write_table(pyarrow.Table.from_pylist(rows), path)


class Layout(NamedTuple):
    write: Callable[[Path], object]
    task: str
    found: dict[str, Any]


def labelled(write: Callable[[Path], object], text: str, label: str) -> Layout:
    return Layout(write, "classification", {"type": "files", "text_column": text, "label_columns": (label,)})


def chats(write: Callable[[Path], object], kind: str = "chat") -> Layout:
    return Layout(write, "lm", {"type": kind})


def each_pair(row: Callable[[str, str], dict[str, Any]]) -> Callable[[Path], None]:
    return lambda folder: objects(folder / "a.jsonl", [row(*pair) for pair in PAIRS])


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
    "GLUE, sentence and label": labelled(
        lambda d: table(
            d / "train.tsv", [("sentence", "label"), *((one, int(two == "good")) for one, two in TEXTS)], "\t"
        ),
        "sentence",
        "label",
    ),
    "GLUE, an index": labelled(
        lambda d: table(
            d / "train.tsv",
            [("index", "sentence", "label"), *((n, *row) for n, row in enumerate(TEXTS))],
            "\t",
        ),
        "sentence",
        "label",
    ),
    "GLUE without a header": labelled(
        lambda d: table(d / "a.tsv", [("gj04", int(two == "good"), "", one) for one, two in TEXTS], "\t"), "3", "1"
    ),
    "pos.txt, neg.txt": Layout(
        lambda d: [lines(d / f"{name}.txt", [one for one, two in TEXTS if two == name]) for name in ("good", "bad")],
        "classification",
        {"type": "lines"},
    ),
    "IMDB": Layout(imdb, "classification", {"type": "folders"}),
    "fastText": Layout(
        lambda d: lines(d / "a.txt", [f"__label__{label} {text}" for text, label in TEXTS]),
        "classification",
        {"type": "fasttext"},
    ),
    "corpus.en, corpus.hi, corpus.de": Layout(
        lambda d: parallel(d, "corpus.en", "corpus.hi") or lines(d / "corpus.mr", [f"घर {n}" for n in range(NUMBER)]),
        "seq2seq",
        {"type": "text"},
    ),
    "CSV English,Hindi,German": pairs(
        lambda d: table(d / "a.csv", [("English", "Hindi", "German"), *((*one, "das Haus") for one in PAIRS)]),
        "English",
        "Hindi",
    ),
    "messages": chats(
        each_pair(
            lambda one, other: {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
        )
    ),
    "ShareGPT": chats(
        each_pair(
            lambda one, other: {
                "id": 1,
                "conversations": [{"from": "human", "value": one}, {"from": "gpt", "value": other}],
            }
        )
    ),
    "prompt, completion": chats(each_pair(lambda one, other: {"prompt": one, "completion": other})),
    "Alpaca": chats(each_pair(lambda one, other: {"instruction": one, "input": "", "output": other})),
    "chosen, rejected": chats(
        each_pair(lambda one, other: {"prompt": one, "chosen": other, "rejected": "नहीं"}), "preferences"
    ),
    "Parquet of messages": chats(
        lambda d: parquet(
            d / "a.parquet",
            [
                {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
                for one, other in PAIRS
            ],
        )
    ),
    "zip of a CSV": labelled(
        lambda d: pack(d, "data.zip", lambda loose: table(loose / "a.csv", [("Text", "Label"), *TEXTS])),
        "Text",
        "Label",
    ),
    "zip of a spreadsheet": labelled(
        lambda d: pack(d, "d.zip", lambda loose: write_spreadsheet(loose / "a.xlsx", [("Text", "Label"), *TEXTS])),
        "Text",
        "Label",
    ),
    "tar.gz of a folder for each class": Layout(
        lambda d: pack(d, "aclImdb.tar.gz", imdb), "classification", {"type": "folders"}
    ),
    "tar of corpus.en, corpus.hi": Layout(
        lambda d: pack(d, "en-hi.tar", lambda loose: parallel(loose, "corpus.en", "corpus.hi")),
        "seq2seq",
        {"type": "text"},
    ),
    "tgz of corpus.en, corpus.hi": Layout(
        lambda d: pack(d, "en-hi.tgz", lambda loose: parallel(loose, "corpus.en", "corpus.hi")),
        "seq2seq",
        {"type": "text"},
    ),
    "tar.xz of JSONL": chats(
        lambda d: pack(
            d, "chats.tar.xz", each_pair(lambda one, other: {"instruction": one, "input": "", "output": other})
        )
    ),
    "zip of Parquet": labelled(
        lambda d: pack(
            d,
            "मेरा.zip",
            lambda loose: parquet(loose / "a.parquet", [{"Review": text, "Sentiment": label} for text, label in TEXTS]),
        ),
        "Review",
        "Sentiment",
    ),
    "texts": Layout(lambda d: lines(d / "a" / "b.txt", [one for one, _ in TEXTS]), "lm", {"type": "text"}),
    "zip of .txt": Layout(
        lambda d: pack(d, "books.zip", lambda loose: lines(loose / "a" / "b.txt", [one for one, _ in TEXTS])),
        "lm",
        {"type": "text"},
    ),
    "Parquet of pairs": pairs(
        lambda d: parquet(d / "a.parquet", [{"text_en": one, "text_hi": other} for one, other in PAIRS]),
        "text_en",
        "text_hi",
    ),
}


ROWS: dict[str, list[str]] = {
    "a table, `Text,Label`": [
        *("CSV Text,Label", "CSV utterance,intent", "; and BOM", "UTF-16 from Excel", "unknown names", "no header"),
        *("xlsx", "ods", "JSONL with other keys", "Parquet"),
        *("GLUE, sentence and label", "GLUE, an index", "GLUE without a header"),
    ],
    "`pos/1.txt`": ["a folder for each class", "splits of folders", "IMDB"],
    "`pos.txt`": ["pos.txt, neg.txt"],
    "fastText": ["fastText"],
    "`corpus.en`": [
        *("corpus.en, corpus.hi", "english.txt, hindi.txt", "en/a.txt, hi/a.txt", "OPUS", "parallel in UTF-16"),
        "corpus.en, corpus.hi, corpus.de",
    ],
    "a table with `English,Hindi`": [
        *("CSV English,Hindi", "CSV of two scripts", "Parquet of pairs", "CSV English,Hindi,German"),
    ],
    "JSON lines with `translation": ["JSONL translation"],
    "Tatoeba": ["Tatoeba", "Tatoeba of manythings"],
    "JSON lines or Parquet with `messages`": [
        *("messages", "ShareGPT", "prompt, completion", "Alpaca", "Parquet of messages"),
    ],
    "JSON lines or Parquet with `chosen`": ["chosen, rejected"],
    "`.txt`, `.md`": ["texts"],
    "any of these in a `.zip`": [name for name in LAYOUTS if name.startswith(("zip of", "tar of", "tgz of", "tar."))],
}
"""The beginning of each row of the table of texts in docs/datasets.md, and its cases."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, tmp_path: Path) -> Path:
    if name in ("xlsx", "ods", "zip of a spreadsheet"):
        pytest.importorskip("python_calamine", reason="the extra spreadsheets is not installed")
    folder = tmp_path / "मेरा डेटा"
    folder.mkdir()
    LAYOUTS[name].write(folder)
    return folder


def read(corpus: Any, task: str) -> list[tuple[str, ...]]:
    if task == "lm":
        documents = CorpusBuilder(corpus)
        return [tuple(text.split("\n")) for split in documents.splits for text in documents.documents(split)]
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
    expected: list[tuple[str, ...]] = list(TEXTS if layout.task == "classification" else PAIRS)
    if layout.found["type"] == "preferences":
        expected = [(*pair, "नहीं") for pair in PAIRS]
    if layout.found == {"type": "text"} and layout.task == "lm":
        expected = [(text,) for text, _ in TEXTS]
    is_named = name in ("IMDB", "tar.gz of a folder for each class")
    names = {"pos": "good", "neg": "bad"} if is_named else {}
    found = [(*row[:-1], names.get(row[-1], row[-1])) for row in read(corpus, layout.task)]
    numbers = {"0": "bad", "1": "good"} if name.startswith("GLUE") and found[0][1] in ("0", "1") else {}
    assert sorted((*row[:-1], numbers.get(row[-1], row[-1])) for row in found) == sorted(expected)
    if name != "fastText":  # whose labels are words of the lines
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


def test_conversations_of_which_none_can_be_learned_are_refused_and_some_left_out(vaak, tmp_path: Path):
    question, answer = {"role": "user", "content": "so?"}, {"role": "assistant", "content": "so"}
    objects(tmp_path / "c" / "a.jsonl", [{"messages": [question]}] * 3)
    code, _, errors = vaak("init", "--data", "c")
    assert (code, "c/a.jsonl:1: no turn of the assistant" in " ".join(errors.split())) == (2, True), errors
    assert not (tmp_path / "begin.yml").exists()
    whole = [{"messages": [question | {"content": f"{number}?"}, answer]} for number in range(9)]
    objects(tmp_path / "d" / "a.jsonl", [*whole, {"messages": [question]}])
    code, _, errors = vaak("init", "--data", "d")
    assert code == 0
    assert "1 of 10 texts read can't be used" in " ".join(errors.split())
    assert load(["begin.yml"]).experiment.data.on_bad_example == "skip"
    assert vaak("data", "check", "d")[0] == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CSV English,Hindi,German", "columns that aren't read: German"),
        ("corpus.en, corpus.hi, corpus.de", "files that aren't read: 1 .mr (corpus.mr)"),
        (
            "unknown names",
            "text_column is 'w' (by its contents), label_columns is 'x' (by its contents); columns that",
        ),
        (
            "CSV of two scripts",
            "source_column is 'col_a' (by its contents), target_column is 'col_b' (by its contents)",
        ),
        ("IMDB", "the names of 2 folders are the labels: neg, pos; files that aren't read: 60 .txt, 1 .vocab"),
        ("zip of a CSV", "text_column is 'Text', label_columns is 'Label'"),
        ("ShareGPT", "data.corpus.type is chat"),
    ],
)
def test_what_is_taken_for_what_and_what_is_left_is_said(name: str, said: str, vaak, tmp_path: Path):
    folder = written(name, tmp_path)
    assert said in " ".join(vaak("data", "check", folder)[1].split())


def test_tokens_with_tags_are_no_texts(vaak, tmp_path: Path):
    sentence = ["EU\tNNP\tB-ORG", "rejects\tVBZ\tO", "German\tJJ\tB-MISC", ".\t.\tO", ""]
    lines(tmp_path / "c" / "train.txt", ["-DOCSTART-\t-X-\tO", "", *(sentence * 9)])
    code, _, errors = vaak("init", "--data", "c")
    assert code == 2
    assert "1 .txt, 1 of them with a token in each line (as in CoNLL's tasks): no task labels tokens" in " ".join(
        errors.split()
    )


def test_archives_that_nobody_can_read_are_named_and_others_are_read(vaak, tmp_path: Path):
    lines(tmp_path / "c" / "a.txt", [text for text, _ in TEXTS])
    (tmp_path / "c" / "broken.zip").write_bytes(b"PK\x03\x04 no zip")
    code, _, errors = vaak("init", "--data", "c")
    assert code == 0
    assert "files that aren't read: 1 .zip (broken.zip)" in " ".join(errors.split())
    code, _, errors = vaak("init", "--data", "c/broken.zip", "-o", "b.yml")
    assert (code, "broken.zip: this is not a zip, or it is damaged" in " ".join(errors.split())) == (2, True)


def test_each_row_of_the_table_in_the_documentation_is_tried():
    rows = read_layout_table("Texts, each with its YAML")
    assert len(rows) == len(ROWS)
    assert sorted(name for names in ROWS.values() for name in names) == sorted(LAYOUTS)
    for (looks, reads), (begins, names) in zip(rows, ROWS.items(), strict=True):
        assert looks.startswith(begins)
        for layout in (LAYOUTS[name] for name in names):
            named = reads.startswith(f"`{layout.task}`") and (
                f"`type: {layout.found['type']}`" in reads or "," not in reads
            )
            assert named or reads == "as outside", looks
