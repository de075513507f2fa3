"""IPA and ARPAbet: every phoneme of one has its like in the other."""

from __future__ import annotations

import pytest

from vaak.text.speech.phonemes.alphabets import Alphabet, from_arpabet, from_espeak, inventory, phones
from vaak.text.speech.phonemes.letter_rules import VOWELS

CMU = (
    *(
        "AA",
        "AE",
        "AH",
        "AO",
        "AW",
        "AY",
        "B",
        "CH",
        "D",
        "DH",
        "EH",
        "ER",
        "EY",
        "F",
        "G",
        "HH",
        "IH",
        "IY",
        "JH",
        "K",
    ),
    *("L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH"),
)  # cmudict.phones


def test_arpabet_is_cmudicts() -> None:
    assert sorted(inventory("arpabet", False)) == list(CMU)
    with_stress = {
        one for phoneme in CMU for one in ([f"{phoneme}{n}" for n in "012"] if phoneme in VOWELS else [phoneme])
    }
    assert set(inventory("arpabet", True)) == with_stress


@pytest.mark.parametrize("alphabet", ["ipa", "arpabet"])
@pytest.mark.parametrize("stress", [True, False])
def test_every_phoneme_is_in_the_inventory_whatever_it_comes_from(alphabet: Alphabet, stress: bool) -> None:
    known = inventory(alphabet, stress)
    assert len(set(known)) == len(known)
    for unit, phone in phones().items():
        for mark in ("", "ˈ", "ˌ") if phone.is_vowel else ("",):
            assert set(from_espeak(mark + unit, alphabet, stress)) <= set(known)
    for phoneme in inventory("arpabet", True):
        assert set(from_arpabet(phoneme, alphabet, stress)) <= set(known)
        assert set(from_arpabet(phoneme.rstrip("012"), alphabet, stress)) <= set(known)


def test_arpabet_to_ipa_and_back_is_the_same() -> None:
    """But for the reduced vowels, which have a symbol in IPA too."""
    for phoneme in inventory("arpabet", True):
        (ipa,) = from_arpabet(phoneme, "ipa", True)
        assert from_espeak(ipa, "arpabet", True) == (phoneme,)


@pytest.mark.parametrize(
    ("unit", "ipa", "arpabet"),
    [
        ("ˈoʊ", ("ˈoʊ",), ("OW1",)),
        ("əl", ("əl",), ("AH0", "L")),
        ("ˌɑːɹ", ("ˌɑːɹ",), ("AA2", "R")),
        ("ɾ", ("ɾ",), ("T",)),
        ("tʃ", ("tʃ",), ("CH",)),
        ("nʲ", ("n", "j"), ("N", "Y")),
        ("ˈiːː", ("ˈiː",), ("IY1",)),
    ],
)
def test_phonemes_of_espeak(unit: str, ipa: tuple[str, ...], arpabet: tuple[str, ...]) -> None:
    assert from_espeak(unit, "ipa", True) == ipa
    assert from_espeak(unit, "arpabet", True) == arpabet
    assert from_espeak(unit, "arpabet", False) == tuple(one.rstrip("012") for one in arpabet)


def test_what_is_not_english_is_refused() -> None:
    for unit in ("ɣ", "y", "", "QQ"):
        with pytest.raises(KeyError):
            from_espeak(unit, "ipa", True)
        with pytest.raises(KeyError):
            from_arpabet(unit, "ipa", True)
