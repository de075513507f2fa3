"""Hotwords as people give them: words and phrases, and files of them, with their weights. No numpy."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path

from vaak.core.errors import UserError
from vaak.core.storage.text_lines import read_text_lines


def read_hotwords(entries: Sequence[str], weight: float, file_endings: tuple[str, ...]) -> dict[str, float]:
    """Return the weight of each hotword; ``entries`` are hotwords, and files of them, whose names end so.

    A hotword may have its own weight after a tab. Raises UserError for a file that can't be read, for a weight
    that isn't a number above 0, and for a hotword without letters or digits.
    """
    found: dict[str, float] = {}
    for entry in entries:
        if not entry.endswith(file_endings):
            found |= _parse(entry, weight, repr(entry))
            continue
        for number, line in enumerate(read_text_lines(Path(entry)), 1):
            if line.strip():
                found |= _parse(line, weight, f"{entry}:{number}")
    return found


def _parse(entry: str, weight: float, where: str) -> dict[str, float]:
    text, tab, own = entry.strip().partition("\t")
    if tab:
        try:
            weight = float(own)
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise UserError(f"{where}: expected a weight above 0 after the tab, found {own!r}")
    if not split_words(text):
        raise UserError(f"{where}: a hotword needs a letter or a digit")
    return {text.strip(): weight}


def is_spelt(text: str, letters: Collection[str]) -> bool:
    """Return whether a hotword can be written with some letters, in one of the cases in which texts may have it.

    >>> is_spelt("New York", "NEWYORK"), is_spelt("Zürich", "zrich")
    (True, False)
    """
    words = "".join(split_words(text))
    return any({*one} <= {*letters} for one in (words, words.lower(), words.upper(), words.title()))


def split_words(text: str) -> list[str]:
    """Return the words of a text, as hotwords are compared by them, in their case."""
    return space_words(text).split()


def space_words(text: str) -> str:
    """Return a text with a space for each character that separates words: all but letters, marks and digits."""
    return "".join(one if _is_of_words(one) else " " for one in text)


def _is_of_words(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] in "LMN" or kind == "Cs"
