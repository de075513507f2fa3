"""Normalisers of texts before their words are compared; the name belongs to the protocol of every figure.

whisper-english   Whisper's own for English: case, punctuation, contractions, British spelling, numbers, fillers
basic             case, punctuation and what is in brackets; letters of any script keep their vowel signs and accents
none              texts as they are
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from vaak.core.errors import UserError

NormaliserName = Literal["whisper-english", "basic", "none"]
NAMES: tuple[str, ...] = get_args(NormaliserName)

Normaliser = Callable[[str], str]

_IN_BRACKETS = re.compile(r"[<\[][^>\]]*[>\]]|\([^)]+?\)")
_JOINERS = str.maketrans("", "", "\u200c\u200d")
"""Signs that only shape the letters around them."""


@cache
def normaliser(name: str) -> Normaliser:
    """The normaliser of this name. Raises UserError for an unknown one.

    >>> normaliser("basic")("नमस्ते, दुनिया! (हँसी)")
    'नमस्ते दुनिया'
    """
    if name == "none":
        return str
    if name == "basic":
        return basic
    if name != "whisper-english":
        raise UserError(f"unknown normaliser {name}; expected one of {', '.join(NAMES)}")
    try:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer
    except ImportError as error:
        raise UserError(
            f"the normaliser whisper-english requires transformers ({error}); pip install 'vaak[asr]'"
        ) from error
    # OpenAI's table, of the package openai-whisper (MIT licence).
    lines = files(__package__).joinpath("english_spellings.tsv").read_text(encoding="utf-8").splitlines()
    make: Any = EnglishTextNormalizer
    normalise: Normaliser = make(dict(line.split("\t") for line in lines))
    return normalise


def basic(text: str) -> str:
    """Lower case; letters, marks and digits, with one space where anything else was.

    Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", appendix C.
    Differs: marks are kept, for without its vowel signs a Hindi word is another one.
    """
    text = unicodedata.normalize("NFKC", _IN_BRACKETS.sub("", text.lower())).translate(_JOINERS)
    return " ".join("".join(sign if unicodedata.category(sign)[0] in "LMN" else " " for sign in text).split())
