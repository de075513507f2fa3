"""Generated English: plain, different, the same for the same seed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from vaak.audio.corpora.voices import sentence, sentences, spelled


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_they_are_different_and_each_is_one_breath() -> None:
    found = sentences(2000, generator())
    assert len(set(found)) == 2000
    for text in found:
        assert re.fullmatch(r"[A-Z][a-zA-Z' ]+[.?]", text), text
        assert "  " not in text
        assert 4 <= len(text.split()) <= 25, text


def test_the_same_seed_gives_the_same_and_another_others() -> None:
    assert sentences(50, generator(1)) == sentences(50, generator(1))
    assert not set(sentences(50, generator(1))) & set(sentences(50, generator(2)))
    assert sentences(10, generator(1)) == sentences(50, generator(1))[:10]


def test_no_generator_but_the_given_one_is_drawn_from() -> None:
    np.random.seed(0)
    before = np.random.get_state(legacy=False)["state"]["key"].tolist()
    sentence(generator())
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety nine"),
        (100, "one hundred"),
        (101, "one hundred and one"),
        (342, "three hundred and forty two"),
        (1000, "one thousand"),
        (2005, "two thousand and five"),
        (12_345, "twelve thousand three hundred and forty five"),
        (999_999, "nine hundred and ninety nine thousand nine hundred and ninety nine"),
    ],
)
def test_numbers_are_spelled_out(number: int, words: str) -> None:
    assert spelled(number) == words


def test_every_number_has_its_own_name() -> None:
    assert len({spelled(number) for number in range(20_000)}) == 20_000
    for number in (-1, 1_000_000):
        with pytest.raises(ValueError, match="from 0 to 999,999"):
            spelled(number)
