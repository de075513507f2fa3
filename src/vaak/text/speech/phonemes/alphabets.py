"""The two alphabets of phonemes, what each phoneme of one is in the other, and the symbols that a model reads.

ARPAbet is CMUdict's: 39 phonemes, vowels with a digit for their stress (0 none, 1 primary, 2 secondary). IPA is as
espeak-ng writes English, one symbol per phoneme (``oʊ``, ``tʃ``, ``ɑːɹ``), a stressed vowel with its mark before it.

``phones.tsv`` has every phoneme of espeak-ng's English voices, how it is written here in IPA (a few rare ones are
folded into others), and the nearest of ARPAbet; where voices differ, as in the American one.
"""

from __future__ import annotations

import csv
import string
import unicodedata
from functools import lru_cache
from importlib.resources import files
from typing import Literal, NamedTuple

from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.phonemes.letter_rules import VOWELS

Alphabet = Literal["ipa", "arpabet"]
STRESS_MARKS = {"0": "", "1": "ˈ", "2": "ˌ"}
"""The stress mark of each digit of ARPAbet."""
_DIGITS = {mark: digit for digit, mark in STRESS_MARKS.items()}
_VOWELS_IN_IPA = {
    "AA": "ɑː",
    "AE": "æ",
    "AH": "ʌ",
    "AO": "ɔː",
    "AW": "aʊ",
    "AY": "aɪ",
    "EH": "ɛ",
    "ER": "ɜː",
    "EY": "eɪ",
    "IH": "ɪ",
    "IY": "iː",
    "OW": "oʊ",
    "OY": "ɔɪ",
    "UH": "ʊ",
    "UW": "uː",
}
_UNSTRESSED_IN_IPA = {"AH": "ə", "ER": "ɚ", "IY": "i"}


class Phone(NamedTuple):
    """A phoneme of espeak-ng in both alphabets, without stress."""

    ipa: tuple[str, ...]
    arpabet: tuple[str, ...]

    @property
    def is_vowel(self) -> bool:
        return any(phoneme in VOWELS for phoneme in self.arpabet)


@lru_cache(maxsize=1)
def phones() -> dict[str, Phone]:
    """Every phoneme of espeak-ng's English voices."""
    with files(__package__).joinpath("phones.tsv").open(encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {row["espeak"]: Phone(tuple(row["ipa"].split()), tuple(row["arpabet"].split())) for row in rows}


@lru_cache(maxsize=4)
def inventory(alphabet: Alphabet, stress: bool) -> tuple[str, ...]:
    """All phonemes of an alphabet, in a fixed order; with ``stress`` each vowel three times.

    >>> len(inventory("arpabet", False)), len(inventory("arpabet", True))
    (39, 69)
    """
    found: dict[str, None] = {}
    for phone in phones().values():
        for index, phoneme in enumerate(getattr(phone, alphabet)):
            # In IPA, aɪɚ is one symbol and one vowel; ARPAbet writes two vowels.
            vowel = phoneme in VOWELS if alphabet == "arpabet" else phone.is_vowel and index == 0
            if not (stress and vowel):
                found[phoneme] = None
            elif alphabet == "arpabet":
                found |= dict.fromkeys(f"{phoneme}{digit}" for digit in STRESS_MARKS)
            else:
                found |= dict.fromkeys(f"{mark}{phoneme}" for mark in STRESS_MARKS.values())
    return tuple(found)


def from_espeak(unit: str, alphabet: Alphabet, stress: bool) -> tuple[str, ...]:
    """A phoneme as espeak-ng writes it, with its stress mark. Raises KeyError for one that isn't English.

    >>> from_espeak("ˈaɪɚ", "arpabet", True), from_espeak("ˈaɪɚ", "ipa", True), from_espeak("ˈaɪɚ", "ipa", False)
    (('AY1', 'ER0'), ('ˈaɪɚ',), ('aɪɚ',))
    """
    plain = unit.lstrip("ˈˌ")
    mark = unit[: len(unit) - len(plain)][:1]
    phone = phones()[plain]
    if alphabet == "ipa":
        return (mark + phone.ipa[0], *phone.ipa[1:]) if stress and phone.is_vowel else phone.ipa
    if not stress:
        return phone.arpabet
    found = list[str]()
    for phoneme in phone.arpabet:
        if phoneme in VOWELS:
            # Where ARPAbet writes a sound as two vowels, the first gets the stress and the second none.
            found.append(f"{phoneme}{_DIGITS[mark]}")
            mark = ""
        else:
            found.append(phoneme)
    return tuple(found)


def from_arpabet(phoneme: str, alphabet: Alphabet, stress: bool) -> tuple[str, ...]:
    """A phoneme of ARPAbet, a vowel with or without its digit. Raises KeyError for one that isn't of ARPAbet.

    >>> from_arpabet("AH0", "ipa", True), from_arpabet("AH1", "ipa", True), from_arpabet("AH1", "arpabet", False)
    (('ə',), ('ˈʌ',), ('AH',))
    """
    plain = phoneme.rstrip("012")
    if plain not in VOWELS:
        ipa = _consonants()[phoneme]
        return (phoneme,) if alphabet == "arpabet" else (ipa,)
    digit = phoneme[len(plain) :] or "0"
    if alphabet == "arpabet":
        return (f"{plain}{digit}" if stress else plain,)
    ipa = _VOWELS_IN_IPA[plain]
    if digit == "0":
        ipa = _UNSTRESSED_IN_IPA.get(plain, ipa)
    return (STRESS_MARKS[digit] + ipa if stress else ipa,)


_WRITTEN = str.maketrans({"g": "ɡ", ":": "ː", "'": "ˈ", ".": None, "\u0361": None})
"""Characters of IPA as often written; syllables aren't divided, and affricates have no tie."""


def from_either(phonemes: str, alphabet: Alphabet, stress: bool) -> tuple[str, ...]:
    """Phonemes of ARPAbet, apart from each other, or of espeak-ng's IPA, apart or together.

    A stress mark is of the next vowel, wherever it stands before it. Raises KeyError for a phoneme that is of neither.

    >>> from_either("HH AH0 L OW1", "ipa", True), from_either("həˈloʊ", "arpabet", True)
    (('h', 'ə', 'l', 'ˈoʊ'), ('HH', 'AH0', 'L', 'OW1'))
    """
    found: list[str] = []
    mark, known = "", phones()
    longest = max(map(len, known))
    for token in phonemes.split():
        if token.isascii() and token[0].isupper():
            found += from_arpabet(token, alphabet, stress)
            continue
        rest = token.translate(_WRITTEN)
        while rest:
            if rest[0] in _DIGITS:
                mark, rest = rest[0], rest[1:]
                continue
            # The longest known phoneme first: tʃ is one, not t and ʃ.
            unit = next((rest[:length] for length in range(longest, 0, -1) if rest[:length] in known), None)
            if unit is None:
                raise KeyError(token)
            vowel = known[unit].is_vowel
            found += from_espeak(mark + unit if vowel else unit, alphabet, stress)
            mark, rest = "" if vowel else mark, rest[len(unit) :]
    return tuple(found)


@lru_cache(maxsize=1)
def _consonants() -> dict[str, str]:
    """Return the consonant in IPA of each of ARPAbet: the first in the table."""
    found: dict[str, str] = {}
    for phone in phones().values():
        if len(phone.arpabet) == 1 and not phone.is_vowel:
            found.setdefault(phone.arpabet[0], phone.ipa[0])
    return found


IPA_VOWELS = "aeiouyæøœɐɑɒɔəɘɚɛɜɝɞɤɨɪɯɵɶʉʊʌʏᵻ"
IPA_OTHERS = (
    "bcdfhjklmnpqrstvwxzðħŋɓɕɖɗɟɠɡɢɣɥɦɧɫɬɭɮɰɱɲɳɴɸɹɺɻɽɾʀʁʂʃʄʈʋʍʎʐʑʒʔʕʙʛʜʝʟʡʢβθχʘǀǁǂǃ"
    "ːˑʰʱʲʷˠˤⁿᵐᵑᵝ˞ʼ˥˦˧˨˩123456789"
    "\u0303\u0306\u0308\u030a\u0325\u0324\u0330\u032c\u031d\u031e\u0327\u0329\u032a\u032f\u033a\u033b\u0339\u031c\u031f\u0320\u031a\u0334"
)
"""Letters and modifiers of IPA, and the digits by which espeak-ng marks tones; a diacritic is a separate symbol."""
_AS_IPA = str.maketrans({"g": "ɡ", "Φ": "ɸ", "ε": "ɛ", "?": "ʔ", "ʦ": "ts", "\u0361": None})
"""Characters that espeak-ng writes for others in a few languages."""


def ipa_inventory(stress: bool) -> tuple[str, ...]:
    """All symbols of any language, in a fixed order; with ``stress`` each vowel three times.

    >>> len(ipa_inventory(False)), len(ipa_inventory(True))
    (159, 221)
    """
    marks = STRESS_MARKS.values() if stress else ("",)
    return (*(f"{mark}{vowel}" for vowel in IPA_VOWELS for mark in marks), *IPA_OTHERS)


def from_ipa(unit: str, stress: bool) -> tuple[str, ...]:
    """Phonemes of any language in IPA, as symbols of one character; a stress mark is of the next vowel.

    Signs of ASCII that aren't letters mean nothing, and of capitals the small letters count. Raises KeyError for other
    characters that aren't of IPA.

    >>> from_ipa("ˈãː", True), from_ipa("tʃ", True)
    (('ˈa', '\u0303', 'ː'), ('t', 'ʃ'))
    """
    found: list[str] = []
    mark = ""
    # Decomposed, because a diacritic is a symbol by itself here.
    for one in unicodedata.normalize("NFD", unit.replace("r.", "ɽ")).translate(_AS_IPA):
        if one in _DIGITS and one:
            mark = one
        elif (low := one.lower() if one.isascii() else one) in IPA_VOWELS:
            found.append((mark if stress else "") + low)
            mark = ""
        elif low in IPA_OTHERS:
            found.append(low)
        # Only letters and marks can be unknown phonemes; other signs mean nothing.
        elif not one.isascii() and unicodedata.category(one)[0] in "LM":
            raise KeyError(one)
    return tuple(found)


PAD, BOUNDARY, PAUSE, NOISE = "<pad>", " ", "sil", "spn"
"""Padding; the boundary between two words; a pause; an aligner's mark for noise or an unknown word."""
SPECIAL = (PAD, BOUNDARY, PAUSE, NOISE)
PAUSING = (",", ".", "?", "!", ";", ":", "—", "…", "(", ")")
"""Punctuation at which one pauses."""
PUNCTUATION = (*PAUSING, '"')
CHARACTERS = (*string.ascii_lowercase, "'")


def list_symbols(config: FrontEndConfig) -> tuple[str, ...]:
    """The inventory: special symbols, punctuation, then phonemes or letters. A symbol's id is its place."""
    if not config.is_english:
        spoken = ipa_inventory(config.stress)
    else:
        spoken = CHARACTERS if config.phonemizer == "characters" else inventory(config.alphabet, config.stress)
    return (*SPECIAL, *PUNCTUATION, *spoken)
