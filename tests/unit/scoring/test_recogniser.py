"""What PocketSphinx hears of espeak-ng's speech: words that are left out or said again are found, wherever."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pocketsphinx")

from vaak.audio.corpora.voices import make_voices, utter
from vaak.scoring.recogniser import Recogniser, WordErrors

(VOICE,) = make_voices(1, seed=0)
TEXT = "Peter said that the bus driver would go to work by bus"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser()


def spoken(words: list[str]) -> np.ndarray:
    return utter(VOICE, " ".join(words) + ".").samples


def nothing(word: str) -> str | None:
    return None


@pytest.mark.parametrize("place", [2, 5, 8])
def test_words_that_are_left_out_or_said_again_are_found(recogniser: Recogniser, place: int):
    whole, fewer, more = WORDS, WORDS[:place] + WORDS[place + 1 :], WORDS[: place + 1] + WORDS[place:]
    found = [recogniser.omissions(TEXT, spoken(words), nothing)[1:] for words in (whole, fewer, more)]
    assert found == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.slow
def test_what_it_hears_depends_on_nothing_before(recogniser: Recogniser):
    samples = spoken(WORDS)
    first = recogniser.recognise(samples)
    recogniser.omissions(TEXT, spoken(WORDS[3:]), nothing)
    recogniser.recognise(0.3 * spoken(WORDS[:4]))
    assert recogniser.recognise(samples) == first
    assert len(set(first.split()) & set(TEXT.lower().split())) >= 4


def test_silence_has_no_words(recogniser: Recogniser):
    silence = np.zeros(16_000, np.float32)
    assert recogniser.word_errors("one two three", silence).words == 3
    assert recogniser.word_errors("one two three", silence).errors >= 2
    assert recogniser.word_errors("", silence) == WordErrors(0, len(recogniser.recognise(silence).split()))


def test_unknown_words_are_pronounced_or_left_out(recogniser: Recogniser):
    samples = utter(VOICE, "The blorvik went to work by bus.").samples
    assert recogniser.omissions("the blorvik went to work", samples, nothing).words == 4
    pronounced = recogniser.omissions("the blorvik went to work by bus", samples, {"blorvik": "B L AO R V IH K"}.get)
    assert pronounced == (7, 0, 0)
