"""Phonemes by espeak-ng: phrases in, words as espeak-ng's phonemes out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from vaak.audio.synthesis.espeak_library import fresh_library

_UTF8 = 1
_IPA_SEPARATED = 2 | ord("_") << 8
"""espeakPHONEMES_IPA, with a character between phonemes."""

Spoken = tuple[tuple[str, ...], ...]
"""Words, each of its phonemes with their stress marks; what espeak-ng says as one word is one here (of the)."""


def espeak_phonemes(phrases: Sequence[str], voice: str) -> list[Spoken]:
    """The words of each phrase; a phrase has no punctuation.

    The library is loaded once for all. What it says of a phrase doesn't depend on other phrases.

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
    while pointer.value:
        clause = library.espeak_TextToPhonemes(ctypes.byref(pointer), _UTF8, _IPA_SEPARATED).decode()
        for word in clause.split():
            # A phoneme of another language comes after the language's name in parentheses.
            phonemes = tuple(one for one in word.split("_") if one and not one.startswith("("))
            if phonemes:
                words.append(phonemes)
    return tuple(words)
