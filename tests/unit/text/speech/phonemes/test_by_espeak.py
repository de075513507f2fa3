"""Phonemes by espeak-ng: the same for the same phrase, whatever comes before it, and all of them known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from vaak.audio.corpora.voices import sentences
from vaak.audio.espeak import speak
from vaak.core.errors import UserError
from vaak.text.speech.phonemes.alphabets import phones
from vaak.text.speech.phonemes.pronunciation import espeak_phonemes

LANGUAGES = ("en-us", "en", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us-nyc")
PHRASES = [sentence.rstrip(".?!") for sentence in sentences(60, np.random.default_rng(1))]


def test_words_and_their_phonemes() -> None:
    assert espeak_phonemes(["hello world", "ship"], "en-us") == [
        (("h", "ə", "l", "ˈoʊ"), ("w", "ˈɜː", "l", "d")),
        (("ʃ", "ˈɪ", "p"),),
    ]
    assert espeak_phonemes([], "en-us") == []


def test_a_phrase_is_the_same_alone_and_among_others_in_any_order() -> None:
    together = dict(zip(PHRASES, espeak_phonemes(PHRASES, "en-us"), strict=True))
    mixed = random.Random(1).sample(PHRASES, len(PHRASES))
    assert dict(zip(mixed, espeak_phonemes(mixed, "en-us"), strict=True)) == together
    for phrase in PHRASES[:5]:
        speak("Something else.", "en-gb-scotland+f3")
        assert espeak_phonemes([phrase], "en-us") == [together[phrase]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_phoneme_of_every_accent_is_known(language: str) -> None:
    for phrase, words in zip(PHRASES, espeak_phonemes(PHRASES, language), strict=True):
        assert words, phrase
        for word in words:
            for unit in word:
                assert unit.lstrip("ˈˌ") in phones(), (phrase, unit)


@pytest.mark.parametrize("language", LANGUAGES)
def test_so_are_those_of_its_speech(language: str) -> None:
    for phrase in PHRASES[:4]:
        for phoneme in speak(phrase, language, rate=400).phonemes:
            assert phoneme.label.lstrip("ˈˌ") in phones(), (phrase, phoneme)


def test_a_voice_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no voice xx"):
        espeak_phonemes(["hello"], "xx")
