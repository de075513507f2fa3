"""Corpora are read, filtered, split and counted, and every mistake has a clear message."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import write
from vaak.core.errors import DataError, UserError
from vaak.report.tables import aligned
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.readers import find_files
from vaak.text.corpora.statistics import SplitStatistics, statistics_rows


def options(**given: Any) -> SimpleNamespace:
    defaults = {
        "type": "text",
        "train": (),
        "valid": (),
        "test": (),
        "name": None,
        "subset": None,
        "text_column": "text",
        "document": "line",
        "num_sentences": 200,
        "deduplicate": True,
        "train_fraction": 0.8,
        "valid_fraction": 0.1,
        "on_invalid_utf8": "fail",
    }
    return SimpleNamespace(**defaults | given)


def all_given(tmp_path: Path, train: str | bytes, valid: str = "valid\n", **more: Any) -> CorpusBuilder:
    return CorpusBuilder(
        options(train=(write(tmp_path / "train", train),), valid=(write(tmp_path / "valid", valid),), **more)
    )


def test_lines_are_normalised_and_duplicates_and_blank_ones_dropped(tmp_path: Path) -> None:
    corpus = all_given(tmp_path, "\ufeffक\u093cलम\r\nएक\r\n\r\n  \nएक\n\u0915\u093cलम\nदो  तीन")
    assert list(corpus.documents("train")) == ["क\u093cलम", "एक", "दो  तीन"]
    counts = corpus.statistics["train"]
    assert (counts.documents, counts.duplicates, counts.empty) == (3, 2, 2)
    assert list(all_given(tmp_path, "क\nक\n", deduplicate=False).documents("train")) == ["क", "क"]


def test_given_evaluation_splits_stay_whole_and_leave_training(tmp_path: Path) -> None:
    corpus = all_given(tmp_path, "एक\nदो\nएक\nतीन\n", valid="दो\nदो\nचार\n")
    assert corpus.splits == ("train", "valid")
    assert corpus.load_splits() == {"train": ["एक", "तीन"], "valid": ["दो", "दो", "चार"]}
    counts = corpus.statistics
    assert (counts["train"].also_in_evaluation, counts["train"].duplicates, counts["valid"].duplicates) == (1, 1, 0)
    assert counts["valid"].bytes == len("दोदोचार".encode())
    assert corpus.load_splits()["val"] == ["दो", "दो", "चार"]


@given(
    lines=st.lists(st.text("अआकखगab ", min_size=1, max_size=4), min_size=60, max_size=120),
    more=st.lists(st.text("अआकखगab ", min_size=1, max_size=4), max_size=30),
)
def test_splits_by_hash_are_disjoint_complete_and_stable(tmp_path_factory, lines: list[str], more: list[str]) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    source = write(folder / "a", "\n".join(lines))
    grown = write(folder / "b", "\n".join(more + lines))
    try:  # a split of so few lines may be empty, which is a separate error
        before = CorpusBuilder(options(train=(source,), train_fraction=0.4, valid_fraction=0.3)).load_splits()
        after = CorpusBuilder(options(train=(grown,), train_fraction=0.4, valid_fraction=0.3)).load_splits()
    except DataError:
        return
    together = [line for split in before.values() for line in split]
    assert len(together) == len(set(together))
    assert set(together) == {line for line in lines if line.strip()}
    for split, documents in before.items():
        assert set(documents) <= set(after[split])


def test_fractions_are_met(tmp_path: Path) -> None:
    source = write(tmp_path / "a", "\n".join(f"वाक्य {number}" for number in range(20_000)))
    sizes = {
        split: len(documents) for split, documents in CorpusBuilder(options(train=(source,))).load_splits().items()
    }
    assert sizes["train"] == pytest.approx(16_000, rel=0.02)
    assert sizes["valid"] == pytest.approx(2_000, rel=0.1)
    assert sum(sizes.values()) == 20_000


def test_valid_is_cut_from_train_where_only_test_is_given(tmp_path: Path) -> None:
    train = write(tmp_path / "a", "\n".join(map(str, range(1000))))
    corpus = CorpusBuilder(options(train=(train,), test=(write(tmp_path / "t", "5\n7\n"),)))
    splits = corpus.load_splits()
    assert splits["test"] == ["5", "7"]
    assert len(splits["train"]) + len(splits["valid"]) == 998
    assert len(splits["valid"]) == pytest.approx(100, abs=30)


def test_paragraphs_and_files(tmp_path: Path) -> None:
    content = "\n\nएक\nदो\r\n \nतीन\n\n\n"
    assert list(all_given(tmp_path, content, document="paragraph").documents("train")) == ["एक\nदो", "तीन"]
    whole = all_given(tmp_path, content, valid="\n", document="file")
    assert list(whole.documents("train")) == ["\n\nएक\nदो\n \nतीन\n\n\n"]
    assert list(whole.documents("valid")) == ["\n"]


def test_patterns_are_sorted_and_files_read_once(tmp_path: Path) -> None:
    for name in "ba":
        write(tmp_path / f"{name}.txt", f"{name}\n")
    corpus = CorpusBuilder(
        options(train=(str(tmp_path / "*.txt"), str(tmp_path / "b.txt")), valid=(write(tmp_path / "v", "v"),))
    )
    assert list(corpus.documents("train")) == list(corpus.documents("train")) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("a.jsonl", "json", '{"text": "एक"}\n\n{"text": "दो\\nतीन", "id": 3}\n{"text": null}\n"चार"\n'),
        ("a.json", "json", '\ufeff[{"text": "एक"}, {"text": "दो\\nतीन"},\n "चार"]'),
        ("a.csv", "csv", '\ufeffid,text\n1,एक\n2,"दो\nतीन"\n3,\n4,चार\n'),
        ("a.tsv", "csv", 'text\tid\nएक\t1\n"दो\nतीन"\t2\nचार\t3\n'),
    ],
)
def test_tables_of_text(tmp_path: Path, name: str, kind: str, content: str) -> None:
    valid = write(tmp_path / f"v{name}", content.replace("एक", "शून्य"))
    corpus = CorpusBuilder(options(type=kind, train=(write(tmp_path / name, content),), valid=(valid,)))
    assert list(corpus.documents("valid")) == ["शून्य", "दो\nतीन", "चार"]
    assert list(corpus.documents("train")) == ["एक"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "gz"])
def test_texts_in_utf_16_and_packed_ones_are_read(tmp_path: Path, name: str, encoding: str) -> None:
    content, kind = (
        ("एक \u2028 a\r\nदो b\n", "text") if name == "a.txt" else ('{"text": "एक \u2028 a"}\n"दो b"\n', "json")
    )
    path = tmp_path / (f"{name}.gz" if encoding == "gz" else name)
    path.write_bytes(gzip.compress(content.encode()) if encoding == "gz" else content.encode(encoding))
    corpus = CorpusBuilder(options(type=kind, train=(str(path),), valid=(write(tmp_path / "v", '"v"'),)))
    assert list(corpus.documents("train")) == ["एक \u2028 a", "दो b"]
    if encoding == "utf-16-le":  # without a mark, half a character makes it something else
        return
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"a\.(txt|jsonl).*(this looks like UTF-(16|32).*, but isn't|\.gz is damaged)"):
        list(corpus.documents("train"))


def test_a_csv_cell_may_be_long(tmp_path: Path) -> None:
    corpus = all_given(tmp_path, f'text\n"{"क" * 200_000}"\n', valid="text\nv\n", type="csv")
    assert list(map(len, corpus.documents("train"))) == [200_000]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra hf is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra hf is not installed")
    table = pyarrow.table({"id": [1, 2, 3], "content": ["एक", None, "दो"]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    parquet.write_table(pyarrow.table({"content": ["v"]}), tmp_path / "v.parquet")
    given = {"type": "parquet", "train": (str(tmp_path / "a.parquet"),), "valid": (str(tmp_path / "v.parquet"),)}
    assert list(CorpusBuilder(options(**given, text_column="content")).documents("train")) == ["एक", "दो"]
    with pytest.raises(DataError, match=r"v\.parquet: no column 'text'; the columns are: content"):
        list(CorpusBuilder(options(**given)).documents("train"))
    numbers = given | {"valid": given["train"], "text_column": "id"}
    with pytest.raises(DataError, match=r"a\.parquet: row 0: the text is a int, not a string"):
        list(CorpusBuilder(options(**numbers)).documents("train"))
    write(tmp_path / "a.parquet", b"PAR1 nothing")
    with pytest.raises(DataError, match=r"a\.parquet: this is not a readable Parquet file"):
        list(CorpusBuilder(options(**given, text_column="content")).documents("train"))


def test_a_dataset_in_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    splits = {"train": ["एक", "दो", "दो", None], "validation": ["दो"], "test": ["तीन"]}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": texts}) for name, texts in splits.items()})
    saved.save_to_disk(str(tmp_path / "saved"))
    corpus = CorpusBuilder(options(type="huggingface", name=str(tmp_path / "saved")))
    assert corpus.load_splits() == {"train": ["एक"], "valid": ["दो"], "test": ["तीन"]}
    with pytest.raises(DataError, match="no column 'body'; the columns are: text"):
        CorpusBuilder(options(type="huggingface", name=str(tmp_path / "saved"), text_column="body"))
    with pytest.raises(UserError, match=r"corpus\.subset: .*saved has no configurations; leave it out"):
        CorpusBuilder(options(type="huggingface", name=str(tmp_path / "saved"), subset="one"))
    with pytest.raises(UserError, match="'nobody/nothing' can't be loaded"):
        monkey_offline(datasets, lambda: CorpusBuilder(options(type="huggingface", name="nobody/nothing")))


def monkey_offline(datasets: Any, action: Any) -> None:
    """Run ``action`` as on a machine without a network, which the library otherwise waits for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        action()


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("json", '{"text": "a"}\n{"text": \n', r"train:2: this is not JSON: .* column \d"),
        ("json", '["a",\n"b"', r"train:2: this is not JSON"),
        ("json", '{"body": "a", "id": 1}\n', r"train:1: no column 'text'; the columns are: body, id"),
        ("json", '"a"\n{"text": 5}\n', r"train:2: the text is a int, not a string"),
        ("json", '"a"\n{"text": "\\ud800"}\n', r"train:2: half a surrogate"),
        ("csv", "id,body\n1,a\n", r"train: no column 'text'; the columns are: id, body"),
        ("csv", "id,text\n1,a\n2\n", r"train:3: 1 columns, but the first row has 2"),
        ("csv", 'id,text\n1,"a, b"\n2,"c, d" e\n', r"train:3: a quotation mark opens a cell that doesn.t end, or text"),
        ("text", b"ab\nc\xe0\xa4d\n", r"train:2: byte 4 \(0xE0\) is not UTF-8"),
        ("csv", b"text\nab\n\xff\n", r"train:3: byte 8 \(0xFF\) is not UTF-8"),
        ("text", "\n  \n", "train is empty: .*train has no text"),
        ("text", "valid\nvalid\n", "all of its documents are also in a given evaluation split"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(
    tmp_path: Path, kind: str, content: str | bytes, message: str
) -> None:
    valid = {"json": '"valid"\n', "csv": "text\nvalid\n", "text": "valid\n"}[kind]
    with pytest.raises(DataError, match=message):
        list(all_given(tmp_path, content, valid=valid, type=kind).documents("train"))


@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
def test_invalid_bytes_are_found_or_replaced_and_counted(tmp_path: Path, document: str) -> None:
    content = "क\n".encode() * 3 + b"ok \xff\xfe\n"
    with pytest.raises(DataError, match=r"train:4: byte 15 \(0xFF\)"):
        list(all_given(tmp_path, content, document=document).documents("train"))
    corpus = all_given(tmp_path, content, document=document, on_invalid_utf8="replace")
    (found,) = (document for document in corpus.documents("train") if "ok" in document)
    assert found.strip().endswith("ok \ufffd\ufffd")
    assert corpus.statistics["train"].replaced_bytes == 2


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    for patterns, message in [
        ((), r"corpus\.train: give the files"),
        ((str(tmp_path / "no.txt"),), r"corpus\.train: no such file: .*no\.txt"),
        ((str(tmp_path / "*.txt"),), r"corpus\.train: no file matches .*\*\.txt"),
        ((str(tmp_path),), r"is a folder; give its files"),
    ]:
        with pytest.raises(DataError, match=message):
            CorpusBuilder(options(train=patterns))
    with pytest.raises(UserError, match=r"corpus\.name: give the name"):
        CorpusBuilder(options(type="huggingface"))
    one = CorpusBuilder(options(train=(write(tmp_path / "one", "एक ही वाक्य\n"),)))
    with pytest.raises(DataError, match=r"is empty: no document of .*one fell into it"):
        one.load_splits()
    with pytest.raises(DataError, match="unknown split 'dev'; expected one of train, valid, test"):
        next(one.documents("dev"))
    with pytest.raises(UserError, match=r"add up to 1\.1, more than 1"):
        CorpusBuilder(options(train=(str(tmp_path / "one"),), train_fraction=0.9, valid_fraction=0.2))


def test_the_grammar_is_a_corpus() -> None:
    corpus = CorpusBuilder(options(type="grammar", num_sentences=200), seed=3)
    splits = corpus.load_splits()
    assert set(splits) == {"train", "valid", "test"}
    assert not set(splits["train"]) & (set(splits["valid"]) | set(splits["test"]))
    assert corpus.load_splits() == splits != CorpusBuilder(options(type="grammar"), seed=4).load_splits()
    assert corpus.statistics["train"].devanagari_share == 1


def test_statistics_count_letters_words_and_bytes() -> None:
    counts = SplitStatistics()
    counts.add("राम 12 गया। ab_c\n")
    counts.add("é")
    assert (counts.documents, counts.words, counts.characters, counts.longest_document) == (2, 5, 18, 17)
    assert counts.bytes == len("राम 12 गया। ab_c\né".encode())
    assert counts.devanagari_share == pytest.approx(6 / 10)
    table = aligned(statistics_rows({"train": counts, "valid": SplitStatistics()}), left=1)
    assert len({len(line) for line in table}) == 1
    assert "60.0%" in table[1]
    assert json.loads(json.dumps(counts.to_json()))["devanagari_share"] == 0.6


def test_real_hindi_splits_keep_every_byte(vaak_data) -> None:
    folder = vaak_data("hindi")
    files = {split: (str(folder / f"*.{split}.txt"),) for split in ("train", "valid", "test")}
    corpus = CorpusBuilder(options(**files, document="file"))
    corpus.load_splits()
    statistics = corpus.statistics
    for split, counts in statistics.items():
        assert counts.bytes == sum(path.stat().st_size for path in folder.glob(f"*.{split}.txt"))
        assert counts.devanagari_share > 0.99
    assert statistics["test"].documents == 3


def test_what_a_pattern_matches_and_is_no_file_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vaak.text.corpora.readers.log.propagate", True)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "old.txt").mkdir()
    for _ in range(2):
        assert find_files([f"{tmp_path}/*"], "corpus.train") == [tmp_path / "a.txt"]
    assert caplog.messages == [
        f"corpus.train: {tmp_path}/*: 1 file is read; 1 file left out (not a file): {tmp_path}/old.txt"
    ]


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": TURNS},
    {"messages": TURNS, "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": TURNS, "chat_template_kwargs": {"enable_thinking": True}},
    {"messages": TURNS, "tools": [TOOL]},
    {"messages": [*TURNS[:1], {**TURNS[1], "weight": 0}, TURNS[2]]},
    {"messages": [TURNS[0], {"role": "user", "content": "b"}, TURNS[2]]},
]


def test_conversations_that_are_learned_otherwise_are_no_duplicates(tmp_path: Path) -> None:
    """Only their texts were compared."""
    lines = [json.dumps(one) for one in CONVERSATIONS]
    train, valid = "\n".join([*lines, *lines]), f"{lines[1]}\n"
    corpus = all_given(tmp_path, train, valid, type="chat")
    found = list(corpus.read("train"))
    counts = corpus.statistics["train"]
    assert (counts.also_in_evaluation, counts.duplicates) == (2, len(lines) - 1)
    assert len({one.identity for one in found}) == len(found) == len(lines) - 1
    assert {one.text for one in found if not one.tools} == {"a\nb\nc"}


def test_conversations_with_the_same_texts_are_never_in_two_splits(tmp_path: Path) -> None:
    rows = [
        {**one, "messages": [{**one["messages"][0], "content": f"a{number}"}, *one["messages"][1:]]}
        for number in range(20)
        for one in CONVERSATIONS[:3]
    ]
    file = write(tmp_path / "all", "\n".join(map(json.dumps, rows)))
    corpus = CorpusBuilder(options(type="chat", train=(file,), train_fraction=0.5, valid_fraction=0.3))
    texts = [{one.text for one in corpus.read(split)} for split in corpus.splits]
    assert [len(list(corpus.read(split))) for split in corpus.splits] == [3 * len(some) for some in texts]
    assert sum(map(len, texts)) == len(set().union(*texts)) == 20
