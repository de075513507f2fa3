"""Letter-to-sound rules: a pronunciation for any English spelling, in ARPAbet.

At each place of the word the first rule applies whose letters stand there, with its contexts on both sides. In a
context, ``#`` is a vowel letter, ``!`` a consonant letter, ``:`` any consonants or none, ``%`` a vowel and a consonant
somewhere before, ``^`` and ``$`` the ends of the word.

Source: Elovitz, Johnson, McHugh and Shore 1976, "Automatic translation of English text to phonetics by means of
letter-to-sound rules" (NRL report 7948), for the form of the rules. Differs: the rules are our own; words have stress.
"""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

VOWELS = frozenset(("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"))

REDUCED = {"AE": "AH", "AA": "AH", "EH": "AH"}
"""Vowels in a syllable without stress."""

_CLASSES = {"#": "[aeiouy]", "!": "[bcdfghjklmnpqrstvwxz]", ":": "[bcdfghjklmnpqrstvwxz]*"}
_CLASSES["%"] = f"[aeiouy].*{_CLASSES['!']}"
_BEFORE_STRESS = re.compile(
    r"(?:tion|sion|cian|tial|cial|tious|cious|ssion|gion|ic|ics|ical|ically|ity|ities|ify|logy|graphy|metry|cracy|ian|"
    r"ious|eous|ual|ular|ulate|itude)s?$"
)
_STRESSED = re.compile(r"(?:ee|eer|ese|ette|esque|oon|aire)s?$")
_LIGHT_PREFIX = re.compile(
    r"^(?:a([bcdfglnprst])(?=\1)|be|com|con|de|dis|em|en|ex|im|in|per|pre|pro|re|sub|sur|un)(?=[^aeiouy])"
    r"|^a[bgmw](?=[aeiou])"
)


class Rule(NamedTuple):
    """The sound of ``letters`` between two contexts."""

    left: re.Pattern[str]
    letters: str
    right: re.Pattern[str]
    phonemes: tuple[str, ...]


def pronounced(word: str) -> tuple[str, ...]:
    """The phonemes of a word of the letters a to z and apostrophes, vowels with their stress (0, 1, 2).

    >>> " ".join(pronounced("printing"))
    'P R IH1 N T IH0 NG'
    >>> " ".join(pronounced("condition"))
    'K AH0 N D IH1 SH AH0 N'
    """
    place, found = 0, list[str]()
    while place < len(word):
        rule = _rule_at(word, place)
        if rule is None:
            # It is an apostrophe.
            place += 1
            continue
        found += rule.phonemes
        place += len(rule.letters)
    return _stressed(word, found)


def _rule_at(word: str, place: int) -> Rule | None:
    # The first rule that fits wins: the table has special cases before general ones.
    for rule in _rules().get(word[place], ()):
        if (
            word.startswith(rule.letters, place)
            and rule.right.match(word, place + len(rule.letters))
            and rule.left.search(word[:place])
        ):
            return rule
    return None


@lru_cache(maxsize=1)
def _rules() -> dict[str, list[Rule]]:
    """Return the rules by their first letter, in the order of the table."""
    rules: dict[str, list[Rule]] = {}
    with files(__package__).joinpath("letter_rules.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            rule = Rule(
                re.compile(_expanded(row["left"]) + r"\Z"),
                row["letters"],
                re.compile(_expanded(row["right"])),
                tuple(row["phonemes"].split()),
            )
            rules.setdefault(rule.letters[0], []).append(rule)
    return rules


def _expanded(context: str) -> str:
    """A context as a regular expression."""
    return "".join(_CLASSES.get(one, one) for one in context)


def _stressed(word: str, phonemes: list[str]) -> tuple[str, ...]:
    """Stress on one vowel: as the ending demands, after a light prefix, otherwise on the first or the third last.

    A rule for a whole word may have its own.
    """
    # Rules for whole words may already say where the stress is.
    if any(phoneme[-1].isdigit() for phoneme in phonemes):
        return tuple(phonemes)
    vowels = [index for index, phoneme in enumerate(phonemes) if phoneme in VOWELS]
    if not vowels:
        return tuple(phonemes)
    number = len(vowels)
    if number == 1:
        chosen = 0
    elif _STRESSED.search(word):
        chosen = number - 1
    elif ending := _BEFORE_STRESS.search(word):
        # These endings draw the stress to the syllable before them: condItion, electrIcity.
        chosen = max(number - _syllables(ending[0]) - 1, 0)
    elif _LIGHT_PREFIX.match(word) and number < 4:
        chosen = 1
    else:
        chosen = max(number - 3, 0)
    marked = list(phonemes)
    for place in vowels:
        # Lax vowels without stress are reduced.
        vowel = phonemes[place]
        marked[place] = f"{vowel}1" if place == vowels[chosen] else f"{REDUCED.get(vowel, vowel)}0"
    return tuple(marked)


def _syllables(ending: str) -> int:
    """Return how many vowels an ending sounds."""
    if re.match(r"[tscg]+i", ending):
        # The i is in the consonant.
        ending = ending.replace("i", "", 1)
    return len(re.findall(r"[aeiouy]+", ending.removesuffix("e")))
