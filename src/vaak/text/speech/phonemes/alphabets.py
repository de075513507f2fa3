"""The two alphabets, and what each phoneme of one is in the other.

ARPAbet is CMUdict's: 39 phonemes, vowels with a digit for their stress (0 none, 1 primary, 2 secondary). IPA is as
espeak-ng writes English, one symbol per phoneme (``oʊ``, ``tʃ``, ``ɑːɹ``), with the mark of its stress before a vowel.

``phones.tsv`` has every phoneme of espeak-ng's English voices, how it is written here in IPA (a few rare ones are folded
into others), and the nearest of ARPAbet, by the American voice where voices differ.
"""

from __future__ import annotations

import csv
import unicodedata
from functools import lru_cache
from importlib.resources import files

from vaak.text.speech.phonemes.letter_rules import VOWELS

PRIMARY, SECONDARY = "ˈ", "ˌ"
STRESS_MARKS = {"": "0", SECONDARY: "2", PRIMARY: "1"}
"""The digit of each mark; in this order each vowel is in the inventory."""

_IPA_OF_VOWELS = {
    **{"AA": ("ɑː", "ɑː"), "AE": ("æ", "æ"), "AH": ("ə", "ʌ"), "AO": ("ɔː", "ɔː"), "AW": ("aʊ", "aʊ")},
    "AY": ("aɪ", "aɪ"),
}
