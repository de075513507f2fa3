"""Transcripts are spelled as a base's tokens are, where that is clear, and otherwise counted, and refused."""

from __future__ import annotations

import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Wav2Vec2CTCTokenizer

import tiny_listener
from tiny_wav2vec2 import write_base
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError
from vaak.tasks.asr.ctc.pretrained import own_vocabulary
from vaak.tasks.asr.ctc.spelling import adapt
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.text.coverage import measure

OF_960H = "ETAONIHSRDLUMWCFGYPBVK'XJQZ"
"""The letters of facebook/wav2vec2-base-960h, in their order, after <pad> <s> </s> <unk> |."""


def write_tokens(folder: Path, letters: str, special: tuple[str, ...] = ("<pad>", "<s>", "</s>", "<unk>", "|")) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate((*special, *letters))}))
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "wav2vec2"}))
    return folder


def make_vocabulary(folder: Path, letters: str) -> Vocabulary:
    found = own_vocabulary(str(write_tokens(folder, letters)))
    assert found is not None
    return found


def said(caplog: pytest.LogCaptureFixture) -> str:
    lines = [line for line in caplog.messages if line.startswith("transcripts are spelled")]
    assert len(lines) <= 1
    return "".join(lines)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_small_letters_are_the_capitals_of_the_base_and_are_written_small(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    plain = make_vocabulary(tmp_path / "base", OF_960H)
    texts = ["i don’t know", "it is so"]
    assert measure(plain, texts).shares()[0] == 100
    found = adapt(plain, lambda: texts, "base-960h")
    theirs: Any = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "base")
    ids = found.encode(texts[0])
    assert ids == theirs("I DON'T KNOW").input_ids
    assert found.decode(ids) == "i don't know"
    assert found.encode("I Don't KNOW") == ids, "and those of evaluation, whatever their case"
    assert measure(found, texts).shares() == (0, 0)
    line = said(caplog)
    assert "15 small letters, of which it has the capitals only, and which the model writes; 1 ’" in line
    assert found.ids == plain.ids


def test_letters_of_both_cases_become_those_of_the_base(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plain = make_vocabulary(tmp_path / "base", OF_960H)
    found = adapt(plain, lambda: ["I do not", "So it is"], "base-960h")
    assert found.decode(found.encode("I do not")) == "I DO NOT"
    assert "10 letters of the other case" in said(caplog)


def test_capitals_of_a_corpus_are_small_letters_of_the_base(tmp_path: Path):
    found = adapt(make_vocabulary(tmp_path / "base", OF_960H.lower()), lambda: ["IT IS SO"], "base")
    assert found.decode(found.encode("IT IS SO")) == "IT IS SO"
    assert measure(found, ["IT IS SO"]).shares() == (0, 0)


def test_where_a_base_has_both_cases_nothing_is_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plain = make_vocabulary(tmp_path / "base", "abcdeFGHI")
    found = adapt(plain, lambda: ["fade A"], "base")
    assert found.content == plain.content
    assert not said(caplog)
    assert measure(found, ["fade A"]).lost == {"f": 1, "A": 1}


def test_turkish_has_two_letters_i(tmp_path: Path):
    found = adapt(make_vocabulary(tmp_path / "base", "ABCÇDEFGĞHIİJKLMNOÖPRSŞTUÜVYZ"), lambda: ["ılık iyi"], "base")
    assert [found.backend.id_to_token(one) for one in found.encode("ı i")] == ["ı", "|", "i"]
    assert found.decode(found.encode("ILIK İYİ")) == "ılık iyi"


@pytest.mark.parametrize(("form", "text"), [("NFD", "café né"), ("NFC", "cafe\u0301 ne\u0301")])
def test_unicode_forms_are_those_of_the_tokens(tmp_path: Path, form: Any, text: str, caplog: pytest.LogCaptureFixture):
    letters = "".join(sorted({*unicodedata.normalize(form, "café né").replace(" ", "")}))
    found = adapt(make_vocabulary(tmp_path / "base", letters), lambda: [text], "base")
    assert measure(found, [text]).shares() == (0, 0)
    assert found.decode(found.encode(text)) == "café né", "texts are composed"
    assert f"texts in the form {form}" in said(caplog)


def test_other_spaces_are_the_token_between_words(tmp_path: Path):
    found = adapt(make_vocabulary(tmp_path / "base", OF_960H), lambda: ["SO\u00a0IT", "IT\tIS"], "base")
    assert found.encode("SO\u00a0IT") == found.encode("SO IT") == found.encode("SO\tIT")


def prepared(corpus: Path, folder: Path, letters: str, *overrides: str) -> Any:
    write_base(folder / "base", "wav2vec2", "layer")
    write_tokens(folder / "tokens", letters)
    for one in (folder / "tokens").iterdir():
        if one.name != "config.json":
            one.rename(folder / "base" / one.name)
    options = tiny_listener.options(corpus, model={"architecture": "ctc", "base": str(folder / "base")})
    (folder / "case.yml").write_text(yaml_text(options))
    loaded = load([folder / "case.yml"], [f"run_dir={folder / 'run'}", *overrides])
    task: Any = task_class("asr")(loaded.experiment, folder / "run", folder)
    task.prepare()
    return task


def test_preparation_learns_no_unknown_tokens_and_says_what_it_did(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    task = prepared(corpus, tmp_path, OF_960H)
    example = task.dataset("train").example(0, np.random.default_rng(0))
    assert task.prepared.vocabulary.decode(example.ids) == example.text
    assert "small letters, of which it has the capitals only" in said(caplog)
    assert task.prepared.about["statistics"]["train"]["unwritable"] == {"characters": 0.0, "words": 0.0}


def test_what_a_base_cannot_write_is_refused_with_counts(corpus: Path, tmp_path: Path):
    expected = (
        r"train: [\d.]+ % of the characters \(\d+ of \d+\) and [\d.]+ % of the words \(as \w.*\) can't be written: "
        r".*(s \(\d+\).*u \(\d+\)|u \(\d+\).*s \(\d+\)).*; change the transcripts, or choose a base .*, or raise "
        r"data.max_unknown \(5 %\)"
    )
    with pytest.raises(DataError, match=expected):
        prepared(corpus, tmp_path, "abdimo")


def test_the_limit_can_be_raised(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    task = prepared(corpus, tmp_path, "abdimo", "data.max_unknown=60")
    about = task.prepared.about["statistics"]["train"]["unwritable"]
    texts = [json.loads(line)["text"] for line in (corpus / "train.jsonl").read_text().splitlines()]
    letters = "".join(texts).replace(" ", "")
    words = " ".join(texts).split()
    assert about["characters"] == pytest.approx(100 * sum(map(letters.count, "su")) / len(letters), abs=1e-3)
    assert about["words"] == pytest.approx(100 * words.count("su") / len(words), abs=1e-3)
    assert about["most_frequent"] == {one: letters.count(one) for one in "su"}
    assert any(line.startswith("train: ") and "can't be written" in line for line in caplog.messages)
