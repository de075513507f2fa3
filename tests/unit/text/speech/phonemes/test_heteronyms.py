"""Words that are spelled alike are pronounced by their sense, in 100 sentences written before the rules."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.phonemes.alphabets import from_arpabet
from vaak.text.speech.phonemes.heteronyms import MARK, heteronyms, unmarked
from vaak.text.speech.phonemes.letter_rules import VOWELS
from vaak.text.speech.phonemes.pronunciation import make_pronunciation
from vaak.text.speech.processor import PhonemeProcessor, pieces, with_senses

with open(Path(__file__).with_name("heteronyms.tsv"), encoding="utf-8") as _file:
    SENTENCES = [(text, word, phonemes) for text, word, phonemes in csv.reader(_file, delimiter="\t")]


@pytest.fixture(scope="module")
def processor() -> PhonemeProcessor:
    return PhonemeProcessor(FrontEndConfig(alphabet="arpabet"))


@pytest.mark.parametrize(("text", "word", "phonemes"), SENTENCES, ids=[text for text, *_ in SENTENCES])
def test_the_sense_of_a_word(processor, text, word, phonemes):
    marked = [one for piece in with_senses(pieces(processor.normalise(text))) for one in piece.words]
    (found,) = (one.lower() for one in marked if one.partition(MARK)[0].lower() == word.lower())
    heteronym = heteronyms()[found]
    assert " ".join((*heteronym.arpabet, *heteronym.ending)) == phonemes


def test_no_other_word_is_changed():
    text = pieces("The reader wore a lead vest, and used her recorder closely.")
    assert [unmarked(" ".join(piece.words)) for piece in with_senses(text)] == [" ".join(one.words) for one in text]
    assert [word for piece in with_senses(text) for word in piece.words if MARK in word] == ["lead_go"]


@pytest.mark.parametrize("language", ["en-us", "en-gb"])
def test_espeak_says_the_senses_of_a_word_differently(language):
    """Each in the accent of its voice, where that has a phrase for it."""
    config = FrontEndConfig(language=language, word_boundaries=False)
    spoken = make_pronunciation(config, {})(list(heteronyms()))
    said: dict[str, set[object]] = {}
    for mark, words in zip(heteronyms(), spoken, strict=True):
        said.setdefault(mark.partition(MARK)[0], set()).add(words)
    alike = {word for word, found in said.items() if len(found) == 1}
    assert alike == {"résumé", "exposé", "rosé", "pâté", "lamé"}


def test_espeak_stresses_the_vowel_that_the_table_has():
    spoken = make_pronunciation(FrontEndConfig(alphabet="arpabet"), {})(list(heteronyms()))
    for (mark, heteronym), (word,) in zip(heteronyms().items(), spoken, strict=True):
        table = [symbol for one in heteronym.arpabet for symbol in from_arpabet(one, "arpabet", True)]
        assert _stress(word) == _stress(table), mark


def _stress(symbols) -> int:
    """Which vowel of a word has the primary stress."""
    vowels = [symbol for symbol in symbols if symbol.rstrip("012") in VOWELS]
    return next(place for place, symbol in enumerate(vowels) if symbol.endswith("1"))


def test_a_sentence_with_two_senses_of_a_word(processor):
    said = processor.process("They record the record.").symbols
    assert said[3:9] == ("R", "IH0", "K", "AO1", "R", "D")
    assert said[-6:-1] == ("R", "EH1", "K", "ER0", "D")


def test_a_lexicon_has_its_senses_from_the_table(tmp_path):
    (tmp_path / "lexicon").write_text("HE HH IY1\nREAD R IY1 D\nIT IH1 T\nWILL W IH1 L\n")
    lexicon = PhonemeProcessor(
        FrontEndConfig(
            phonemizer="lexicon", lexicon=str(tmp_path / "lexicon"), alphabet="arpabet", word_boundaries=False
        )
    )
    assert lexicon.process("he read it").symbols[2:5] == ("R", "EH1", "D")
    assert lexicon.process("he will read it").symbols[5:8] == ("R", "IY1", "D")


def test_accents_tell_words_apart(processor):
    assert processor.process("resumé").symbols == processor.process("résumé").symbols
    assert processor.process("résumé").symbols != processor.process("resume").symbols
    assert "".join(PhonemeProcessor(FrontEndConfig(phonemizer="characters")).process("Résumé").symbols) == "resume"
