"""What pronounces phrases: espeak-ng; a lexicon, with espeak-ng or rules for what it lacks; or letters themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from vaak.core.errors import DataError
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.normalisation.characters import without_accents
from vaak.text.speech.normalisation.tables import table
from vaak.text.speech.phonemes.alphabets import STRESS_MARKS, Alphabet, from_arpabet, from_espeak
from vaak.text.speech.phonemes.by_espeak import espeak_phonemes
from vaak.text.speech.phonemes.heteronyms import MARK, heteronyms, unmarked
from vaak.text.speech.phonemes.letter_rules import pronounced
from vaak.text.speech.phonemes.lexicon import looked_up

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


def pronunciation_of(config: FrontEndConfig, entries: Mapping[str, str]) -> Pronunciation:
    """That of the options; ``entries`` are the lexicon's."""
    if config.phonemizer == "characters":
        return _characters
    if config.phonemizer == "espeak":
        return _ByEspeak(config)
    return _ByLexicon(config, entries)


def voice_of(config: FrontEndConfig) -> str:
    """The espeak-ng voice of the language: British English is its plain ``en``."""
    return "en" if config.language == "en-gb" else config.language


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


def _around_heteronyms(phrase: str) -> list[tuple[str, str, str]]:
    """Of each heteronym of a phrase: the words before it, the heteronym with its sense, the words after it."""
    words = phrase.split()
    return [
        (unmarked(" ".join(words[:place])), word, unmarked(" ".join(words[place + 1 :])))
        for place, word in enumerate(words)
        if MARK in word
    ]


def _parts_of(phrase: str) -> list[str]:
    """What espeak-ng is asked for a phrase: itself, what surrounds its heteronyms, and what these sound like."""
    around = _around_heteronyms(phrase)
    said = [part for before, mark, after in around for part in (before, after, heteronyms()[mark.lower()].espeak)]
    return [unmarked(phrase), *(part for part in said if part)]


class _ByEspeak:
    def __init__(self, config: FrontEndConfig) -> None:
        self._voice = voice_of(config)
        self._alphabet: Alphabet = config.alphabet
        self._stress = config.stress

    def __call__(self, phrases: Sequence[str]) -> list[Words]:
        asked = dict.fromkeys(part for phrase in phrases for part in _parts_of(phrase))
        spoken = dict(zip(asked, espeak_phonemes(list(asked), self._voice), strict=True))
        said = {part: self._converted(part, words) for part, words in spoken.items()}
        return [self._with_senses(phrase, said) for phrase in phrases]

    def _with_senses(self, phrase: str, said: Mapping[str, Words]) -> Words:
        """The words of a phrase, each heteronym as its sense is pronounced.

        espeak-ng joins some words (``in the``), so a heteronym's place is that after the words of what precedes it.
        """
        found = said[unmarked(phrase)]
        for before, mark, after in _around_heteronyms(phrase):
            place = len(said[before]) if before else 0
            if place + 1 + (len(said[after]) if after else 0) == len(found):
                found = (*found[:place], self._heteronym(mark, said), *found[place + 1 :])
        return found

    def _heteronym(self, mark: str, said: Mapping[str, Words]) -> tuple[str, ...]:
        heteronym = heteronyms()[mark.lower()]
        read = [from_arpabet(one, self._alphabet, self._stress) for one in (*heteronym.arpabet, *heteronym.ending)]
        ending = read[len(heteronym.arpabet) :] if heteronym.espeak else read
        symbols = tuple(symbol for one in ending for symbol in one)
        return (*said[heteronym.espeak][-1], *symbols) if heteronym.espeak else symbols

    def _converted(self, phrase: str, words: Words) -> Words:
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
        known = {word: self._known(word) for word in words}
        lacking = [word for word, found in known.items() if found is None]
        others = dict(zip(lacking, self._otherwise(lacking), strict=True)) if lacking else {}
        return [tuple(known[word] or others[word] for word in phrase.split()) for phrase in phrases]

    def _known(self, word: str) -> tuple[str, ...] | None:
        """From the lexicon; the name of a single capital, except of I."""
        if MARK in word:
            heteronym = heteronyms()[word.lower()]
            return self._converted((*heteronym.arpabet, *heteronym.ending))
        letter = word[0].isupper() and word.lower() in _LETTERS
        found = looked_up(word.lower(), LETTERS if letter else self._entries)
        return None if found is None else self._converted(found)

    def _otherwise(self, words: list[str]) -> list[tuple[str, ...]]:
        if self._config.unknown_words == "error":
            raise DataError(
                f"the lexicon lacks {', '.join(words[:10])}{' …' if len(words) > 10 else ''}; add them, or set "
                "unknown_words to espeak or rules"
            )
        if self._config.unknown_words == "rules":
            return [self._converted(pronounced(word.lower()) or _spelled(word)) for word in words]
        return [tuple(symbol for word in spoken for symbol in word) for spoken in self._espeak(words)]

    def _converted(self, phonemes: Iterable[str]) -> tuple[str, ...]:
        config = self._config
        return tuple(symbol for phoneme in phonemes for symbol in from_arpabet(phoneme, config.alphabet, config.stress))
