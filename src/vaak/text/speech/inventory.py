"""The symbols that a model reads, in their fixed order."""

from __future__ import annotations

import string

from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.phonemes.alphabets import inventory

PAD, BOUNDARY, PAUSE, NOISE = "<pad>", " ", "sil", "spn"
"""Padding; between two words; a pause; what an aligner marks as noise or as an unknown word."""

SPECIAL = (PAD, BOUNDARY, PAUSE, NOISE)

PAUSING = (",", ".", "?", "!", ";", ":", "—", "…", "(", ")")
"""Punctuation at which one pauses."""

PUNCTUATION = (*PAUSING, '"')

CHARACTERS = (*string.ascii_lowercase, "'")


def symbols_of(config: FrontEndConfig) -> tuple[str, ...]:
    """The inventory: special symbols, punctuation, then phonemes or letters. A symbol's id is its place."""
    spoken = CHARACTERS if config.phonemizer == "characters" else inventory(config.alphabet, config.stress)
    return (*SPECIAL, *PUNCTUATION, *spoken)
