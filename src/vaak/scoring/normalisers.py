"""Normalisers of texts before their words are compared; the name belongs to the protocol of every figure.

whisper-english   Whisper's own for English: case, punctuation, contractions, British spelling, numbers, fillers
basic             case, punctuation and text in brackets; letters of any script keep their vowel signs and accents
none              texts unchanged

All of them leave out characters that don't stand alone: those that Unicode ignores, enclosing marks (a digit and U+20E3
are a key of a telephone, and here a digit), and marks without a letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import dropwhile
from typing import Any, Literal, get_args

from vaak.core.errors import UserError
from vaak.core.matching import compose, drop_ignorable
from vaak.core.names import nearest_name

NormaliserName = Literal["whisper-english", "basic", "none"]
NORMALISERS: tuple[str, ...] = get_args(NormaliserName)


@dataclass(frozen=True)
class Normaliser:
    """Brings a text into the form in which words are compared; ``name`` is for the protocol of what is scored.

    Texts are first brought into one form (``_unify``): whether a letter is composed, characters that are never shown,
    what encloses a sign, and marks that stand alone decide no score.
    """

    name: str
    normalise: Callable[[str], str]

    def __call__(self, text: str) -> str:
        return self.normalise(_unify(text))


_IN_BRACKETS = re.compile(r"[<\[][^>\]]*[>\]]|\([^)]+?\)")
_DOTTED_I = re.compile("(?<=i)\u0307")
"""The dot that lower case leaves of İ: a small i has one already."""


@cache
def normaliser(name: str) -> Normaliser:
    """Return the normaliser of this name. Raises UserError for an unknown one.

    >>> normaliser("basic")("नमस्ते, दुनिया! (हँसी)")
    'नमस्ते दुनिया'
    >>> normaliser("none")("cafe\u0301 \u2764\ufe0f 1\ufe0f\u20e3 \u0301") == normaliser("none")("caf\u00e9 \u2764 1")
    True
    """
    return Normaliser(name, _find_function(name))


def _unify(text: str) -> str:
    """Return the text composed, without what Unicode ignores, what encloses a sign, and marks that stand alone."""
    # Enclosing marks first: the enclosed sign may then compose with another mark.
    signs = "".join(sign for sign in drop_ignorable(text) if unicodedata.category(sign) != "Me")
    words = (word for word in compose(signs).split(" ") if not word or not all(map(_is_mark, word)))
    return " ".join(words)


def _find_function(name: str) -> Callable[[str], str]:
    if name == "none":
        return str
    if name == "basic":
        return basic
    if name != "whisper-english":
        raise UserError(
            f"unknown normaliser {name}{nearest_name(name, NORMALISERS)}; expected one of {', '.join(NORMALISERS)}"
        )
    try:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer
    except ImportError as error:
        raise UserError(
            f"the normaliser whisper-english requires transformers ({error}); pip install 'vaak[asr]'"
        ) from error
    # OpenAI's table, of the package openai-whisper (MIT licence).
    lines = files(__package__).joinpath("english_spellings.tsv").read_text(encoding="utf-8").splitlines()
    make: Any = EnglishTextNormalizer
    normalise: Callable[[str], str] = make(dict(line.split("\t") for line in lines))
    return normalise


def basic(text: str) -> str:
    """Lower case; letters, marks and digits, with one space where anything else was.

    A mark without a letter before it (an emoji's, a stray vowel sign) is not a word.

    Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", appendix C.
    Differs: marks are kept, for without its vowel signs a Hindi word is another one.
    """
    lower = unicodedata.normalize("NFKC", _IN_BRACKETS.sub("", compose(text)).lower())
    letters = "".join(map(_letter_or_blank, drop_ignorable(_DOTTED_I.sub("", lower))))
    words = ("".join(dropwhile(_is_mark, word)) for word in letters.split())
    return " ".join(word for word in words if word)


def _letter_or_blank(sign: str) -> str:
    category = unicodedata.category(sign)
    return sign if category in ("Mn", "Mc") or category[0] in "LN" else "" if category == "Me" else " "


def _is_mark(sign: str) -> bool:
    return unicodedata.category(sign)[0] == "M"


BASIC = normaliser("basic")
