"""A dictionary of words: Model 1 as the paper writes it, and glosses by dictionaries that don't know the sentence."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.text import word_dictionary
from vaak.text.phrase_dictionary import load_dictionary
from vaak.text.word_dictionary import FOLDS, ROUNDS, Links, assign_folds, translations_by_others, words

PAIRS = [("the home", "घर"), ("the old home", "पुराना घर"), ("the old boy", "पुराना लड़का"), ("a boy", "लड़का")]


def by_the_paper(pairs: list[tuple[str, str]], rounds: int) -> dict[str, dict[str, float]]:
    """t(target word | source word), as in Brown et al. 1993, section 4.1."""
    table: dict[str, dict[str, float]] = defaultdict(dict)
    split = [(["", *words(source.lower())], words(target)) for source, target in pairs]
    for sources, targets in split:
        for word in sources:
            table[word].update(dict.fromkeys(targets, 1.0))
    for _ in range(rounds):
        counts = {word: dict.fromkeys(row, 0.0) for word, row in table.items()}
        for sources, targets in split:
            for target in targets:
                total = sum(table[word][target] for word in sources)
                for word in sources:
                    counts[word][target] += table[word][target] / total
        for word, row in counts.items():
            table[word] = {target: value / sum(row.values()) for target, value in row.items()}
    return dict(table)


@given(st.lists(st.tuples(*[st.lists(st.sampled_from("abcde"), max_size=5)] * 2), max_size=8), st.integers(1, 6))
def test_the_most_probable_word_is_that_of_the_paper(drawn: list[tuple[list[str], list[str]]], rounds: int):
    pairs = [(" ".join(source), " ".join(target).upper()) for source, target in drawn]
    table = by_the_paper(pairs, rounds)
    found = Links(pairs).dictionary(rounds).entries
    assert set(found) == {word for word, row in table.items() if word and row}
    for word, translation in found.items():
        assert table[word][translation] == pytest.approx(max(table[word].values()), rel=1e-9)


def test_words_are_told_apart_by_the_company_they_keep():
    entries = Links(PAIRS).dictionary(10).entries
    assert {word: entries[word] for word in ("home", "old", "boy")} == {"home": "घर", "old": "पुराना", "boy": "लड़का"}


def test_a_gloss_is_by_a_dictionary_that_does_not_know_its_sentence():
    pairs = [(f"the word{number}", f"शब्द{number}") for number in range(2 * FOLDS)]
    glosses = list(translations_by_others(Links(pairs)))
    for number, gloss in enumerate(glosses):  # every word is only in its own pair, so no other knows it
        assert f"word{number}" in gloss.split()
        assert f"शब्द{number}" not in gloss.split()
    assert f"शब्द{0}" in Links(pairs).dictionary(ROUNDS).translate(pairs[0][0])
    assert list(translations_by_others(Links(pairs))) == glosses


def test_a_repeated_sentence_is_unknown_to_the_dictionary_of_its_gloss():
    """Each was in another fold than its repetition, so its words were known from there."""
    pairs = [(f"the word{number}", f"शब्द{number}") for number in range(3 * FOLDS + 1)]
    again = [(f"The word{number}", f"दूसरा{number}") for number in range(len(pairs))]
    for number, gloss in enumerate(translations_by_others(Links([*pairs, *again]))):
        assert f"word{number % len(pairs)}" in gloss.split()


def test_folds_are_of_similar_size():
    sizes = np.bincount(assign_folds([f"the home of number {number}" for number in range(1000)]), minlength=FOLDS)
    assert len(sizes) == FOLDS
    assert 60 < sizes.min() <= sizes.max() < 140


def test_of_very_many_pairs_the_first_ones_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(word_dictionary, "MOST_LINKS", 30)
    many = [*PAIRS, *[("old", "x")] * 100]
    assert Links(many).dictionary(10) == Links([*PAIRS, *[("old", "x")] * 3]).dictionary(10)
    assert len(list(translations_by_others(Links(many)))) == len(many)


def test_it_comes_back_as_it_was_saved(tmp_path: Path):
    dictionary = Links(PAIRS).dictionary(ROUNDS)
    dictionary.save(tmp_path / "dictionary.json")
    assert load_dictionary(tmp_path / "dictionary.json") == dictionary


def test_nothing_gives_nothing():
    assert Links([]).dictionary(ROUNDS).translate("Hello.") == "Hello."
    assert list(translations_by_others(Links([]))) == []
