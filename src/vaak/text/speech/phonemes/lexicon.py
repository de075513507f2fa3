"""A pronouncing dictionary in CMUdict's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vaak.core.errors import DataError
from vaak.text.speech.phonemes.alphabets import from_arpabet
from vaak.text.speech.phonemes.letter_rules import VOWELS

_ALTERNATIVE = re.compile(r"\(\d+\)$")
_SIBILANTS = ("S", "Z", "SH", "ZH", "CH", "JH")
_VOICELESS = ("P", "T", "K", "F", "TH")


def read_lexicon(path: Path) -> dict[str, str]:
    """The phonemes of each word in lower case; of several pronunciations the first.

    A line is a word and its phonemes (``HELLO  HH AH0 L OW1``); ``WORD(2)`` is another pronunciation; what follows
    ``#``, and lines that begin with ``;;;``, are comments.

    Raises DataError, with file and line, for a phoneme that isn't of ARPAbet, and for a file without words.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        content = path.read_text(encoding="latin-1")  # as older versions of CMUdict are
    except OSError as error:
        raise DataError(f"lexicon {path}: {error.strerror}; give a file in CMUdict's format") from error
    entries: dict[str, str] = {}
    for number, line in enumerate(content.split("\n"), 1):
        if line.startswith(";;;"):
            continue
        word, *phonemes = re.split(r"\s#", line)[0].split() or [""]
        if not word:
            continue
        if not phonemes:
            raise DataError(f"{path}:{number}: {word} has no phonemes; a line is a word and its phonemes")
        _demand_known(phonemes, f"{path}:{number}")
        if not _ALTERNATIVE.search(word):
            entries.setdefault(word.lower(), " ".join(phonemes))
    if not entries:
        raise DataError(f"{path}: this lexicon has no words; a line is a word and its phonemes: HELLO  HH AH0 L OW1")
    return entries


def has_stress(entries: Mapping[str, str]) -> bool:
    """Whether a lexicon marks the stress of its vowels."""
    return any(one.isdigit() for phonemes in entries.values() for one in phonemes)


def looked_up(word: str, entries: Mapping[str, str]) -> tuple[str, ...] | None:
    """The phonemes of a word; of a possessive, those of the word and its ending. None if it isn't there.

    >>> looked_up("cat's", {"cat": "K AE1 T"}), looked_up("fox's", {"fox": "F AA1 K S"}), looked_up("cats'", {})
    (('K', 'AE1', 'T', 'S'), ('F', 'AA1', 'K', 'S', 'IH0', 'Z'), None)
    """
    if found := entries.get(word):
        return tuple(found.split())
    if word.endswith("s'"):
        return looked_up(word[:-1], entries)
    if word.endswith("'s") and (found := entries.get(word[:-2])):
        phonemes = tuple(found.split())
        if phonemes[-1] in _SIBILANTS:
            return (*phonemes, "IH0", "Z")
        return (*phonemes, "S" if phonemes[-1] in _VOICELESS else "Z")
    return None


def _demand_known(phonemes: list[str], where: str) -> None:
    for phoneme in phonemes:
        try:
            from_arpabet(phoneme, "ipa", stress=True)
        except KeyError:
            raise DataError(
                f"{where}: {phoneme} is not a phoneme of ARPAbet; vowels are {' '.join(sorted(VOWELS))}, with a digit "
                "0, 1 or 2 for their stress"
            ) from None
