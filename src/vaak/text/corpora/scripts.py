"""Whether texts are in the script of their column's language: columns are easily swapped."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

SCRIPTS: dict[str, tuple[str, ...]] = {
    "ARABIC": ("ar", "fa", "ps", "sd", "ug", "ur"),
    "BENGALI": ("as", "bn"),
    "CJK": ("ja", "zh"),
    "CYRILLIC": ("be", "bg", "kk", "ky", "mk", "mn", "ru", "tg", "uk"),
    "DEVANAGARI": ("bho", "doi", "hi", "kok", "mai", "mr", "ne", "sa"),
    "ETHIOPIC": ("am", "ti"),
    "GREEK": ("el",),
    "GUJARATI": ("gu",),
    "GURMUKHI": ("pa",),
    "HANGUL": ("ko",),
    "HEBREW": ("he", "yi"),
    "KANNADA": ("kn",),
    "LATIN": ("cs", "da", "de", "en", "es", "fi", "fr", "id", "it", "nl", "no", "pl", "pt", "sv", "sw", "tr", "vi"),
    "MALAYALAM": ("ml",),
    "ORIYA": ("or",),
    "SINHALA": ("si",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "THAI": ("th",),
}
"""Languages by their codes (ISO 639), under the first word of their letters' names in Unicode."""

_SCRIPT_OF = {language: script for script, languages in SCRIPTS.items() for language in languages}


def script_of_language(code: str) -> str | None:
    """The script that a language is written in; None for an unknown code.

    >>> script_of_language("hi"), script_of_language("target")
    ('DEVANAGARI', None)
    """
    return _SCRIPT_OF.get(code.lower().replace("_", "-").partition("-")[0])


def script_of_texts(texts: Iterable[str]) -> str | None:
    """The script of most of the letters; None if there are none.

    >>> script_of_texts(["वह OK है", "1984"])
    'DEVANAGARI'
    """
    letters = Counter(character for text in texts for character in text if character.isalpha())
    scripts: Counter[str] = Counter()
    for letter, number in letters.items():
        name = unicodedata.name(letter, "").partition(" ")[0]
        scripts["CJK" if name in ("HIRAGANA", "KATAKANA") else name] += number
    return scripts.most_common(1)[0][0] if scripts else None
