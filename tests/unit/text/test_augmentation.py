"""Augmented texts: a function of text and key; negations stay; synonyms from a file, vectors or WordNet."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.text.augmentation import (
    TECHNIQUES,
    Augmenter,
    DataAugmenter,
    NeighbourSynonyms,
    listed_synonyms,
    wordnet_synonyms,
)


def synonyms(word: str) -> list[str]:
    return [f"{word}_1", f"{word}_2"]


words = st.lists(st.sampled_from(["a", "b", "c", "d", "not", "don't", "नहीं"]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(words, st.integers(0, 2**32 - 1), st.sampled_from(TECHNIQUES))
def test_negations_stay_and_the_same_key_gives_the_same_text(given_words: list[str], key: int, technique: str):
    augmenter = Augmenter([technique], 0.7, synonyms)
    found = augmenter(" ".join(given_words), np.random.default_rng(key)).split()
    assert found == augmenter(" ".join(given_words), np.random.default_rng(key)).split()
    kept = ["not", "don't", "नहीं"]
    assert [word for word in found if word in kept] == [word for word in given_words if word in kept]
    if technique in ("synonym_replacement", "random_swap"):
        assert [place for place, word in enumerate(found) if word in kept] == [
            place for place, word in enumerate(given_words) if word in kept
        ]
    sizes = {"random_deletion": range(1, len(given_words) + 1), "random_insertion": range(len(given_words), 25)}
    assert len(found) in sizes.get(technique, (len(given_words),))


def test_the_rate_of_changes_is_the_probability():
    text, rng = " ".join(["w"] * 4000), np.random.default_rng(0)
    found = Augmenter(["synonym_replacement"], 0.1, synonyms)(text, rng).split()
    assert sum(word != "w" for word in found) == pytest.approx(400, abs=80)
    assert {"w_1", "w_2"} < set(found)
    unguarded = Augmenter(["random_deletion"], 0.1, keep_negation=False)
    assert len(unguarded(text.replace("w", "not"), rng).split()) == pytest.approx(3600, abs=80)


def test_a_technique_left_out_changes_no_other_draw():
    text, rest = "a b c d e f g h", ("random_swap", "random_deletion")
    both = Augmenter(rest, 0.5)(text, np.random.default_rng(3))
    inserting_nothing = Augmenter(("random_insertion", *rest), 0.5, lambda word: ())(text, np.random.default_rng(3))
    assert both == inserting_nothing != text


def test_the_research_kits_call(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    data = [{"text": "one two three four", "label": 0}, {"text": "five six seven", "label": 1}]
    found = DataAugmenter(augmentation_prob=0.9).augment_dataset(data=data, text_column="text", augmentation_factor=2)
    assert "requires nltk" in caplog.text
    assert found[:2] == data
    assert [row["label"] for row in found] == [0, 1, 0, 1, 0, 1]
    assert len({row["text"] for row in found}) > 4
    again = DataAugmenter(augmentation_prob=0.9).augment_dataset(data=data, text_column="text", augmentation_factor=2)
    assert found == again
    with pytest.raises(UserError, match="row 0: no column 'body'; give text_column"):
        DataAugmenter(techniques=["random_swap"]).augment_dataset(data, "body")


def test_a_frame_stays_a_frame():
    pandas = pytest.importorskip("pandas")
    found = DataAugmenter(techniques=["random_swap"]).augment_dataset(pandas.DataFrame({"text": ["a b"], "label": [1]}))
    assert list(found.columns) == ["text", "label"]
    assert len(found) == 2


def test_wordnet_where_it_is_and_where_it_isnt(monkeypatch: pytest.MonkeyPatch):
    lemma = SimpleNamespace(name=lambda: "motor_car")
    wordnet = SimpleNamespace(
        ensure_loaded=lambda: None, synsets=lambda word: [SimpleNamespace(lemmas=lambda: [lemma])]
    )
    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=wordnet))
    assert list(wordnet_synonyms()("car")) == ["motor car"]
    wordnet.ensure_loaded = lambda: (_ for _ in ()).throw(LookupError("long story"))
    with pytest.raises(UserError, match=r"nltk has no WordNet \(python -m nltk.downloader wordnet\); or give a file"):
        wordnet_synonyms()
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(UserError, match=r"wordnet requires nltk \(pip install nltk\); or give a file as synonyms"):
        wordnet_synonyms()


def test_synonyms_of_a_file_and_of_vectors(tmp_path: Path):
    (tmp_path / "s.txt").write_text("Big, large\thuge\nsmall,little\n")
    found = listed_synonyms(tmp_path / "s.txt")
    assert found("big") == ["large", "huge"]
    assert found("unknown") == ()
    (tmp_path / "none.txt").write_text("alone\n")
    with pytest.raises(UserError, match="has no line with two words"):
        listed_synonyms(tmp_path / "none.txt")
    vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [np.nan, np.nan], [-1, 0]])
    near = NeighbourSynonyms(["a", "b", "c", "d", "e"], vectors)
    assert near("a") == ["b"]
    assert near("d") == []


def test_mistakes_have_one_line():
    with pytest.raises(UserError, match="unknown technique 'back_translation'; choose from synonym_replacement"):
        Augmenter(["back_translation"], 0.1)
    with pytest.raises(UserError, match="synonym_replacement needs synonyms; give some, or leave it out"):
        Augmenter(["synonym_replacement"], 0.1)
