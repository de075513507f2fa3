"""Normalised text as phrases and punctuation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from vaak.core.errors import DataError
from vaak.text.speech.inventory import PUNCTUATION
from vaak.text.speech.normalisation.characters import ACCENTED_LETTERS, shown
from vaak.text.speech.phonemes.heteronyms import MARK, sense_of


class Piece(NamedTuple):
    """A ``phrase`` of words, ``letters`` that are read by their names, or a ``mark`` of punctuation."""

    kind: Literal["phrase", "letters", "mark"]
    words: tuple[str, ...]


_LETTER = f"[A-Za-z{ACCENTED_LETTERS}]"
_TOKEN = re.compile(
    rf"(?P<word>{_LETTER}+(?:'{_LETTER}+)*(?:(?<=s)'(?=\s|$))?)|(?P<mark>[{re.escape(''.join(PUNCTUATION))}])|(?P<gap>[\s'-]+)"
)


def pieces(text: str) -> list[Piece]:
    """The pieces of a text in letters, punctuation, apostrophes and hyphens.

    A single letter is read by its name, except ``I``, ``a``, and ``A`` where a sentence begins.

    Raises DataError for other characters, and for a text without words.

    >>> [(piece.kind, " ".join(piece.words)) for piece in pieces("A well-known F B I man, I say")]
    [('phrase', 'A well known'), ('letters', 'F B I'), ('phrase', 'man'), ('mark', ','), ('phrase', 'I say')]
    """
    found: list[Piece] = []
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise DataError(
                f"{shown(text)}: {text[place]} can't be pronounced; with normalise: true it is read in words"
            )
        place = token.end()
        if token.lastgroup == "mark":
            found.append(Piece("mark", (token[0],)))
        elif token.lastgroup == "word":
            _add(found, token[0], _is_letter(token[0], found, text[place : place + 3]))
    if not any(piece.kind != "mark" for piece in found):
        raise DataError(f"{shown(text)}: there is nothing to speak in it" if text else "the text is empty")
    return found


def with_senses(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a text, in which each heteronym carries its sense.

    >>> with_senses([Piece("phrase", ("She", "read", "the", "record"))])[0].words
    ('She', 'read_past', 'the', 'record_noun')
    """
    text = [word for piece in pieces for word in (piece.words if piece.kind != "mark" else (",",))]
    lower = [word.lower() for word in text]
    found, start = list[Piece](), 0
    for piece in pieces:
        marked = piece.words
        if piece.kind == "phrase":
            marked = tuple(
                word if (sense := sense_of(lower, start + place, word)) is None else f"{word}{MARK}{sense}"
                for place, word in enumerate(piece.words)
            )
        found.append(piece._replace(words=marked))
        start += len(piece.words)
    return found


def _is_letter(word: str, found: list[Piece], following: str) -> bool:
    if len(word) > 1:
        return word[0].isupper() and word[1:] == "'s"
    in_letters = bool(found) and found[-1].kind == "letters"
    letter_follows = re.match(r" [A-Z]\b", following) is not None
    if word == "I":
        return in_letters or (letter_follows and following[1] != "A")
    if word == "A":
        return in_letters or not re.match(r" [A-Za-z]{2}", following) or (bool(found) and found[-1].kind == "phrase")
    return word != "a"


def _add(found: list[Piece], word: str, letter: bool) -> None:
    kind: Literal["letters", "phrase"] = "letters" if letter else "phrase"
    if found and found[-1].kind == kind:
        found[-1] = Piece(kind, (*found[-1].words, word))
    else:
        found.append(Piece(kind, (word,)))
