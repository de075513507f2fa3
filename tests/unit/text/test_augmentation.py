"""Augmented texts: a function of text and key; negations stay; synonyms from a file, vectors or WordNet."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.text.augmentation import (
    TECHNIQUES,
    Augmenter,
    DataAugmenter,
    NeighbourSynonyms,
    is_negation,
    listed_synonyms,
    wordnet_synonyms,
)


def synonyms(word: str) -> list[str]:
    return [f"{word}_1", f"{word}_2"]


words = st.lists(st.sampled_from(["a", "b", "c", "d", "not", "don't", "नहीं"]), min_size=1, max_size=12)


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


NEGATIVE = re.compile(  # independent of the module's own lists: what the sentences below negate with
    r"\b(?:not|no|never|none|nobody|nothing|neither|nor|cannot|without|hardly|dont|cant|isnt|wont|didnt)\b"
    r"|\w+n['’]t\b|नहीं|(?<![\u0900-\u0963])(?:बिना|मत)(?![\u0900-\u0963])",
    re.IGNORECASE,
)
ENGLISH = {
    "start": ["", "Well, ", "“", "(", "He said: '", "- "],
    "negated": [
        *("isn't", "isn’t", "ISN'T", "isnt", "is not", "is hardly", "is never", "is no", "can't be", "cannot be"),
        *("dont", "Cant", "won't", "wont", "didnt", "couldn't", "is neither", "is without", "is nothing"),
    ],
    "between": [". ", ", ", "; ", "! ", "—", "... ", "/", " :( ", "?! "],
    "end": ["good.", "worth it!", "a (great) film”", "fun; really", "not.", "(not)", "no!", "No, it isn't."],
}
HINDI = {
    "start": ["", "“", "अरे, ", "("],
    "negated": ["अच्छी नहीं", "नहीं", "“नहीं”", "(नहीं)", "बिना", "मत"],
    "between": ["। ", ", ", " — ", "!", "।", "… "],
    "end": ["है।", "देखो!", "नहीं।", "नहीं, नहीं।", "चलो?", "मत।"],
}


def negated_sentences(number: int) -> list[str]:
    """Half of them English, half Hindi; each has a negation, which touches all kinds of punctuation."""
    found = []
    for parts, subjects in ((ENGLISH, ["It", "The film", "This"]), (HINDI, ["यह फ़िल्म", "वह", "कहानी"])):
        every = list(itertools.product(parts["start"], subjects, parts["negated"], parts["between"], parts["end"]))
        chosen = random.Random(0).sample(every, number // 2)
        found += [f"{start}{subject} {negated}{between}{end}" for start, subject, negated, between, end in chosen]
    return found


@pytest.mark.parametrize("techniques", [*[[technique] for technique in TECHNIQUES], list(TECHNIQUES)])
def test_of_300_sentences_of_both_languages_none_loses_or_gains_a_negation(techniques: list[str]):
    def replacements(word: str) -> list[str]:
        return ["other", "not " + word, "kein"]

    augmenter, changed = Augmenter(techniques, 0.4, replacements), 0
    for number, sentence in enumerate(negated_sentences(300)):
        before = NEGATIVE.findall(sentence)
        assert before, sentence
        for draw in range(3):
            found = augmenter(sentence, np.random.default_rng([number, draw]))
            assert NEGATIVE.findall(found) == before, (sentence, found)
            changed += found != sentence
    assert changed > 300


def test_negations_are_lost_where_they_need_not_stay():
    augmenter = Augmenter(["random_deletion"], 0.4, keep_negation=False)
    sentences = negated_sentences(1000)
    found = [augmenter(sentence, np.random.default_rng(number)) for number, sentence in enumerate(sentences)]
    assert any(NEGATIVE.findall(after) != NEGATIVE.findall(one) for after, one in zip(found, sentences, strict=True))


@pytest.mark.parametrize("language", [pytest.param("english", marks=pytest.mark.slow), "hindi"])
def test_real_sentences_keep_their_negations(vaak_data: Callable[[str], Path], language: str):
    if language == "english":
        rows = json.loads((vaak_data("classification") / "sentence_polarity/test.json").read_text(encoding="utf-8"))
        sentences = [row["text"] for row in rows]
    else:
        texts = [file.read_text(encoding="utf-8") for file in sorted(vaak_data("hindi").glob("*.txt"))]
        sentences = [line for line in "\n".join(texts).splitlines() if "नहीं" in line][:1000]
    assert len(sentences) >= 1000
    augmenter = Augmenter(TECHNIQUES, 0.3, synonyms)
    for number, sentence in enumerate(sentences):
        found = augmenter(sentence, np.random.default_rng(number))
        assert NEGATIVE.findall(found) == NEGATIVE.findall(sentence), (sentence, found)


def test_words_that_negate():
    english = "no No, NOT! (not) not/never no-one don't don’t don`t couldn't've n't nt Hardly. nooo nothing's dont Cant"
    hindi = "नहीं। “नहीं” नहीँ नही मत! ग़ैर-ज़रूरी नहींः nahi"
    assert [word for word in f"{english} {hindi}".split() if not is_negation(word)] == []


def test_words_that_do_not():
    others = "note north know, canton wonton naan नहाना मतलब, बिनाई नाम ग़ैरत . ।"
    assert [word for word in others.split() if is_negation(word)] == []


def test_words_next_to_punctuation_get_synonyms_and_keep_capitals_and_signs():
    known = {"good": ["fine"], "अच्छी": ["बढ़िया"]}
    found = Augmenter(["synonym_replacement"], 0.999, lambda word: known.get(word, []))
    rng = np.random.default_rng(0)
    assert found("Good, “good”! GOOD... (good) अच्छी।", rng) == "Fine, “fine”! FINE... (fine) बढ़िया।"


def test_punctuation_stays_where_words_leave():
    swapped = {Augmenter(["random_swap"], 0.5)("(a) b, c!", np.random.default_rng(key)) for key in range(50)}
    assert {re.sub(r"\w", "x", one) for one in swapped} == {"(x) x, x!"}
    assert len(swapped) == 6
    deleted = {Augmenter(["random_deletion"], 0.5)("a is b? No!", np.random.default_rng(key)) for key in range(50)}
    assert "a is? No!" in deleted
    assert all(one.endswith("No!") for one in deleted)


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


def test_the_kits_synonyms_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "words.txt").write_text("good,fine\n")
    for file in (tmp_path / "words.txt", str(tmp_path / "words.txt")):
        augmenter = DataAugmenter(0.999, ["synonym_replacement"], synonyms=file)
        assert augmenter.augment_dataset([{"text": "Good."}])[1] == {"text": "Fine."}
    with pytest.raises(UserError, match=r"synonyms: .*missing.txt can't be read"):
        DataAugmenter(synonyms=tmp_path / "missing.txt")
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(UserError, match=r"^synonyms: wordnet requires nltk"):
        DataAugmenter(synonyms="wordnet")


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
    with pytest.raises(
        UserError, match=r"wordnet requires nltk \(pip install 'vaak\[augmentation\]'\); or give a file as synonyms"
    ):
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
