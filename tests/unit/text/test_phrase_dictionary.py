"""A dictionary of phrases: spans by their definition, glosses by dictionaries that don't know the sentence."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.text import word_dictionary
from vaak.text.phrase_dictionary import (
    MOST_WORDS,
    AlignedPairs,
    PhraseDictionary,
    find_phrases,
    grow_alignment,
    load_dictionary,
)
from vaak.text.word_dictionary import FOLDS, ROUNDS, Links, translations_by_others

PAIRS = [
    ("the old house", "पुराना मकान"),
    ("the old house is big", "पुराना मकान बड़ा है"),
    ("the boy is big", "लड़का बड़ा है"),
    ("the old boy", "बूढ़ा लड़का"),
    ("a house", "एक घर"),
    ("a boy", "एक लड़का"),
]


def by_definition(links: set[tuple[int, int]], num_source: int, num_target: int) -> set[tuple]:
    """All spans, tried one by one (Koehn, Och and Marcu 2003, section 3.1)."""
    spans = product(range(num_source), range(1, num_source + 1), range(num_target), range(1, num_target + 1))
    return {
        ((a, b), (c, d))
        for a, b, c, d in spans
        if 0 < b - a <= MOST_WORDS
        and 0 < d - c <= MOST_WORDS + 1
        and any(a <= source < b and c <= target < d for source, target in links)
        and all((a <= source < b) == (c <= target < d) for source, target in links)
    }


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 8))))
def test_phrases_are_those_of_the_definition(links):
    found = list(find_phrases(links, 8, 9))
    assert set(found) == by_definition(links, 8, 9)
    assert len(found) == len(set(found))


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_an_alignment_has_what_both_directions_have_and_nothing_that_neither_has(num_source, num_target, data):
    forward = data.draw(st.lists(st.integers(-1, num_source - 1), min_size=num_target, max_size=num_target))
    backward = data.draw(st.lists(st.integers(-1, num_target - 1), min_size=num_source, max_size=num_source))
    given_links = {(source, place) for place, source in enumerate(forward) if source >= 0}
    taken = {(place, target) for place, target in enumerate(backward) if target >= 0}
    found = grow_alignment(forward, backward)
    assert given_links & taken <= found <= given_links | taken


def test_a_link_of_one_direction_is_taken_next_to_one_of_both_where_a_word_has_none():
    assert grow_alignment([0, 1, -1, 0], [0, 1]) == {(0, 0), (1, 1)}  # the fourth target word is far from the others
    assert grow_alignment([0, 1, 1], [0, 1]) == {(0, 0), (1, 1), (1, 2)}
    assert grow_alignment([-1, 0], [-1, 0, -1]) == {(1, 0), (0, 1)}  # of no common link, those of words without any


def test_phrases_are_translated_as_they_were_seen():
    dictionary = AlignedPairs(PAIRS).dictionary(10)
    assert dictionary.translate("The old house is big") == "पुराना मकान बड़ा है"
    by_word = Links(PAIRS).dictionary(10)
    assert dictionary.translate("the old boy") == "बूढ़ा लड़का" != by_word.translate("the old boy")
    assert dictionary.translate("the unknown boy!").split()[-2:] == ["unknown", "लड़का!"]


def test_the_highest_sum_of_scores_decides_where_a_text_is_divided():
    entries = {"a": ("1", -3.0), "b": ("2", -3.0), "c": ("3", -1.0), "a b": ("12", -2.0), "b c": ("23", -4.5)}
    assert PhraseDictionary(entries).translate("a b c") == "12 3"
    assert PhraseDictionary(entries | {"b c": ("23", 1.0)}).translate("A B C") == "1 23"


def test_a_gloss_is_by_a_dictionary_that_does_not_know_its_sentence():
    pairs = [(f"the word{number}", f"शब्द{number}") for number in range(2 * FOLDS)]
    for number, gloss in enumerate(translations_by_others(AlignedPairs(pairs))):
        assert f"word{number}" in gloss.split()
        assert f"शब्द{number}" not in gloss.split()
    assert "शब्द0" in AlignedPairs(pairs).dictionary(ROUNDS).translate(pairs[0][0])


def test_the_case_of_letters_that_change_their_number_disturbs_nothing():
    pairs = [("İstanbul is big", "İstanbul büyük"), ("big", "büyük")] * 2
    assert AlignedPairs(pairs).dictionary(ROUNDS).translate("Big") == "büyük"
    assert len(list(translations_by_others(AlignedPairs(pairs)))) == 4


def test_of_very_many_pairs_the_first_ones_are_counted_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(word_dictionary, "MOST_LINKS", 60)
    many = [*PAIRS, *[("old", "x")] * 100]
    AlignedPairs(many)
    assert [message.partition(" are counted")[0] for message in caplog.messages] == ["dictionary: 4 of 106 pairs"]
    assert AlignedPairs(many).dictionary(10) == AlignedPairs([*PAIRS, *[("old", "x")] * 2]).dictionary(10)
    assert len(list(translations_by_others(AlignedPairs(many)))) == len(many)


def test_it_comes_back_as_it_was_saved(tmp_path: Path):
    dictionary = AlignedPairs(PAIRS).dictionary(ROUNDS)
    dictionary.save(tmp_path / "dictionary.json")
    assert load_dictionary(tmp_path / "dictionary.json") == dictionary


def test_nothing_gives_nothing():
    assert AlignedPairs([]).dictionary(ROUNDS).translate("Hello.") == "Hello."
    assert AlignedPairs([("", ""), ("a", "")]).dictionary(ROUNDS).translate("a") == "a"
    assert list(translations_by_others(AlignedPairs([]))) == []
