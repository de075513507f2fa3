"""``vaak data clean``: near duplicates against exact Jaccard similarity, weights, languages, contamination, memory."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vaak.core.errors import DataError, UserError
from vaak.text.corpora.cleaning import (
    CleaningOptions,
    CleaningReport,
    clean,
    compute_signatures,
    make_shingles,
    parse_source,
)


def cleaned(folder: Path, *sources: str, **options: Any) -> tuple[list[dict[str, str]], CleaningReport]:
    """Return the written rows, and the report."""
    chosen = CleaningOptions(**{"near_duplicates": None, **options})
    report = clean([parse_source(one, chosen) for one in sources], folder / "out", chosen)
    shards = sorted((folder / "out").glob("train-*.jsonl"))
    assert [path.name for path in sorted((folder / "out").iterdir())] == [
        "cleaning.json",
        *(one.name for one in shards),
    ]
    assert len(shards) == report.shards
    return [json.loads(line) for path in shards for line in path.read_text(encoding="utf-8").splitlines()], report


def get_text(rng: random.Random, words: int) -> list[str]:
    return [f"w{rng.randrange(5000)}" for _ in range(words)]


def similarity(one: str, other: str, size: int) -> float:
    a, b = set(make_shingles(one, size)), set(make_shingles(other, size))
    return len(a & b) / len(a | b)


def test_signatures_estimate_the_similarity_of_shingles():
    rng = random.Random(0)
    words = get_text(rng, 400)
    for changed in (0, 2, 8, 30, 400):
        other = list(words)
        for place in rng.sample(range(400), changed):
            other[place] = "x" + other[place]
        pair = [make_shingles(" ".join(one), 5) for one in (words, other)]
        first, second = compute_signatures(pair)
        exact = similarity(" ".join(words), " ".join(other), 5)
        assert (first == second).mean() == pytest.approx(exact, abs=4 * np.sqrt(0.25 / 128))
        assert changed > 0 or exact == 1


def test_what_is_nearly_a_duplicate_of_an_earlier_document_is_left_out(tmp_path: Path):
    rng = random.Random(1)
    documents, expected = list[str](), list[bool]()
    for _ in range(120):
        words = get_text(rng, 200)
        other = list(words)
        for place in rng.sample(range(200), rng.choice((1, 60))):
            other[place] = "changed"
        documents += [" ".join(words), " ".join(other)]
        assert not 0.6 < similarity(documents[-2], documents[-1], 5) < 0.9, "far from the threshold, so it is clear"
        expected += [True, similarity(documents[-2], documents[-1], 5) < 0.8]
    (tmp_path / "a.txt").write_text("\n".join([*documents, documents[0], "", "  "]) + "\n")
    kept, report = cleaned(tmp_path, str(tmp_path / "a.txt"), near_duplicates=0.8)
    assert [one["text"] for one in kept] == [text for text, is_kept in zip(documents, expected, strict=True) if is_kept]
    counts = report.documents[str(tmp_path / "a.txt")]
    assert counts == {"kept": sum(expected), "empty": 2, "language": 0, "duplicate": 1, "contaminated": 0,
                      "near-duplicate": expected.count(False)}  # fmt: skip


def test_hidden_files_of_a_folder_are_named_and_those_that_a_pattern_means_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "a.txt").write_text("so it is\n")
    (tmp_path / ".b.txt").write_text("hidden\n")
    assert list(parse_source(str(tmp_path), CleaningOptions()).read()) == ["so it is"]
    assert caplog.messages == [f"source: {tmp_path}: 1 file is read; 1 file left out (hidden): .b.txt"]
    assert list(parse_source(str(tmp_path / ".b.txt"), CleaningOptions()).read()) == ["hidden"]


def test_weights_are_shares_of_characters(tmp_path: Path):
    rng = random.Random(2)
    for name, number in (("big", 3000), ("small", 500)):
        (tmp_path / f"{name}.txt").write_text("".join(" ".join(get_text(rng, 10)) + "\n" for _ in range(number)))
    big, small = str(tmp_path / "big.txt"), str(tmp_path / "small.txt")
    kept, report = cleaned(tmp_path / "fixed", f"{big}@1", f"{small}@1")
    shares = {name: sum(len(one["text"]) for one in kept if one["source"] == name) for name in (big, small)}
    assert shares == report.written
    assert shares[big] == pytest.approx(shares[small], rel=0.05)
    assert sum(shares.values()) == pytest.approx(sum(report.characters.values()), rel=0.02)
    again, _ = cleaned(tmp_path / "again", f"{big}@1", f"{small}@1")
    assert again == kept, "drawn by hashes"
    moved = shutil.copytree(tmp_path, tmp_path.with_name("moved"), ignore=shutil.ignore_patterns("fixed", "again"))
    there, _ = cleaned(moved / "fixed", f"{moved / 'big.txt'}@1", f"{moved / 'small.txt'}@1")
    assert [one["text"] for one in there] == [one["text"] for one in kept], "and not by where the sources are"
    _, warm = cleaned(tmp_path / "warm", big, small, temperature=2.0)
    sizes = warm.characters
    assert warm.written[big] / warm.written[small] == pytest.approx((sizes[big] / sizes[small]) ** 0.5, rel=0.05)
    _, plain = cleaned(tmp_path / "plain", big, small)
    assert plain.written == plain.characters


def test_other_languages_are_left_out(tmp_path: Path):
    hindi = "यह एक छोटा घर है और उसमें बहुत लोग रहते हैं।"
    (tmp_path / "a.txt").write_text(f"{hindi}\nThis is a small house in which many people live.\n", encoding="utf-8")
    kept, report = cleaned(tmp_path, str(tmp_path / "a.txt"), languages=("hi",))
    assert [one["text"] for one in kept] == [hindi]
    assert report.documents[str(tmp_path / "a.txt")]["language"] == 1
    with pytest.raises(UserError, match=r"--language: unknown 'xx'.*; expected one of af, am, "):
        cleaned(tmp_path / "other", str(tmp_path / "a.txt"), languages=("xx",))


def test_evaluation_documents_in_the_text_are_counted(tmp_path: Path):
    words = [f"w{n}" for n in range(100)]
    (tmp_path / "test.jsonl").write_text(
        "".join(
            json.dumps({"text": " ".join(one)}) + "\n" for one in (words[:30], words[50:62], ["new"] * 20, ["short"])
        )
    )
    lines = [" ".join(["before", *words[10:24], "after"]), " ".join(words[50:61]), "a short one", "w1 w2 w3"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    kept, report = cleaned(tmp_path, str(tmp_path / "a.txt"), against=(str(tmp_path / "test.jsonl"),))
    assert (report.hit, report.evaluated, len(kept)) == (1, 4, 4), "13 words in a row; a shorter document as a whole"
    kept, report = cleaned(
        tmp_path / "dropped",
        str(tmp_path / "a.txt"),
        against=(str(tmp_path / "test.jsonl"),),
        overlap=11,
        drop_contaminated=True,
    )
    assert (report.hit, [one["text"] for one in kept]) == (2, lines[2:])


def test_a_dataset_is_streamed_and_files_of_all_kinds_are_read(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "hub").mkdir()
    table = pyarrow.table({"content": ["one", "two", None]})
    pyarrow.parquet.write_table(table, tmp_path / "hub" / "train-00000-of-00001.parquet")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jsonl").write_text('{"content": "three"}\n')
    (tmp_path / "files" / "b.csv").write_text("id,content\n1,four\n")
    (tmp_path / "files" / "c.txt").write_text("five\r\n")
    kept, _ = cleaned(tmp_path, f"hf:{tmp_path / 'hub'}", str(tmp_path / "files"), text_column="content")
    assert [one["text"] for one in kept] == ["one", "two", "three", "four", "five"]
    with pytest.raises(DataError, match=r"--text-column: there is no column 'text'.*; expected one of content"):
        cleaned(tmp_path / "other", f"hf:{tmp_path / 'hub'}")


def test_shards_are_train_data_and_the_command_says_how(vaak, tmp_path: Path):
    (tmp_path / "a.txt").write_text("".join(f"line {n} of it\n" for n in range(50)))
    code, out, errors = vaak("data", "clean", tmp_path / "out", f"{tmp_path}/a.txt", "--near-duplicates", "0")
    assert code == 0, errors
    assert "a.txt: 50 documents kept\n" in out
    assert f"1 shard: data: {{corpus: {{train: [{tmp_path}/out/*.jsonl]}}}}" in out
    (tmp_path / "lm.yml").write_text(f"task: lm\ndata: {{corpus: {{train: ['{tmp_path}/out/*.jsonl']}}}}\n")
    assert vaak("config", "check", tmp_path / "lm.yml")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.txt",), "source: no such file: gone.txt"),
        (("a.txt@0",), "a.txt@0: the weight 0 is not a number above 0"),
        (("a.txt@2", "b.txt"), "b.txt has no weight, but others have"),
        (("a.txt@2", "b.txt@1", "--temperature", "2"), "--temperature gives the weights of sources"),
        (("a.txt", "--against", "gone.txt"), "--against: no such file: gone.txt"),
        (("empty.txt",), "the sources have no documents"),
        (("blank.txt",), "blank.txt: nothing is kept of its 1 documents (empty: 1)"),
        (("a.txt", "--document", "page"), "--document: page is unknown; expected line, paragraph or file"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_left(
    vaak, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name, content in {"a": "so\n", "b": "it\n", "empty": "", "blank": " \n"}.items():
        Path(f"{name}.txt").write_text(content)
    code, out, errors = vaak("data", "clean", "out", *arguments)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".txt"]


def test_a_source_that_changes_while_it_is_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    from vaak.text.corpora import cleaning

    before = cleaning._count

    def changing(*arguments: Any) -> None:
        before(*arguments)
        (tmp_path / "a.txt").write_text("one\nother\n")

    monkeypatch.setattr(cleaning, "_count", changing)
    with pytest.raises(DataError, match=r"a\.txt: it changed while it was read; run this again"):
        cleaned(tmp_path, str(tmp_path / "a.txt"))
    assert not (tmp_path / "out").exists()


MEASURE = """
import resource, sys
from pathlib import Path
from vaak.text.corpora.cleaning import CleaningOptions, clean, parse_source
options = CleaningOptions()
clean([parse_source(sys.argv[1], options)], Path(sys.argv[2]), options)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path):
    """Ten times the text, in as many documents each ten times as long."""
    used = {}
    for length in (60, 600):
        rng = random.Random(3)
        path = tmp_path / f"{length}.txt"
        with open(path, "w") as file:
            for _ in range(20_000):
                file.write(" ".join(get_text(rng, length)) + "\n")
        script = [sys.executable, "-c", MEASURE, str(path), str(tmp_path / f"out{length}")]
        used[length] = int(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert used[600] < used[60] + 60, used


def test_what_is_not_text_is_left_out_by_name(vaak, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A folder's pictures and documents of a word processor were read as text, full of U+FFFD."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("so it is\nand it was\n")
    (folder / "b").write_bytes("वह लड़का है\n".encode("utf-16"))
    (folder / "c.docx").write_bytes(b"PK\x03\x04\x14\x00\x06\x00" + bytes(range(256)))
    (folder / "d.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(64))
    (folder / ".e.txt").write_text("hidden\n")
    code, out, errors = vaak("data", "clean", tmp_path / "out", folder, "--near-duplicates", "0", "--json")
    assert code == 0, errors
    report = json.loads(out)
    [found] = report["files"]
    assert (found["read"], found["left_out"]) == (2, {"not text": ["c.docx", "d.png"], "hidden": [".e.txt"]})
    assert (report["num_files"], report["documents"][str(folder)]["kept"]) == ({str(folder): 2}, 3)
    assert "2 files are read; 2 files left out (not text): c.docx, d.png" in caplog.text
    code, out, errors = vaak("data", "clean", tmp_path / "none", folder / "c.docx")
    assert (code, out) == (2, "")
    assert "c.docx: has no text files" in errors
    assert not (tmp_path / "none").exists()
