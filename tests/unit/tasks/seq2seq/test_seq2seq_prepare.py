"""Prepared pairs: made once, and again when anything they depend on changes; what is dropped is counted, what can't be
used is reported."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_runs
from tiny_translator import tiny_translator
from vaak.core.errors import DataError, UserError
from vaak.runs.prepared import PREPARED_FILE, prepare_for_run
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig
from vaak.tasks.seq2seq.data import PairDataset, PreparedPairs, fingerprint, recipe
from vaak.text.phrase_dictionary import PhraseDictionary
from vaak.text.tokenizer import Tokenizer
from vaak.text.word_dictionary import WordDictionary

TRAIN = [(f"the word {number}", f"शब्द {number} है") for number in range(40)]
VALID = [("a new word", ["नया शब्द", "एक नया शब्द"]), ("another", "और एक")]


def write_pairs(path: Path, pairs: list[tuple[Any, Any]]) -> str:
    path.write_text("".join(json.dumps({"en": source, "hi": target}) + "\n" for source, target in pairs))
    return str(path)


def make_data_section(folder: Path, train=TRAIN, valid=VALID, **options: Any) -> Seq2SeqDataConfig:
    corpus = {"type": "json", "train": [write_pairs(folder / "train.jsonl", train)], **options.pop("corpus", {})}
    if valid:
        corpus["valid"] = [write_pairs(folder / "valid.jsonl", valid)]
    byte_level = {"type": "byte_level", "vocab_size": 300}
    return Seq2SeqDataConfig(**{"corpus": corpus, "tokenizer": byte_level, **options})


def test_it_is_done_once_and_holds_both_sides(tmp_path: Path):
    data, folder = make_data_section(tmp_path), tmp_path / "prepared"
    prepared = PreparedPairs.make(recipe(data), folder)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", PREPARED_FILE, "tokenizer", "train", "valid"]
    for split, pairs in (("train", TRAIN), ("valid", VALID)):
        stores = prepared.stores(split)
        targets = [[target] if isinstance(target, str) else target for _, target in pairs]
        assert [list(pair.targets) for pair in stores.pairs] == targets
        for place, (source, _) in enumerate(pairs):
            assert prepared.source_tokenizer.decode(stores.source.document(place).tolist()) == source
            assert prepared.target_tokenizer.decode(stores.target.document(place).tolist()) == targets[place][0]
    about = prepared.about
    assert (about["statistics"]["valid"]["pairs"], about["statistics"]["valid"]["references"]) == (2, 3)
    assert about["round_trip"]["target"]["exact"] == len(VALID)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    PreparedPairs.make(recipe(data), folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"} == before
    with pytest.raises(UserError, match="unknown split 'test'; expected one of train, valid"):
        prepared.stores("test")


def test_what_training_shares_with_an_evaluation_is_said_and_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    train = [(f"text {number}", "yes" if number % 2 else "no") for number in range(20)]
    valid = [("text 1", "yes"), ("text 2", "yes"), ("text 3", "no"), ("text 91", "yes")]
    expected = {"source": 17, "pair": 19, "target": 0}
    fingerprints = set()
    for overlap, number in expected.items():
        data = make_data_section(tmp_path, train, valid, corpus={"evaluation_overlap": overlap})
        fingerprints.add(fingerprint(data))
        caplog.clear()
        if not number:
            with pytest.raises(DataError, match=r"train is empty: .*20 because its source or target is also"):
                PreparedPairs.make(recipe(data), tmp_path / overlap)
            continue
        with caplog.at_level(logging.INFO, logger="vaak"):
            prepared = PreparedPairs.make(recipe(data), tmp_path / overlap)
        contents = prepared.contents("train")
        assert contents is not None
        assert (contents.number, sum(contents.left_out.values())) == (number, 20 - number)
        said = " ".join(caplog.messages)
        assert f"train: {number} pairs are kept whose target an evaluation split has with another source" in said
        dropped = "train: 3 of 20 pairs were dropped: its source is also in an evaluation split; "
        assert (dropped + "data.corpus.evaluation_overlap: pair drops fewer" in said) == (overlap == "source")
    assert len(fingerprints) == 3


@pytest.mark.parametrize("gloss", [True, "phrases"])
def test_sources_are_glossed_alike_in_evaluation_and_in_use_and_unseen_in_training(tmp_path: Path, gloss: Any):
    prepared = PreparedPairs.make(recipe(make_data_section(tmp_path, gloss=gloss)), tmp_path / "prepared")
    assert isinstance(prepared.dictionary, PhraseDictionary if gloss == "phrases" else WordDictionary)
    sources = {split: prepared.stores(split).source for split in ("train", "valid")}
    translator = replace(
        tiny_translator(),
        source=prepared.source_tokenizer,
        target=prepared.target_tokenizer,
        dictionary=prepared.dictionary,
    )
    for place, (text, _) in enumerate(VALID):
        read = sources["valid"].document(place).tolist()
        assert translator.source_ids(text) == [*read, translator.source.eos_id]
        assert translator.source.decode(read) == f"{text} = {prepared.dictionary.translate(text)}"
    for place, (text, _) in enumerate(TRAIN):
        assert translator.source.decode(sources["train"].document(place).tolist()).startswith(f"{text} = ")
    assert translator.source_ids("  ") == []


@pytest.mark.parametrize("gloss", [True, "phrases"])
def test_other_pairs_are_glossed_by_the_dictionary_they_are_given(tmp_path: Path, gloss: Any):
    own = PreparedPairs.make(recipe(make_data_section(tmp_path, gloss=gloss)), tmp_path / "prepared")
    tokenizer = {"type": "byte_level", "vocab_size": 300, "path": str(own.folder / "tokenizer")}
    data = make_data_section(tmp_path, gloss=gloss, tokenizer=tokenizer, valid=[("the word", "शब्द है")])
    other = PreparedPairs.make(recipe(data, ("valid",), own.dictionary), tmp_path / "other")
    assert other.dictionary == own.dictionary
    read = other.source_tokenizer.decode(other.stores("valid").source.document(0).tolist())
    assert own.dictionary is not None
    assert read == f"the word = {own.dictionary.translate('the word')}"


def test_one_tokenizer_of_both_sides_or_one_of_each(tmp_path: Path):
    joint = PreparedPairs.make(recipe(make_data_section(tmp_path)), tmp_path / "joint")
    assert joint.source_tokenizer is joint.target_tokenizer
    separate = make_data_section(tmp_path, target_tokenizer={"type": "character", "vocab_size": 300})
    own = PreparedPairs.make(recipe(separate), tmp_path / "joint")
    assert own.target_tokenizer.vocab_size < 300
    assert own.source_tokenizer.fingerprint != joint.source_tokenizer.fingerprint
    assert "शब्द" not in own.source_tokenizer.to_json()
    assert own.stores("train").target.tokenizer_fingerprint == own.target_tokenizer.fingerprint
    again = PreparedPairs.make(recipe(make_data_section(tmp_path)), tmp_path / "joint")
    assert again.target_tokenizer is again.source_tokenizer
    paths = {"path": str(tmp_path / "joint" / "tokenizer")}
    given = PreparedPairs.make(
        recipe(make_data_section(tmp_path, TRAIN[:3], tokenizer=paths), ("valid",)), tmp_path / "given"
    )
    assert given.source_tokenizer.fingerprint == Tokenizer.load(tmp_path / "joint" / "tokenizer").fingerprint
    assert given.about["statistics"].keys() == {"valid"}


def test_the_fingerprint_changes_with_what_decides(tmp_path: Path):
    marks = {fingerprint(make_data_section(tmp_path))}
    changes: list[dict[str, Any]] = [
        {"corpus": {"source_column": "hi", "target_column": "en"}},
        {"corpus": {"training_references": "first"}},
        {"corpus": {"max_length_ratio": 2.0}},
        {"tokenizer": {"vocab_size": 301}},
        {"target_tokenizer": {"vocab_size": 300}},
        {"max_source_length": 64},
        {"max_target_length": 64},
    ]
    for number, change in enumerate(changes, start=2):
        data = make_data_section(tmp_path)
        corpus = data.corpus.model_copy(update=change.pop("corpus", {}))
        marks.add(fingerprint(Seq2SeqDataConfig(**{**data.model_dump(), "corpus": corpus, **change})))
        assert len(marks) == number
    data = make_data_section(tmp_path)
    assert fingerprint(data.model_copy(update={"decoding": {"method": "beam"}})) == fingerprint(data)
    before = fingerprint(data)
    (tmp_path / "train.jsonl").write_text('{"en": "x", "hi": "y"}\n')
    assert fingerprint(data) != before


def test_what_was_interrupted_is_done_again(tmp_path: Path):
    data, folder = make_data_section(tmp_path), tmp_path / "prepared"
    PreparedPairs.make(recipe(data), folder)
    complete = tiny_runs.hashes(folder)
    (folder / PREPARED_FILE).unlink()
    (folder / "train" / "pairs.jsonl").write_bytes(b"half")
    (folder / "train" / ".source.999999.tmp").mkdir()
    (folder / "valid" / ".target.999999.old").mkdir()
    PreparedPairs.make(recipe(data), folder)
    assert tiny_runs.hashes(folder) == complete
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


def test_runs_share_a_cache_and_one_that_has_begun_keeps_its_data(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    data = make_data_section(tmp_path, cache_dir=str(tmp_path / "cache"))
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    prepare_for_run(recipe(data), run, data.cache_dir)
    assert (run / "prepared").resolve().parent == (tmp_path / "cache").resolve()
    (run / "metrics.jsonl").write_text("")
    (tmp_path / "train.jsonl").unlink()
    with caplog.at_level(logging.WARNING, "vaak"):
        prepare_for_run(recipe(data), run, data.cache_dir)
    assert "the corpus may have changed since this run started" in caplog.text
    with pytest.raises(UserError, match="a greatest length in data has other options than this run was started with"):
        prepare_for_run(recipe(data.model_copy(update={"max_source_length": 9})), run, data.cache_dir)


def test_filters_count_what_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    character = {"type": "character", "vocab_size": 300, "min_frequency": 1}
    train = [("a" * n, "b" * m) for n in (1, 3, 9, 10) for m in (1, 4, 8, 9)]
    data = make_data_section(
        tmp_path,
        train,
        [("aa", "ab")],
        tokenizer=character,
        max_source_length=10,
        max_target_length=9,
        corpus={"max_length_ratio": 3.0},
    )
    with caplog.at_level(logging.INFO, "vaak"):
        prepared = PreparedPairs.make(recipe(data), tmp_path / "prepared")
    kept = PairDataset(prepared, "train", data)
    expected = [
        (s, t) for s, t in train if len(s) < 10 and len(t) < 9 and len(s) <= 3 * len(t) and len(t) <= 3 * len(s)
    ]
    pairs = prepared.stores("train").pairs
    assert [(pairs[place].source, pairs[place].targets[0]) for place in kept.indices] == expected
    dropped = prepared.about["statistics"]["train"]["dropped"]
    assert dropped == {
        "source longer than max_source_length (10)": 4,
        "target longer than max_target_length (9)": 3,
        "one side longer than 3 times the other (max_length_ratio)": 3,
    }
    assert prepared.about["statistics"]["train"]["pairs"] == len(expected) == len(train) - sum(dropped.values())
    assert "train: dropped 4: source longer than max_source_length (10); 3: target longer" in caplog.text


def test_a_given_evaluation_source_that_is_too_long_is_an_error(tmp_path: Path):
    character = {"type": "character", "vocab_size": 300, "min_frequency": 1}
    valid = [("short", "छोटा"), ("a source too long", "लंबा"), ("too long", "लंबा")]
    data = make_data_section(tmp_path, [("a", "अ"), ("b", "ब")], valid, tokenizer=character, max_source_length=6)
    message = (
        r"valid\.jsonl:2: the source has 18 tokens, more than data\.max_source_length \(6\), the longest of 2 such in "
        r"valid; evaluation skips none: raise data\.max_source_length to 18, or shorten them$"
    )
    with pytest.raises(DataError, match=message):
        PreparedPairs.make(recipe(data), tmp_path / "prepared")
    with pytest.raises(DataError, match="no prepared data"):
        PreparedPairs.open(tmp_path / "prepared")
    raised = data.model_copy(update={"max_source_length": 18})
    prepared = PreparedPairs.make(recipe(raised), tmp_path / "prepared")
    assert len(PairDataset(prepared, "valid", raised).lengths) == 3
    with pytest.raises(DataError, match=message):  # other limits than were prepared leave none out, either
        PairDataset(prepared, "valid", data)


def test_cut_evaluation_splits_are_without_long_sources_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    character = {"type": "character", "vocab_size": 300, "min_frequency": 1}
    train = [("a" * length + str(number), f"b{length} {number}") for length in (1, 20) for number in range(60)]
    fractions = {"valid_fraction": 0.3, "train_fraction": 0.6}
    data = make_data_section(tmp_path, train, (), tokenizer=character, max_source_length=10, corpus=fractions)
    with caplog.at_level(logging.INFO, "vaak"):
        prepared = PreparedPairs.make(recipe(data), tmp_path / "prepared")
    assert set(prepared.cut_splits) == {"valid", "test"}
    for split, metrics in prepared.about["statistics"].items():
        dataset = PairDataset(prepared, split, data)
        long = [len(pair.source) >= 10 for pair in dataset.pairs]
        assert 0 < sum(long) < len(long)
        assert dataset.indices.tolist() == np.flatnonzero(np.logical_not(long)).tolist()
        assert metrics["dropped"] == {"source longer than max_source_length (10)": sum(long)}
        (record,) = (record for record in caplog.records if record.message.startswith(f"{split}: dropped"))
        assert record.levelname == ("INFO" if split == "train" else "WARNING")
    assert sum(len(prepared.stores(split).pairs) for split in ("train", "valid", "test")) == len(train)


def test_a_long_evaluation_target_stays_with_its_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    data = make_data_section(tmp_path, valid=[("word", "शब्द " * 30), ("new", "है")], max_target_length=12)
    with caplog.at_level(logging.WARNING, "vaak"):
        prepared = PreparedPairs.make(recipe(data), tmp_path / "prepared")
    assert "valid: 1 targets are longer than data.max_target_length (12): the loss uses their" in caplog.text
    assert prepared.about["statistics"]["valid"]["shortened_targets"] == 1
    dataset = PairDataset(prepared, "valid", data)
    long, short = (dataset.example(index, np.random.default_rng(0)) for index in range(2))
    eos = prepared.target_tokenizer.eos_id
    assert (len(long.inputs), len(long.targets)) == (12, 12)
    assert eos not in long.targets
    assert short.targets[-1] == eos
    assert long.targets.tolist() == dataset.target.document(0)[:12].tolist()
    assert long.references == [("शब्द " * 30).strip()]


def test_all_pairs_dropped_is_an_error(tmp_path: Path):
    message = r"train is empty: all its pairs were dropped \(40: source longer than max_source_length \(2\)\)"
    with pytest.raises(DataError, match=message):
        PreparedPairs.make(
            recipe(make_data_section(tmp_path, valid=[("a", "x")], max_source_length=2)), tmp_path / "prepared"
        )


def test_swapped_columns_are_an_error_and_another_script_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    swapped = [(target, source) for source, target in TRAIN]
    with pytest.raises(DataError, match="en has DEVANAGARI letters and hi has LATIN letters: the columns are swap"):
        PreparedPairs.make(recipe(make_data_section(tmp_path, swapped, valid=None)), tmp_path / "swapped")
    assert not (tmp_path / "swapped" / PREPARED_FILE).exists()
    with caplog.at_level(logging.WARNING, "vaak"):
        PreparedPairs.make(recipe(make_data_section(tmp_path)), tmp_path / "right")
        assert "letters" not in caplog.text
        romanised = [(source, f"shabd {number} hai") for number, (source, _) in enumerate(TRAIN)]
        PreparedPairs.make(recipe(make_data_section(tmp_path, romanised, valid=None)), tmp_path / "romanised")
    assert "hi has LATIN letters; expected LATIN and DEVANAGARI" in caplog.text


def test_the_grammar_is_prepared_without_any_file(tmp_path: Path):
    data = Seq2SeqDataConfig.model_validate({"corpus": {"num_sentences": 300}, "tokenizer": {"vocab_size": 400}})
    prepared = PreparedPairs.make(recipe(data), tmp_path / "prepared")
    assert prepared.about["statistics"].keys() == {"train", "valid", "test"}
    assert prepared.about["statistics"]["valid"]["pairs"] == 15


@pytest.mark.slow
def test_real_pairs_of_two_sets(vaak_data, tmp_path: Path):
    folder = vaak_data("translation") / "en-hi"
    files = {
        split: [str(folder / f"{name}.{split}.jsonl") for name in ("tatoeba", "tico19")]
        for split in ("train", "valid", "test")
    }
    data = Seq2SeqDataConfig.model_validate(
        {"corpus": {"type": "json", **files}, "tokenizer": {"vocab_size": 4000}, "max_source_length": 256}
    )
    prepared = PreparedPairs.make(recipe(data), tmp_path / "prepared")
    statistics = prepared.about["statistics"]
    assert (statistics["valid"]["pairs"], statistics["test"]["pairs"]) == (201 + 318, 251 + 420)
    assert statistics["train"]["pairs"] + sum(statistics["train"]["dropped"].values()) == 2500 + 2333
    dataset = PairDataset(prepared, "test", data)
    assert "tatoeba.test.jsonl:1" in dataset.describe(0)
    assert "tico19.test.jsonl:1" in dataset.describe(251)


TWO_TOKENIZERS = """\
task: seq2seq
model: {encoder: {d_model: 16, num_layers: 1, num_heads: 2}, decoder: {d_model: 16, num_layers: 1, num_heads: 2}}
data:
  corpus: {type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl]}
  tokenizer: {type: byte_level, vocab_size: 300}
  target_tokenizer:
    type: byte_level
    vocab_size: 100
training: {max_steps: 1, device: cpu}
"""


@pytest.mark.parametrize("command", [["train"], ["data", "check"], ["data", "preprocess"], ["find-lr"]])
def test_a_vocabulary_that_is_too_small_is_named_with_its_line(
    tmp_path: Path, command: list[str], vaak: Callable[..., tuple[int, str, str]]
):
    make_data_section(tmp_path)
    (tmp_path / "two.yml").write_text(TWO_TOKENIZERS.replace("FOLDER", str(tmp_path)))
    run = (f"run_dir={tmp_path / 'run'}",)
    code, _, errors = vaak(*command, tmp_path / "two.yml", *run)
    assert code == 2
    said = errors.splitlines()[-1]
    assert said.startswith(f"{tmp_path / 'two.yml'}:8: data.target_tokenizer.vocab_size: 100 is too small"), said
    given = ("data.target_tokenizer.vocab_size=400", "data.tokenizer.vocab_size=90")
    code, _, errors = vaak(*command, tmp_path / "two.yml", *run, *given)
    assert code == 2
    assert errors.splitlines()[-1].startswith("command line: data.tokenizer.vocab_size: 90 is too small")


def test_of_several_tasks_the_one_is_named(tmp_path: Path, vaak: Callable[..., tuple[int, str, str]]):
    make_data_section(tmp_path)
    (tmp_path / "two.yml").write_text(TWO_TOKENIZERS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "tasks.yml").write_text(
        f"task: multitask\nrun_dir: {tmp_path / 'run'}\ndata:\n  tasks:\n"
        "    back: {extends: two.yml, data: {target_tokenizer: {vocab_size: 400}}}\n    there: two.yml\n"
        "training: {max_steps: 1, device: cpu}\n"
    )
    code, _, errors = vaak("train", tmp_path / "tasks.yml")
    assert code == 2
    expected = f"{tmp_path / 'tasks.yml'}:6: data.tasks.there.data.target_tokenizer.vocab_size: 100 is too small"
    assert errors.splitlines()[-1].startswith(expected)
