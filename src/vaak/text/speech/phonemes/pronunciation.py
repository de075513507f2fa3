"""Pronounces phrases: by espeak-ng; by a lexicon as CMUdict, with espeak-ng or rules for what it lacks; by letters."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from vaak.audio.espeak import fresh_library
from vaak.core.errors import DataError
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.english import without_accents
from vaak.text.speech.phonemes.alphabets import (
    STRESS_MARKS,
    Alphabet,
    from_arpabet,
    from_either,
    from_espeak,
    from_ipa,
)
from vaak.text.speech.phonemes.heteronyms import MARK, ending_after, heteronyms, unmarked
from vaak.text.speech.phonemes.letter_rules import VOWELS, pronounced
from vaak.text.speech.words import table

Words = tuple[tuple[str, ...], ...]
"""The symbols of each word of a phrase."""
LETTERS = table(
    """
    a=EY1 b=B_IY1 c=S_IY1 d=D_IY1 e=IY1 f=EH1_F g=JH_IY1 h=EY1_CH i=AY1 j=JH_EY1 k=K_EY1 l=EH1_L m=EH1_M n=EH1_N o=OW1
    p=P_IY1 q=K_Y_UW1 r=AA1_R s=EH1_S t=T_IY1 u=Y_UW1 v=V_IY1 w=D_AH1_B_AH0_L_Y_UW0 x=EH1_K_S y=W_AY1 z=Z_IY1
    """
)
"""The names of letters, in ARPAbet."""
_LETTERS = frozenset((*LETTERS, *(f"{letter}'s" for letter in LETTERS)))


class Pronunciation(Protocol):
    """Pronounces phrases: words, separated by spaces; a single capital alone is the name of a letter.

    A heteronym may carry its sense (``read_past``).
    """

    def __call__(self, phrases: Sequence[str]) -> list[Words]:
        """The words of each phrase. Raises DataError with the phrase for what it can't pronounce."""


def make_pronunciation(config: FrontEndConfig, entries: Mapping[str, str]) -> Pronunciation:
    """Return the pronunciation that the options ask for; ``entries`` are the lexicon's."""
    if config.phonemizer == "characters":
        return _characters
    if not config.is_english:
        return partial(_of_language, config)
    if config.phonemizer == "espeak":
        return _ByEspeak(config)
    return _ByLexicon(config, entries)


def demoted(phonemes: Iterable[str]) -> tuple[str, ...]:
    """Phonemes whose primary stress is secondary, as of all letters of an initialism but the last.

    >>> demoted(("EH1", "F")), demoted(("b", "ˈiː"))
    (('EH2', 'F'), ('b', 'ˌiː'))
    """
    primary, secondary = STRESS_MARKS["1"], STRESS_MARKS["2"]
    return tuple(
        f"{one[:-1]}2" if one.endswith("1") else one.replace(primary, secondary, 1) if one[0] == primary else one
        for one in phonemes
    )


def _spelled(word: str) -> tuple[str, ...]:
    """The names of a word's letters, for one that has no sound (hh)."""
    return tuple(phoneme for letter in word.lower() for phoneme in LETTERS.get(letter, "").split())


def _characters(phrases: Sequence[str]) -> list[Words]:
    return [tuple(tuple(without_accents(word.lower())) for word in unmarked(phrase).split()) for phrase in phrases]


def _of_language(config: FrontEndConfig, phrases: Sequence[str]) -> list[Words]:
    """The words of phrases of a language other than English, as espeak-ng says them."""
    found: list[Words] = []
    for phrase, words in zip(phrases, espeak_phonemes(phrases, config.language), strict=True):
        try:
            symbols = (tuple(one for unit in word for one in from_ipa(unit, config.stress)) for word in words)
            found.append(tuple(word for word in symbols if word))
        except KeyError as error:
            raise DataError(f"{phrase!r}: espeak-ng reads it with {error.args[0]}, which is not of IPA") from None
    return found


def _around_heteronyms(phrase: str) -> list[tuple[str, str, str]]:
    """Return, for each heteronym of a phrase, the words before it, the heteronym with its sense, the words after it."""
    words = phrase.split()
    return [
        (unmarked(" ".join(words[:index])), word, unmarked(" ".join(words[index + 1 :])))
        for index, word in enumerate(words)
        if MARK in word
    ]


def _split_phrase(phrase: str) -> list[str]:
    """Return what espeak-ng is asked for a phrase: itself, what surrounds its heteronyms, and what these sound like."""
    around = _around_heteronyms(phrase)
    said = [part for before, mark, after in around for part in (before, after, heteronyms()[mark.lower()].espeak)]
    return [unmarked(phrase), *(part for part in said if part)]


class _ByEspeak:
    def __init__(self, config: FrontEndConfig) -> None:
        # espeak-ng calls British English plain ``en``
        self._voice = "en" if config.language == "en-gb" else config.language
        self._alphabet: Alphabet = config.alphabet
        self._stress = config.stress

    def __call__(self, phrases: Sequence[str]) -> list[Words]:
        # Everything is asked in one go: each call loads the library.
        asked = dict.fromkeys(part for phrase in phrases for part in _split_phrase(phrase))
        spoken = dict(zip(asked, espeak_phonemes(list(asked), self._voice), strict=True))
        said = {part: self._convert(part, words) for part, words in spoken.items()}
        return [self._pronounce_senses(phrase, said) for phrase in phrases]

    def _pronounce_senses(self, phrase: str, said: Mapping[str, Words]) -> Words:
        """The words of a phrase, each heteronym as its sense is pronounced.

        espeak-ng joins some words (``in the``), so a heteronym's place is that after the words of what precedes it.
        """
        found = said[unmarked(phrase)]
        for before, mark, after in _around_heteronyms(phrase):
            place = len(said[before]) if before else 0
            # Only if the words add up: where espeak-ng joined the heteronym with a neighbour, its own reading stays.
            if place + 1 + (len(said[after]) if after else 0) == len(found):
                sense = heteronyms()[mark.lower()]
                read = [from_arpabet(one, self._alphabet, self._stress) for one in (*sense.arpabet, *sense.ending)]
                # espeak-ng speaks a word that sounds like this sense; only the ending is added.
                if sense.espeak:
                    read = [said[sense.espeak][-1], *read[len(sense.arpabet) :]]
                found = (*found[:place], tuple(symbol for one in read for symbol in one), *found[place + 1 :])
        return found

    def _convert(self, phrase: str, words: Words) -> Words:
        try:
            return tuple(
                tuple(symbol for unit in word for symbol in from_espeak(unit, self._alphabet, self._stress))
                for word in words
            )
        except KeyError as error:
            raise DataError(
                f"{phrase!r}: espeak-ng reads it with {error.args[0]}, which is not a phoneme of English; "
                "spell it in another way"
            ) from None


class _ByLexicon:
    def __init__(self, config: FrontEndConfig, entries: Mapping[str, str]) -> None:
        self._config = config
        self._entries = entries
        self._espeak = _ByEspeak(config)

    def __call__(self, phrases: Sequence[str]) -> list[Words]:
        words = dict.fromkeys(word for phrase in phrases for word in phrase.split())
        known = {word: self._look_up(word) for word in words}
        lacking = [word for word, found in known.items() if found is None]
        others = dict(zip(lacking, self._otherwise(lacking), strict=True)) if lacking else {}
        return [tuple(known[word] or others[word] for word in phrase.split()) for phrase in phrases]

    def _look_up(self, word: str) -> tuple[str, ...] | None:
        """Return a word's pronunciation in the lexicon; that of its name for a single capital other than I."""
        if MARK in word:
            heteronym = heteronyms()[word.lower()]
            return self._convert((*heteronym.arpabet, *heteronym.ending))
        # A single capital is the name of a letter, even where the lexicon has such a word (a).
        letter = word[0].isupper() and word.lower() in _LETTERS
        found = looked_up(word.lower(), LETTERS if letter else self._entries)
        return None if found is None else self._convert(found)

    def _otherwise(self, words: list[str]) -> list[tuple[str, ...]]:
        if self._config.unknown_words == "error":
            raise DataError(
                f"the lexicon lacks {', '.join(words[:10])}{' …' if len(words) > 10 else ''}; add them, or set "
                "unknown_words to espeak or rules"
            )
        if self._config.unknown_words == "rules":
            return [self._convert(pronounced(word.lower()) or _spelled(word)) for word in words]
        return [tuple(symbol for word in spoken for symbol in word) for spoken in self._espeak(words)]

    def _convert(self, phonemes: Iterable[str]) -> tuple[str, ...]:
        config = self._config
        return from_either(" ".join(phonemes), config.alphabet, config.stress)


_UTF8 = 1
_IPA_SEPARATED = 2 | ord("_") << 8
"""espeakPHONEMES_IPA, with a character between phonemes."""
Spoken = tuple[tuple[str, ...], ...]
"""Words, each of its phonemes with their stress marks; words that espeak-ng joins (of the) are one here."""


def espeak_phonemes(phrases: Sequence[str], voice: str) -> list[Spoken]:
    """The words of each phrase; a phrase has no punctuation.

    The library is loaded once for all. The phonemes of a phrase don't depend on other phrases.

    Raises UserError if the voice or the wheel is missing.
    """
    if not phrases:
        return []
    with fresh_library(voice) as (library, _):
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        library.espeak_TextToPhonemes.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int)
        return [_phrase(library, phrase) for phrase in phrases]


def _phrase(library: ctypes.CDLL, phrase: str) -> Spoken:
    """The library goes through the text clause by clause, and sets its pointer to null at the end."""
    content = ctypes.create_string_buffer(phrase.encode())
    pointer = ctypes.c_void_p(ctypes.addressof(content))
    words: list[tuple[str, ...]] = []
    # Clause by clause: the library moves the pointer on, and sets it to null after the last.
    while pointer.value:
        clause = library.espeak_TextToPhonemes(ctypes.byref(pointer), _UTF8, _IPA_SEPARATED).decode()
        for word in clause.split():
            # A phoneme of another language comes after the language's name in parentheses.
            phonemes = tuple(one for one in word.split("_") if one and not one.startswith("("))
            if phonemes:
                words.append(phonemes)
    return tuple(words)


_PROBABILITY = re.compile(r"\d+(\.\d+)?")
_ALTERNATIVE = re.compile(r"\(\d+\)$")


def read_lexicon(path: Path) -> dict[str, str]:
    """The phonemes of each word in lower case; of several pronunciations the first.

    A line is a word and its phonemes, in ARPAbet or IPA (``HELLO  HH AH0 L OW1``, ``hello həˈloʊ``); ``WORD(2)``, or
    the word once more, is another pronunciation; probabilities after the word, as of the Montreal Forced Aligner, are
    left out; text after ``#``, and lines that begin with ``;;;``, are comments.

    Raises DataError, with file and line, for an unknown phoneme, and for a file without words.
    """
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        # Older versions of CMUdict are in latin-1.
        content = path.read_bytes().decode("latin-1")
    except OSError as error:
        raise DataError(f"lexicon {path}: {error.strerror}; give a file in CMUdict's format") from error
    entries: dict[str, str] = {}
    for number, line in enumerate(content.split("\n"), 1):
        if line.startswith(";;;"):
            continue
        # Only after a space: CMUdict has entries such as #HASH-MARK.
        word, *phonemes = re.split(r"\s#", line)[0].split() or [""]
        if not word:
            continue
        while phonemes and _PROBABILITY.fullmatch(phonemes[0]):
            del phonemes[0]
        if not phonemes:
            raise DataError(f"{path}:{number}: {word} has no phonemes; a line is a word and its phonemes")
        _require_known(phonemes, f"{path}:{number}")
        if not _ALTERNATIVE.search(word):
            entries.setdefault(word.lower(), " ".join(phonemes))
    if not entries:
        raise DataError(f"{path}: this lexicon has no words; a line is a word and its phonemes: HELLO  HH AH0 L OW1")
    return entries


def has_stress(entries: Mapping[str, str]) -> bool:
    """Return whether a lexicon marks the stress of its vowels."""
    return any(one.isdigit() or one in "ˈˌ" for phonemes in entries.values() for one in phonemes)


def looked_up(word: str, entries: Mapping[str, str]) -> tuple[str, ...] | None:
    """The phonemes of a word; for a possessive, those of the word and its ending. None if it isn't there.

    >>> looked_up("cat's", {"cat": "K AE1 T"}), looked_up("fox's", {"fox": "F AA1 K S"}), looked_up("cats'", {})
    (('K', 'AE1', 'T', 'S'), ('F', 'AA1', 'K', 'S', 'IH0', 'Z'), None)
    """
    if found := entries.get(word):
        return tuple(found.split())
    if word.endswith("s'"):
        return looked_up(word[:-1], entries)
    if word.endswith("'s") and (found := entries.get(word[:-2])):
        phonemes = tuple(found.split())
        return (*phonemes, *ending_after(phonemes[-1]))
    return None


def _require_known(phonemes: list[str], where: str) -> None:
    try:
        from_either(" ".join(phonemes), "ipa", stress=True)
    except KeyError as error:
        raise DataError(
            f"{where}: {error.args[0]} is not a phoneme of ARPAbet (vowels are {' '.join(sorted(VOWELS))}, with a "
            "digit 0, 1 or 2 for their stress), nor of espeak-ng's IPA"
        ) from None
