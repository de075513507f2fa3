"""The stored pairs of English and Hindi: a deterministic choice, and three splits that share nothing."""

import re

import pytest

from vaak.text.grammar import grammar_pairs
from vaak.text.grammar.composer import choose_split, meets_held_out
from vaak.text.grammar.translation import NUM_PAIRS


@pytest.fixture(scope="module")
def splits():
    return {split: list(grammar_pairs(split, number, seed=0)) for split, number in NUM_PAIRS.items()}


def test_each_split_has_its_number_of_pairs_no_hindi_sentence_twice(splits):
    for split, pairs in splits.items():
        assert len({hindi for _, hindi in pairs}) == len(pairs) == NUM_PAIRS[split]


def test_same_arguments_same_pairs_and_another_seed_another_order(splits):
    assert list(grammar_pairs("train", 300, seed=0)) == splits["train"][:300]
    other = list(grammar_pairs("train", 300, seed=1))
    assert list(grammar_pairs("train", 600, seed=1))[:300] == other
    assert other != splits["train"][:300]
    assert set(other) < set(splits["train"])
    assert len(set(other)) == 300


def test_an_unknown_split_and_too_many_pairs_are_refused():
    with pytest.raises(ValueError, match="'dev'; expected one of train, valid, test"):
        grammar_pairs("dev", 1, seed=0)
    with pytest.raises(ValueError, match="valid has 2500 pairs, not 2501"):
        grammar_pairs("valid", 2501, seed=0)


def test_no_sentence_of_either_language_is_in_two_splits(splits):
    for side in (0, 1):
        sentences = [{pair[side] for pair in pairs} for pairs in splits.values()]
        assert len(set().union(*sentences)) == sum(map(len, sentences))


def test_splits_are_those_of_the_hindi_corpus_and_meet_nothing_held_out(splits):
    for split, pairs in splits.items():
        for _, hindi in pairs[:800]:
            assert choose_split(hindi.split()) == split
            assert not meets_held_out(hindi.split())


def test_no_adverb_stands_between_a_verb_and_its_object(splits):
    """``meeting quickly the editor`` is not English."""
    misplaced = re.compile(
        r"\b(\w+ly|again and again) (the|a|an|this|that|these|those|my|your|his|her|our|their|him)\b"
    )
    english = [pair[0] for pairs in splits.values() for pair in pairs]
    assert [text for text in english if misplaced.search(text)] == []
    assert sum("quickly" in text for text in english) > 20, "there are such adverbs"
