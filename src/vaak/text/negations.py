"""Words of negation in English and Hindi, however they are written.

isn't  isn’t  isnt  ISN'T,  couldn't've  n't        its apostrophe, case and punctuation don't matter
no-one  not/never  "no"  नहीं।है                     one of the parts between punctuation is enough
नहीं  नहीँ  नही  nahi                                spellings in use, also in Latin letters
"""

from __future__ import annotations

import functools
import re
import unicodedata
from itertools import groupby

ENGLISH = "no not never none nobody nothing neither nor nowhere noone nope nah cannot without ain aint nt nary naught"
"""``nt`` is what a tokenizer of words leaves of *n't*; *ain* of *ain't*."""

SEMI_NEGATIVES = "hardly scarcely barely rarely seldom"
"""Adverbs after which a sentence is negated, too ("it hardly works")."""

WITHOUT_APOSTROPHE = (
    "dont doesnt didnt isnt arent wasnt werent cant couldnt wont wouldnt shouldnt shant hasnt havent hadnt mustnt "
    "neednt mightnt oughtnt darent"
)
HINDI = "नहीं नहीँ नही नहिं नहि नाहीं न ना मत बिना बिन बगैर बग़ैर गैर ग़ैर nahi nahin nahee nahii na mat bina bagair"

APOSTROPHES = dict.fromkeys(map(ord, "’‘ʼ`´′＇‛"), "'")
JOINERS = "\u200c\u200d"
REPEATED = re.compile(r"(.)\1{2,}")


def _written(text: str) -> str:
    """A text in one spelling: small letters, one kind of apostrophe, no invisible signs, composed in one way."""
    visible = "".join(letter for letter in text.translate(APOSTROPHES) if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold()


NEGATIONS = frozenset(_written(" ".join((ENGLISH, SEMI_NEGATIVES, WITHOUT_APOSTROPHE, HINDI))).split())


def is_punctuation(letter: str) -> bool:
    """Whether a character is a sign next to words, such as ``.``, ``।``, ``“``, ``$`` or an emoji."""
    category = unicodedata.category(letter)
    return category[0] in "PS" or (category == "Cf" and letter not in JOINERS)


@functools.lru_cache(maxsize=1 << 16)
def is_negation(word: str) -> bool:
    """Whether one of a word's parts negates.

    >>> [word for word in "It isnt bad; NOT at all, नहीं। Nothing's Hardly!".split() if is_negation(word)]
    ['isnt', 'NOT', 'नहीं।', "Nothing's", 'Hardly!']
    """
    written = _written(word)
    parts = groupby(written, lambda letter: is_punctuation(letter) and letter != "'")
    for part in ("".join(letters) for between, letters in parts if not between):
        alone = part.strip("'ः").partition("'")[0]  # nothing's; people write the visarga for a colon
        if "n't" in part or alone in NEGATIONS or REPEATED.sub(r"\1", alone) in NEGATIONS:  # nooo
            return True
    return False
