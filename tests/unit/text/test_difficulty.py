"""Each measure of difficulty (length, rare words, inflection) calls the right texts hard, and no others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.text.difficulties import (
    MEASURES,
    WordCounts,
    difficulty_stages,
    kept_difficulties,
    measure_difficulties,
    sort_by_difficulty,
    stem,
)
from vaak.text.grammar import sentences

TEXTS = st.lists(st.text("कखा ीोंa।\n", max_size=20), min_size=1, max_size=20)


def test_seed_4s_sort_is_by_words():
    texts = ["एक दो तीन", "एक", "चार", "एक दो"]
    assert sort_by_difficulty(texts) == sorted(texts, key=lambda text: len(text.split()))


@pytest.mark.parametrize("measure", ["length", "lexical"])
@given(texts=TEXTS)
def test_sorting_keeps_every_text_and_never_falls(measure, texts):
    ordered = sort_by_difficulty(texts, measure)
    assert sorted(ordered) == sorted(texts)
    assert sorted(measure_difficulties(texts, measure)) == measure_difficulties(ordered, measure)
    stages = difficulty_stages(texts, measure)
    assert [text for stage in stages for text in stage] == ordered
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@given(texts=TEXTS)
def test_a_words_rarity_is_its_stems_and_its_inflections(texts):
    """-log p(word) = -log p(stem) - log p(word | stem)."""
    counts = WordCounts(texts)
    for word in counts.words:
        rarity_of_stem = math.log2(counts.words.total() / counts.stems[stem(word)])
        assert counts.lexical(word) == pytest.approx(rarity_of_stem + counts.morphology(word), abs=1e-9)
        assert counts.morphology(word) >= 0


def test_rare_words_are_hard_and_length_alone_is_not():
    texts = ["वह घर गया", "वह घर गया वह घर गया", "वह घर पुस्तकालय"]
    short, doubled, rare = measure_difficulties(texts, "lexical")
    assert short == pytest.approx(doubled)
    assert rare > short


def test_a_rare_form_of_a_frequent_word_is_hard_for_morphology_and_a_rare_word_is_not():
    texts = ["लड़का"] * 9 + ["लड़कियों", "पुस्तकालय"]
    *_, inflected, rare = measure_difficulties(texts, "morphology")
    assert inflected == pytest.approx(math.log2(10))
    assert rare == 0
    lexical = measure_difficulties(texts, "lexical")
    assert lexical[-1] == lexical[-2]


def test_punctuation_and_capitals_are_not_words():
    counts = WordCounts(["“Then he went.”", "then, — he WENT!"])
    assert counts.words == {"then": 2, "he": 2, "went": 2}
    assert counts.lexical("— ।") == 0


def test_both_spellings_of_a_nasal_vowel_are_one_ending():
    assert stem("किताबें") == stem("किताब")
    assert stem("नदियाँ") == stem("नदियां") == stem("नदी")


def test_the_grammars_forms_mostly_share_their_stems():
    counts = WordCounts(sentences("train", 2000, 0))
    assert counts.has_inflection
    assert len(counts.stems) < 0.8 * len(counts.words)


def test_what_cannot_be_measured_is_said():
    with pytest.raises(UserError, match="unknown difficulty depth; choose from length, lexical, morphology"):
        sort_by_difficulty(["a"], "depth")
    with pytest.raises(UserError, match="morphology requires Hindi inflection"):
        sort_by_difficulty(["walk walks walked"], "morphology")


@pytest.mark.parametrize("measure", MEASURES)
def test_no_texts_are_no_difficulty(measure):
    if measure != "morphology":
        assert sort_by_difficulty([], measure) == []
        assert difficulty_stages([], measure) == [[], [], []]


def test_difficulties_that_can_not_be_kept_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").touch()
    found = kept_difficulties(tmp_path / "file", "key", "lexical", lambda: iter(["a b", "a"]), 2)
    assert len(found) == 2
    assert "can't be written (Not a directory): difficulties are measured again next time" in caplog.text
