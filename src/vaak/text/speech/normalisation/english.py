"""English text as it is spoken, in words and punctuation.

Each rule rewrites one class of written forms; what it has written is words, which later rules leave alone. So rules
for the longest forms come first: an address before its dots, a date before its numbers, a measure before its unit's
letters. Figures are read as in the recordings of LJ Speech: "one hundred ninety-nine" without "and", "May four" where
"May 4" is written, "thirteen dollars, eighty-seven cents", years by their hundreds.
"""

from __future__ import annotations

import re

from vaak.text.speech.normalisation.abbreviations import abbreviations
from vaak.text.speech.normalisation.addresses import addresses
from vaak.text.speech.normalisation.characters import cleaned
from vaak.text.speech.normalisation.dates_and_times import dates_and_times
from vaak.text.speech.normalisation.letters import letters, symbols
from vaak.text.speech.normalisation.money import money
from vaak.text.speech.normalisation.numerals import VULGAR, numerals
from vaak.text.speech.normalisation.roman_numerals import roman_numerals
from vaak.text.speech.normalisation.units import units

RULES = (addresses, dates_and_times, money, abbreviations, roman_numerals, units, numerals, symbols, letters)
OF_FIGURES = (dates_and_times, money, units, numerals)
"""Rules that change nothing in a text without figures."""

_FIGURE = re.compile(rf"[0-9{''.join(VULGAR)}]")

_SPACES = re.compile(r"\s+")
_SPACE_BEFORE = re.compile(r"\s+(?=[,;:!?)…]|\.(?!\w))|(?<=\()\s+")


def normalise(text: str) -> str:
    """``text`` as it is spoken: words and punctuation, without figures and symbols.

    Letters that are read by their names are single capitals.

    Raises DataError for letters of another script and for unknown symbols.

    >>> normalise("Dr. Roe paid £372 on Oct. 18, 1939, at 11:40 a.m.")
    'Doctor Roe paid three hundred seventy-two pounds on October eighteen, nineteen thirty-nine, at eleven forty A M.'
    """
    text = cleaned(text)
    figures = _FIGURE.search(text)
    for rule in RULES:
        if figures or rule not in OF_FIGURES:
            text = rule(text)
    return _SPACE_BEFORE.sub("", _SPACES.sub(" ", text)).strip()
