"""Normalised text as phrases, letters and punctuation."""

from __future__ import annotations

import pytest

from vaak.core.errors import DataError
from vaak.text.speech.processor import pieces


def kinds(text: str) -> list[str]:
    return [f"{piece.kind}: {' '.join(piece.words)}" for piece in pieces(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("well-known 'quoted' words' o'clock", ["phrase: well known quoted words' o'clock"]),
        (
            "A man. A, B and I say",
            ["phrase: A man", "mark: .", "letters: A", "mark: ,", "letters: B", "phrase: and I say"],
        ),
        ("the C I A's T V", ["phrase: the", "letters: C I A's T V"]),
        ("I, a man", ["phrase: I", "mark: ,", "phrase: a man"]),
        ("plan A works", ["phrase: plan", "letters: A", "phrase: works"]),
        ("x equals y", ["letters: x", "phrase: equals", "letters: y"]),
        ('"Go!" (now)', ['mark: "', "phrase: Go", "mark: !", 'mark: "', "mark: (", "phrase: now", "mark: )"]),
    ],
)
def test_pieces(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


@pytest.mark.parametrize("text", ["", "...", " - ' ", '"'])
def test_without_words_there_is_nothing_to_speak(text: str) -> None:
    with pytest.raises(DataError, match=r"nothing to speak|empty"):
        pieces(text)


def test_what_is_no_letter_is_shown_with_the_text() -> None:
    with pytest.raises(DataError, match=r"'In 1999': 1 can't be pronounced"):
        pieces("In 1999")
