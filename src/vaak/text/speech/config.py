"""Options of the front end of speech: how text becomes phonemes. Imports no torch."""

from __future__ import annotations

from difflib import get_close_matches
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from vaak.config.base import ResumeClass, Section, Source, option
from vaak.text.speech.words import Locale, words

ENGLISH = ("en-us", "en-gb", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us-nyc")
"""The English voices of espeak-ng."""
LANGUAGES = words(
    """
    af am an ar as az ba be bg bn bpy bs ca ca-ba ca-nw ca-va chr cmn cmn-latn-pinyin cs cv cy da de el eo es
    es-419 et eu fa fa-latn fi fr fr-be fr-ch ga gd gn grc gu hak haw he hi hr ht hu hy hyw ia id io is it ja
    jbo ka kk kn ko kok ku ky la lb lfn lt ltg lv mi mk ml mr ms mt mto my nb nci ne nl nog om or pa pap piqd pl
    pt pt-br py qdb qu quc qya ro ru ru-cl ru-lv sd shn si sjn sk sl smj sq sr sv sw ta te th ti tk tn tr tt ug
    uk ur uz vi vi-vn-x-central vi-vn-x-south yue yue-latn-jyutping
    """
)
"""Its other languages, but for those whose dictionaries the wheel lacks (fo, kaa, xex), and one that crashes (kl)."""


class FrontEndConfig(Section):
    """How text becomes the symbols that a model reads."""

    bare: ClassVar[str | None] = "phonemizer"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    normalise: bool = option("Expand numbers, dates, money, abbreviations and symbols into words first.", True)
    phonemizer: Literal["espeak", "lexicon", "characters"] = option(
        "How words are pronounced: by espeak-ng; by a lexicon, with unknown_words for the words that it lacks; or "
        "as characters, the letters themselves.",
        "espeak",
    )
    language: str = option(
        "The language or accent of espeak-ng: en-us, en-gb and other accents of English, or hi, de, sw, cmn, … "
        "(docs/tts-front-end.md). English words in a text in another script are read as English.",
        "en-us",
    )
    locale: Locale = option(
        "How English figures are read. en-US: 3/5/2024 with the month first, 105 without and, 1,50,000 in thousands; "
        "en-GB: the day first, with and; en-IN: as en-GB, and 1,50,000 and 150000 in lakhs and crores.",
        "en-US",
    )
    alphabet: Literal["ipa", "arpabet"] = option(
        "The phonemes' alphabet; alignments in either can be read in both.", "ipa"
    )
    stress: bool = option("Mark the stress of vowels: each vowel has a symbol for each stress.", True)
    punctuation: Literal["keep", "pause"] = option(
        "keep: a symbol for each mark; pause: marks are pauses, as in alignments of the Montreal Forced Aligner.",
        "keep",
    )
    word_boundaries: bool = option("A symbol between words.", True)
    lexicon: Source | None = option("A file in the format of CMUdict, for phonemizer lexicon.", None)
    unknown_words: Literal["espeak", "rules", "error"] = option(
        "How words that the lexicon lacks are pronounced: by espeak-ng, by letter-to-sound rules, or not at all "
        "(an error).",
        "espeak",
    )

    @property
    def is_english(self) -> bool:
        """Whether the rules and phonemes of English are used."""
        return self.language in ENGLISH

    @field_validator("language")
    @classmethod
    def _there_is_a_voice(cls, language: str) -> str:
        if language not in (*ENGLISH, *LANGUAGES):
            near = get_close_matches(language.lower(), (*ENGLISH, *LANGUAGES), 3, 0.3)
            raise PydanticCustomError(
                "no_voice",
                "espeak-ng has no language {language} here{hint}",
                {"language": language, "hint": f"; did you mean {' or '.join(near)}?" if near else ""},
            )
        return language

    @model_validator(mode="after")
    def _other_languages_have_espeak_alone(self) -> FrontEndConfig:
        if not self.is_english and (self.phonemizer, self.alphabet) != ("espeak", "ipa"):
            raise PydanticCustomError(
                "only_english",
                "language {language} requires phonemizer: espeak and alphabet: ipa, not {phonemizer} and {alphabet}",
                {"language": self.language, "phonemizer": self.phonemizer, "alphabet": self.alphabet},
            )
        return self

    @model_validator(mode="after")
    def _locales_are_of_english(self) -> FrontEndConfig:
        if not self.is_english and self.locale != "en-US":
            raise PydanticCustomError(
                "locale_of_english",
                "locale {locale} is for English; language is {language}",
                {"locale": self.locale, "language": self.language},
            )
        return self

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
