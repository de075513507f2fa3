"""Rows of tables of texts that can't be read are an error, or left out, counted and named (``data.on_bad_example``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vaak.core.errors import DataError
from vaak.tasks.classification.config import LabelledCorpusConfig
from vaak.tasks.lm.config import CorpusConfig
from vaak.tasks.seq2seq.config import ParallelCorpusConfig
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.labelled import LabelledCorpus
from vaak.text.corpora.parallel import ParallelCorpus


def corpora(path: Path, skip_bad: bool) -> dict[str, Any]:
    files = (str(path),)
    pairs = ParallelCorpusConfig(type="tsv", test=files, source_column="text", target_column="label")
    return {
        "documents": CorpusBuilder(CorpusConfig(type="csv", test=files), skip_bad=skip_bad),
        "labelled": LabelledCorpus(LabelledCorpusConfig(test=files), skip_bad),
        "pairs": ParallelCorpus(pairs, skip_bad),
    }


@pytest.mark.parametrize("kind", ["documents", "labelled", "pairs"])
def test_a_ragged_row_fails_or_is_left_out_counted_and_named(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\na,x\nb, c,y\nd,x\ncafé,y\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv:3: 3 columns, but the first row has 2: text, label"):
        list(corpora(path, False)[kind].read("test"))
    corpus = corpora(path, True)[kind]
    assert len(list(corpus.read("test"))) == 2
    counts = corpus.statistics["test"]
    assert (counts.unusable if kind == "documents" else sum(counts.dropped.values())) == 2
    said = [message for message in caplog.messages if message.startswith("skipped: ")]
    assert [f"a.csv:{line}:" in message for line, message in zip((3, 5), said, strict=True)] == [True, True]


def json_corpora(path: Path, skip_bad: bool) -> dict[str, Any]:
    files = (str(path),)
    pairs = ParallelCorpusConfig(type="json", test=files, source_column="text", target_column="label")
    return {
        "documents": CorpusBuilder(CorpusConfig(type="json", test=files), skip_bad=skip_bad),
        "labelled": LabelledCorpus(LabelledCorpusConfig(test=files), skip_bad),
        "pairs": ParallelCorpus(pairs, skip_bad),
    }


@pytest.mark.parametrize("kind", ["documents", "labelled", "pairs"])
def test_a_bad_line_of_json_fails_or_costs_that_line(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "a.jsonl"
    good = '{"text": "a b", "label": "x"}\n'
    path.write_bytes(f'{good}{{"text": "b", "label": \n{good}[1, 2]\n{{"txt": "c"}}\n'.encode() + b"\xff\n")
    with pytest.raises(DataError, match=r"a\.jsonl:2: this is not JSON"):
        list(json_corpora(path, False)[kind].read("test"))
    corpus = json_corpora(path, True)[kind]
    assert len(list(corpus.read("test"))) == 2
    counts = corpus.statistics["test"]
    assert (counts.unusable if kind == "documents" else sum(counts.dropped.values())) == 4
    said = [message for message in caplog.messages if message.startswith("skipped: ")]
    assert [f"a.jsonl:{line}:" in message for line, message in zip((2, 4, 5, 6), said, strict=True)] == [True] * 4


@pytest.mark.parametrize("kind", ["documents", "labelled", "pairs"])
def test_a_key_that_no_line_has_is_an_error(tmp_path: Path, kind: str):
    path = tmp_path / "a.jsonl"
    path.write_text('{"content": "a"}\n{"content": "b"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: no column 'text'"):
        list(json_corpora(path, True)[kind].read("test"))


@pytest.mark.parametrize("kind", ["documents", "labelled", "pairs"])
def test_a_column_whose_name_occurs_twice_is_not_guessed(tmp_path: Path, kind: str):
    path = tmp_path / "a.csv"
    path.write_text("text,label,text\na,x,b\n")
    with pytest.raises(DataError, match=r"several columns are called 'text'; rename all but the one to read"):
        list(corpora(path, True)[kind].read("test"))
