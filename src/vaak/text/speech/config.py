"""Options of the front end of speech: how text becomes phonemes. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from vaak.config.base import ResumeClass, Section, option

Language = Literal[
    "en-us", "en-gb", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us-nyc"
]
"""The English voices of espeak-ng."""


class FrontEndConfig(Section):
    """How text becomes the symbols that a model reads."""

    bare: ClassVar[str | None] = "phonemizer"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    normalise: bool = option("Write numbers, dates, money, abbreviations and symbols in words first.", True)
    phonemizer: Literal["espeak", "lexicon", "characters"] = option(
        "What pronounces words: espeak-ng; a lexicon, with unknown_words for what it lacks; or characters, the letters "
        "themselves.",
        "espeak",
    )
    language: Language = option("The accent of espeak-ng.", "en-us")
    alphabet: Literal["ipa", "arpabet"] = option(
        "The phonemes' alphabet; alignments in either can be read in both.", "ipa"
    )
    stress: bool = option("Mark the stress of vowels: each vowel has a symbol for each stress.", True)
    punctuation: Literal["keep", "pause"] = option(
        "keep: a symbol for each mark; pause: marks are pauses, as in alignments of the Montreal Forced Aligner.",
        "keep",
    )
    word_boundaries: bool = option("A symbol between words.", True)
    lexicon: str | None = option("A file in the format of CMUdict, for phonemizer lexicon.", None)
    unknown_words: Literal["espeak", "rules", "error"] = option(
        "What pronounces words that the lexicon lacks: espeak-ng, letter-to-sound rules, or nothing (an error).",
        "espeak",
    )

    @model_validator(mode="after")
    def _lexicon_is_where_it_is_read(self) -> FrontEndConfig:
        if self.phonemizer == "lexicon" and self.lexicon is None:
            raise PydanticCustomError(
                "no_lexicon", "phonemizer: lexicon requires lexicon, a file in the format of CMUdict"
            )
        if self.phonemizer != "lexicon" and self.lexicon is not None:
            raise PydanticCustomError(
                "unread_lexicon",
                "lexicon is not read by phonemizer: {phonemizer}; expected phonemizer: lexicon",
                {"phonemizer": self.phonemizer},
            )
        return self
