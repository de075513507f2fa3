"""Letter-to-sound rules: a pronunciation for any spelling, near that of dictionaries."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.formats.alignments import read_textgrid
from vaak.text.speech.phonemes.alphabets import from_arpabet, inventory
from vaak.text.speech.phonemes.letter_rules import VOWELS, pronounced

# As in CMUdict.
WORDS = {
    "printing": "P R IH1 N T IH0 NG",
    "nation": "N EY1 SH AH0 N",
    "make": "M EY1 K",
    "making": "M EY1 K IH0 NG",
    "church": "CH ER1 CH",
    "knight": "N AY1 T",
    "phone": "F OW1 N",
    "wrong": "R AO1 NG",
    "queen": "K W IY1 N",
    "wanted": "W AA1 N T IH0 D",
    "stopped": "S T AA1 P T",
    "played": "P L EY1 D",
    "boxes": "B AA1 K S IH0 Z",
    "nineteen": "N AY1 N T IY1 N",
    "city": "S IH1 T IY0",
    "thought": "TH AO1 T",
    "picture": "P IH1 K CH ER0",
    "table": "T EY1 B AH0 L",
    "electric": "AH0 L EH1 K T R IH0 K",
    "garden": "G AA1 R D AH0 N",
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word(word: str) -> None:
    assert " ".join(pronounced(word)) == WORDS[word]


@given(st.from_regex(r"[a-z]([a-z']{0,14}[a-z])?", fullmatch=True))
def test_any_spelling_has_known_phonemes_and_one_stress(word: str) -> None:
    found = pronounced(word)
    assert set(found) <= set(inventory("arpabet", True))
    if any(phoneme.rstrip("012") in VOWELS for phoneme in found):
        assert any(phoneme.endswith("1") for phoneme in found)
    for phoneme in found:
        assert from_arpabet(phoneme, "ipa", True)


def test_they_are_near_a_dictionary_on_running_text(vaak_data) -> None:
    """Words of real recordings with the phonemes that an aligner took from its dictionary."""
    equal = total = 0
    for file in sorted((vaak_data("ljspeech_mini") / "TextGrid" / "LJSpeech").glob("*.TextGrid")):
        tiers = read_textgrid(file)
        for word in tiers["words"]:
            inside = [phone.text for phone in tiers["phones"] if word.start <= phone.start < word.end]
            expected = [phone.rstrip("012") for phone in inside]
            found = [phoneme.rstrip("012") for phoneme in pronounced(word.text)]
            matcher = difflib.SequenceMatcher(None, expected, found, autojunk=False)
            equal += sum(block.size for block in matcher.get_matching_blocks())
            total += len(expected)
    assert total > 1000
    assert equal / total > 0.9
