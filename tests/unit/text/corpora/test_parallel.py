"""Pairs of texts are read, filtered, split and counted, and every mistake has a clear message."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from folders import write
from spreadsheets import write_spreadsheet
from vaak.core.errors import DataError, UserError
from vaak.tasks.seq2seq.config import ParallelCorpusConfig
from vaak.text.corpora.parallel import Pair, ParallelCorpus, cleaned

PAIRS = [("one", "एक"), ("two  “2”", 'दो "२"'), ("three", "तीन")]


def corpus_of(**options: Any) -> ParallelCorpus:
    return ParallelCorpus(ParallelCorpusConfig(**options))


def lines_of(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def rows_of(pairs: list[tuple[Any, Any]]) -> str:
    return lines_of([{"en": source, "hi": target} for source, target in pairs])


def json_corpus(folder: Path, train: str | bytes, valid: str | bytes = "", **options: Any) -> ParallelCorpus:
    given = {"valid": (write(folder / "valid.jsonl", valid),)} if valid else {}
    return corpus_of(type="json", train=(write(folder / "train.jsonl", train),), **given, **options)


def texts(corpus: ParallelCorpus, split: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(pair.source, pair.targets) for pair in corpus.read(split)]


# Formats.


def huggingface(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    rows = {"id": [1, 2, 3], "translation": [{"en": source, "hi": target} for source, target in PAIRS]}
    whole = datasets.DatasetDict({split: datasets.Dataset.from_dict(rows) for split in ("validation", "test")})
    whole.save_to_disk(str(folder / "saved"))
    columns = {"source_column": "translation.en", "target_column": "translation.hi"}
    return {"type": "huggingface", "name": str(folder / "saved"), **columns}


def files_of_kind(kind: str, folder: Path) -> dict[str, Any]:
    """The options under which PAIRS are the split ``test``."""
    if kind == "lines":
        return {"type": "json", "test": (write(folder / "a.jsonl", "\n" + rows_of(PAIRS) + "\n"),)}
    if kind == "list":
        rows = [{"en": source, "hi": [target]} for source, target in PAIRS]
        return {"type": "json", "test": (write(folder / "a.json", "\ufeff" + json.dumps(rows, indent=1)),)}
    if kind == "nested":
        nested = [{"text": {"en": source, "out.hi": target}, "out.hi": target} for source, target in PAIRS]
        columns = {"source_column": "text.en", "target_column": "out.hi"}
        return {"type": "json", "test": (write(folder / "a.jsonl", lines_of(nested)),), **columns}
    if kind == "tsv":
        content = "\ufeffhi\tid\ten\r\n" + "".join(f"{target}\t1\t{source}\r\n" for source, target in PAIRS)
        return {"type": "tsv", "test": (write(folder / "a.tsv", content),)}
    if kind == "tsv without header":
        content = "".join(f"{source}\t{target}\tmore\n" for source, target in PAIRS)
        return {"type": "tsv", "test": (write(folder / "a.tsv", content),), "source_column": 0, "target_column": "1"}
    if kind == "text":
        parts = (PAIRS[:1], PAIRS[1:])
        for number, part in enumerate(parts):
            write(folder / f"{number}.en", "\n".join(source for source, _ in part))
            write(folder / f"{number}.hi", "".join(f"{target}\n" for _, target in part))
        return {"type": "text", "test": (str(folder / "*.en"),), "test_target": (str(folder / "*.hi"),)}
    return files_of_tables(kind, folder) or huggingface(folder)


def files_of_tables(kind: str, folder: Path) -> dict[str, Any] | None:
    if kind == "csv":
        content = "hi;id;en\r\n" + "".join(f"{target};1;{source}\r\n" for source, target in PAIRS)
        return {"type": "tsv", "test": (write(folder / "a.csv", content),)}
    if kind == "spreadsheet":
        pytest.importorskip("python_calamine", reason="the extra spreadsheets is not installed")
        rows = [("en", "hi", "id"), *((source, target, 1) for source, target in PAIRS)]
        return {"type": "tsv", "test": (str(write_spreadsheet(folder / "a.xlsx", rows)),)}
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra hf is not installed")
        table = pytest.importorskip("pyarrow").Table.from_pylist(
            [{"id": 1, "translation": {"en": source, "hi": target}} for source, target in PAIRS]
        )
        parquet.write_table(table, folder / "a.parquet")
        columns = {"source_column": "translation.en", "target_column": "translation.hi"}
        return {"type": "tsv", "test": (str(folder / "a.parquet"),), **columns}
    return None


KINDS = ("csv", "spreadsheet", "parquet", "lines", "list", "nested", "tsv", "tsv without header", "text", "huggingface")


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_pairs(tmp_path: Path, kind: str):
    corpus = corpus_of(**files_of_kind(kind, tmp_path))
    assert texts(corpus, "test") == [(source, (target,)) for source, target in PAIRS]
    places = [pair.where for pair in corpus.read("test")]
    assert len(set(places)) == len(places)
    assert all(str(tmp_path) in place for place in places)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("text", "tsv without header")])
def test_a_column_that_is_not_there(tmp_path: Path, kind: str):
    options = files_of_kind(kind, tmp_path) | {"target_column": "hindi"}
    with pytest.raises(DataError, match=r"no column 'hindi'; the columns are: .*\(set target_column"):
        list(corpus_of(**options).read("test"))


@pytest.mark.parametrize("direction", [("en", "hi"), ("hi", "en")])
def test_the_grammar_has_both_directions(direction: tuple[str, str]):
    source, target = direction
    corpus = corpus_of(type="grammar", num_sentences=200, source_column=source, target_column=target)
    assert corpus.splits == ("train", "valid", "test")
    sides = [Pair(pair.source, pair.targets, "") for pair in corpus.read("valid")]
    english = [pair.source if source == "en" else pair.targets[0] for pair in sides]
    assert len(sides) == 10
    assert all(text.isascii() for text in english)
    assert not any(pair.targets[0].isascii() and pair.source.isascii() for pair in sides)
    with pytest.raises(DataError, match=r"the grammar: no column 'de'; the columns are: en, hi"):
        corpus_of(type="grammar", source_column="de")


def test_more_pairs_than_the_grammar_has_are_refused_before_any_is_read():
    with pytest.raises(DataError, match=r"corpus.num_sentences: train would have 27000 of 30000 .* has 20000 for it"):
        corpus_of(type="grammar", num_sentences=30_000)


# What is cleaned, dropped and counted.


def test_texts_are_normalised_and_pairs_without_a_side_and_duplicates_dropped_from_training(tmp_path: Path):
    train = rows_of(
        [(" a ", "\u0958\r\n"), ("a", "क\u093c"), ("a", "ख"), ("", "ग"), ("b", " "), (None, "घ"), ("c", [])]
    )
    corpus = json_corpus(tmp_path, train, rows_of([("v", "व")]))
    assert texts(corpus, "train") == [("a", ("क\u093c",)), ("a", ("ख",))]
    assert corpus.statistics["train"].dropped == {"duplicate": 1, "a side is empty": 4}
    assert corpus.statistics["train"].pairs == 2
    kept = json_corpus(tmp_path, train, rows_of([("v", "व")]), deduplicate=False)
    assert len(texts(kept, "train")) == 3
    assert cleaned("\ufeff x\r\n") == "x"


OVERLAPS = {
    "source": ([("new", "उत्तर"), ("other", "दूसरा"), ("उत्तर", "asked"), ("mine", "मेरा")], 2, 2),
    "pair": ([("asked", "अलग"), ("new", "उत्तर"), ("other", "दूसरा"), ("उत्तर", "asked"), ("mine", "मेरा")], 1, 2),
    "target": ([("उत्तर", "asked"), ("mine", "मेरा")], 4, 0),
}


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_given_evaluation_pairs_stay_and_what_they_share_with_training_leaves_it(tmp_path: Path, overlap: Any):
    kept, dropped, shared = OVERLAPS[overlap]
    valid = rows_of([("asked", ["उत्तर", "दूसरा"]), ("asked", ["उत्तर", "दूसरा"])])
    train = rows_of(
        [("asked", "अलग"), ("asked", "दूसरा"), ("new", "उत्तर"), ("other", "दूसरा"), ("उत्तर", "asked"), ("mine", "मेरा")]
    )
    corpus = json_corpus(tmp_path, train, valid, evaluation_overlap=overlap)
    assert texts(corpus, "valid") == [("asked", ("उत्तर", "दूसरा"))] * 2
    assert texts(corpus, "train") == [(source, (target,)) for source, target in kept]
    assert list(corpus.statistics["train"].dropped.values()) == [dropped]
    assert corpus.statistics["train"].shared_targets == shared
    assert corpus.statistics["valid"].references == 4


def test_targets_that_are_classes_stay_in_training_by_default(tmp_path: Path):
    """All "yes" of a classifier's 400 rows left training, since an evaluation split has a "yes", too."""
    rows = [(f"text {number}", "yes" if number % 7 < 3 else "no") for number in range(400)]
    corpus = json_corpus(tmp_path, rows_of(rows), train_fraction=0.8, valid_fraction=0.1)
    splits = {split: texts(corpus, split) for split in corpus.splits}
    assert sorted(pair for pairs in splits.values() for pair in pairs) == sorted(
        (text, (label,)) for text, label in rows
    )
    train = corpus.statistics["train"]
    assert (train.dropped, train.shared_targets) == ({}, len(splits["train"]))
    by_target = json_corpus(
        tmp_path, rows_of(rows), train_fraction=0.8, valid_fraction=0.1, evaluation_overlap="target"
    )
    with pytest.raises(DataError, match=r"all its pairs .* dropped \(3\d\d because its source or target is also"):
        texts(by_target, "train")


def test_lists_are_variants_in_training_and_references_in_evaluation(tmp_path: Path):
    train = rows_of([(["a", "b"], ["क", "ख"])])
    valid = rows_of([(["v", "w"], ["व", "श"])])
    corpus = json_corpus(tmp_path, train, valid)
    assert texts(corpus, "train") == [(s, (t,)) for s, t in product("ab", "कख")]
    assert texts(corpus, "valid") == [("v", ("व", "श"))]
    first = json_corpus(tmp_path, train, valid, training_references="first")
    assert texts(first, "train") == [("a", ("क",)), ("b", ("क",))]


SIDES = st.text("abcdefगघकख ", min_size=1, max_size=5)
ROWS = st.lists(
    st.tuples(st.lists(SIDES, min_size=1, max_size=2), st.lists(SIDES, min_size=1, max_size=2)), min_size=25
)


@settings(max_examples=settings().max_examples // 2)
@given(rows=ROWS, more=ROWS, by_target=st.booleans())
def test_splits_by_hash_share_nothing_with_training_and_no_pair_moves(tmp_path_factory, rows, more, by_target):
    folder = tmp_path_factory.mktemp("corpus")
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for splits, content in ((before, rows), (after, more + rows)):
        overlap = "target" if by_target else "source"
        corpus = json_corpus(
            folder, rows_of(content), train_fraction=0.4, valid_fraction=0.3, evaluation_overlap=overlap
        )
        try:
            splits |= {split: set(texts(corpus, split)) for split in corpus.splits}
        except DataError:  # a split of so few pairs may be empty, which is a separate error
            reject()
    firsts = {cleaned(sources[0]) for sources, _ in rows}
    for split, others in (("valid", "test"), ("test", "valid")):
        assert before[split] <= after[split]
        assert not {source for source, _ in before[split]} & {source for source, _ in before[others]}
        assert not {source for source, _ in before[split]} & {source for source, _ in before["train"]}
        references = {target for _, targets in before[split] for target in targets}
        apart = {targets[0] for _, targets in before["train"]}
        assert not by_target or not references & apart
        # a variant that only training reads (another source of a row) may be a new row's own pair: that row is judged
        assert not {pair for pair in before["train"] if pair[0] in firsts} & after[split]


@given(rows=ROWS)
def test_what_is_dropped_is_what_is_missing(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("corpus")
    corpus = json_corpus(folder, rows_of(rows), rows_of([("v", "व")]))
    try:
        kept = texts(corpus, "train")
    except DataError:  # nothing but blanks
        reject()
    assert len(kept) + sum(corpus.statistics["train"].dropped.values()) == sum(len(s) * len(t) for s, t in rows)
    assert len(set(kept)) == len(kept)


def test_fractions_are_met(tmp_path: Path):
    corpus = json_corpus(tmp_path, rows_of([(f"s{number}", f"t{number}") for number in range(10_000)]))
    sizes = {split: len(texts(corpus, split)) for split in corpus.splits}
    assert sum(sizes.values()) == 10_000
    assert sizes["train"] == pytest.approx(9_000, rel=0.02)
    assert sizes["valid"] == pytest.approx(500, rel=0.2)


# Errors name the file and line.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"en": "a", "hi": "b"}\n{"en": \n', r"valid\.jsonl:2: this is not JSON: .* column \d"),
        ('{"en": "a", "hindi": "b"}\n', r":1: no column 'hi'; the columns are: en, hindi \(set target_column"),
        (
            '{"english": "a", "hi": "b"}\n',
            r":1: no column 'en'; the columns are: english, hi \(set source_col",
        ),
        ('{"t": {"En": "a"}, "hi": "b"}\n', r"the columns are: t\.En, hi"),
        ('{"en": 5, "hi": "b"}\n', r"valid\.jsonl:1: en is a int; a side is a string or a list of strings"),
        ('{"en": "a", "hi": {"x": "b"}}\n', r"valid\.jsonl:1: hi is a dict; a side is"),
        ('{"en": "a", "hi": ["b", 1]}\n', r"valid\.jsonl:1: hi is a list with a int; a side is"),
        ('["a", "b"]\n', r"valid\.jsonl: entry 0: a pair is an object with the keys en and hi, not a str"),
        ('{"en": "a", "hi": "b"}\n"a"\n', r"valid\.jsonl:2: a pair is an object with the keys en and hi, not a str"),
        ('{"en": "a", "hi": "b"}\n\n{"en": " ", "hi": "b"}\n', r"valid\.jsonl:3: the source is empty; valid is kept"),
        (
            '{"en": "a", "hi": null}\n',
            r"valid\.jsonl:1: the target is empty; valid is kept complete: fix or remove this",
        ),
        ('{"en": "a", "hi": ["b", ""]}\n', r"valid\.jsonl:1: the target is empty"),
        ('{"en": "a", "hi": "\\ud800"}\n', r"valid\.jsonl:1: half a surrogate"),
        (b'{"en": "a", "hi": "b"}\n{"en": "\xff"}\n', r"valid\.jsonl:2: byte 31 \(0xFF\) is not UTF-8"),
    ],
)
def test_bad_json(tmp_path: Path, content: str | bytes, message: str):
    corpus = json_corpus(tmp_path, rows_of(PAIRS), content)
    for split in ("valid", "train"):  # training has to know what evaluation asks
        with pytest.raises(DataError, match=message) as raised:
            list(corpus.read(split))
        assert "\n" not in str(raised.value)


def test_a_near_name_is_proposed(tmp_path: Path):
    corpus = json_corpus(
        tmp_path, lines_of([{"english": "a", "hindi": "b"}]), source_column="englsh", target_column="x"
    )
    with pytest.raises(DataError, match=r"\(set source_column; did you mean 'english'\?\)"):
        list(corpus.read("train"))


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (
            "en\thi\na\tb\nc\n",
            ("en", "hi"),
            r"a\.tsv:3: 1 columns, but the first row has 2: en, hi",
        ),
        (
            "en/hi\na/b\n",
            ("en", "hi"),
            r"a\.tsv:1: no column 'en'; the columns are: en/hi \(set source_column",
        ),
        ("a\tb\n", (0, 2), r"a\.tsv:1: this line has 2 cells separated by tabs, but column 2"),
        ("a\tb\n", (0, "hi"), r"source_column '0' and target_column 'hi': give two names .* or two numbers"),
        ("en\thi\n", ("en", "hi"), r"test is empty: .*a\.tsv has no pair"),
        (b"en\thi\na\t\xe0\xa4\n", ("en", "hi"), r"a\.tsv:2: byte 8 \(0xE0\) is not UTF-8"),
    ],
)
def test_bad_tsv(tmp_path: Path, content: str | bytes, columns: tuple[Any, Any], message: str):
    path = write(tmp_path / "a.tsv", content)
    corpus = corpus_of(type="tsv", test=(path,), source_column=columns[0], target_column=columns[1])
    with pytest.raises(UserError, match=message):
        list(corpus.read("test"))


def test_text_files_belong_together(tmp_path: Path):
    source, target = write(tmp_path / "a.en", "1\n2\n3\n"), write(tmp_path / "a.hi", "१\n२\n")
    corpus = corpus_of(type="text", train=(source,), train_target=(target,))
    with pytest.raises(DataError, match=r"a\.en has 3 lines and .*a\.hi has 2: line i of both must belong together"):
        list(corpus.read("train"))
    with pytest.raises(
        DataError, match=r"corpus: train names 1 files and train_target 0: each file of sources requires"
    ):
        corpus_of(type="text", train=(source,))
    with pytest.raises(DataError, match=r"corpus\.train_target: no such file: .*no\.hi"):
        corpus_of(type="text", train=(source,), train_target=(str(tmp_path / "no.hi"),))
    bad = write(tmp_path / "b.hi", b"\xe0\n\xa4\n3\n")
    with pytest.raises(DataError, match=r"b\.hi:1: byte 0 \(0xE0\)"):
        list(corpus_of(type="text", test=(source,), test_target=(bad,)).read("test"))
    replaced = corpus_of(type="text", test=(source,), test_target=(bad,), on_invalid_utf8="replace")
    assert texts(replaced, "test")[0] == ("1", ("\ufffd",))
    assert replaced.statistics["test"].replaced_bytes == 2


def test_sources_that_are_not_there(tmp_path: Path):
    with pytest.raises(DataError, match=r"corpus\.train: give the files of the training pairs \(type: json\)"):
        corpus_of(type="json")
    with pytest.raises(DataError, match=r"corpus\.test: no such file: .*no\.jsonl"):
        corpus_of(type="json", test=(str(tmp_path / "no.jsonl"),))
    with pytest.raises(UserError, match=r"corpus\.name: give the name"):
        corpus_of(type="huggingface")
    only_test = corpus_of(type="json", test=(write(tmp_path / "t", rows_of(PAIRS)),))
    with pytest.raises(DataError, match=r"corpus\.train: give the files of the training pairs"):
        list(only_test.read("train"))
    with pytest.raises(DataError, match="unknown split 'dev'; expected one of test"):
        list(only_test.read("dev"))


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path):
    corpus = json_corpus(tmp_path, rows_of([("a", "b"), ("", "c")]), rows_of([("a", "x")]))
    with pytest.raises(
        DataError, match=r"train is empty: all its pairs in .*train\.jsonl were dropped \(1 because its source is also "
    ):
        list(corpus.read("train"))
    one = json_corpus(tmp_path, rows_of([("a", "b")]))
    with pytest.raises(DataError, match=r"is empty: no pair of .*train\.jsonl fell into it; give more pairs"):
        [list(one.read(split)) for split in one.splits]


def test_the_same_column_twice_is_no_pair():
    with pytest.raises(
        UserError, match="source_column and target_column are both 'en': a pair has two different sides"
    ):
        ParallelCorpusConfig(type="json", target_column="en")


# Real data.


def test_real_pairs(vaak_data):
    folder = vaak_data("translation") / "en-hi"
    files = {split: (str(folder / f"tatoeba.{split}.jsonl"),) for split in ("train", "valid", "test")}
    corpus = corpus_of(type="json", **files)
    sizes = {split: len(texts(corpus, split)) for split in corpus.splits}
    assert sizes == {"train": 2500, "valid": 201, "test": 251}
    assert corpus.statistics["train"].dropped == {}
    assert corpus.statistics["train"].target.devanagari_share > 0.99


def test_real_references(vaak_data):
    folder = vaak_data("translation") / "en-hi"
    names = {"train": "wikipedia_ipc.train_4ref.jsonl", "test": "wikipedia_ipc.test_4ref.jsonl"}
    files = {split: (str(folder / name),) for split, name in names.items()}
    corpus = corpus_of(type="json", **files, source_column="hi", target_column="en", valid_fraction=0.1)
    tests = list(corpus.read("test"))
    assert len(tests) == 880
    assert {len(pair.targets) for pair in tests} == {4}
    assert tests[2].where.endswith("wikipedia_ipc.test_4ref.jsonl:3")
    train = list(corpus.read("train"))
    dropped = sum(corpus.statistics["train"].dropped.values())
    valid = len(list(corpus.read("valid"))) + sum(corpus.statistics["valid"].dropped.values())
    assert len(train) + dropped + 4 * valid == 4 * 1046
