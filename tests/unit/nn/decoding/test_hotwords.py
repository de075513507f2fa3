"""Hotwords add their weights to a text's score, and nothing where the text leaves them halfway."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from vaak.core.errors import UserError
from vaak.nn.decoding.ctc_beam import CtcBeam
from vaak.nn.decoding.ctc_search import ctc_beam_search, search_rows
from vaak.nn.decoding.hotword_list import read_hotwords
from vaak.nn.decoding.hotwords import BEGIN, Hotwords

PIECES = ("", "a", "b", " ")  # the blank is the first
WEIGHTS = {"ab": 2.0, "a": 0.5, "ab ba": 3.0, "B a b": 1.5}
TEXTS = (" ", "", "ab", "AB ba", "ab ba ab", "aba", "ab,ba!", "b a b a b", "ab  ba", "cab ab", "a-b")


def count_by_hand(text: str, weights: dict[str, float]) -> float:
    """Return the hotwords' contribution to a text's score, by splitting it into words."""
    words = re.findall(r"\w+", text.lower())
    total = 0.0
    for hotword, weight in weights.items():
        own = hotword.lower().split()
        total += weight * sum(words[at : at + len(own)] == own for at in range(len(words)))
    return total


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_weight_of_each_hotword_however_it_is_split(text: str):
    rng = np.random.default_rng(0)
    for _ in range(20):
        cuts = np.sort(rng.integers(0, len(text) + 1, 3))
        parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        hotwords = Hotwords(WEIGHTS, parts)
        assert hotwords.score(range(len(parts))) == pytest.approx(count_by_hand(text, WEIGHTS))


def test_letters_whose_bytes_are_in_several_tokens_are_those_of_the_hotword():
    content = " नमस्ते é".encode()
    tokens = [content[at : at + 1] for at in range(len(content))]
    assert Hotwords({"नमस्ते": 2.0, "é": 1.0}, tokens).score(range(len(tokens))) == pytest.approx(3.0)
    assert Hotwords({"É": 1.0}, ["é", "e\u0301"]).score([0]) == pytest.approx(1.0)
    assert Hotwords({"É": 1.0}, ["é", "e\u0301"]).score([1]) == pytest.approx(1.0)


def test_parts_of_a_weight_grow_with_the_letters_and_are_taken_back():
    hotwords = Hotwords({"abba": 8.0}, ["a", "b", " "])
    gains, places = hotwords.find_gains(np.array([BEGIN]))
    assert gains[places[0]].tolist() == [2.0, 0.0, 0.0]
    state, total = np.array(BEGIN), []
    for token in (0, 1, 1, 0, 0, 2):  # abbaa: the word goes on
        state, gained = hotwords.read(state, np.array(token))
        total.append(float(gained))
    assert total == pytest.approx([2.0, 2.0, 2.0, 2.0, -8.0, 0.0])
    assert hotwords.score([0, 1, 1, 0, 0]) == hotwords.score([0, 1, 1]) == 0


def test_a_hotword_that_a_beam_would_lose_is_found():
    letters = ("", *"abcdefghijklmnopqrstuvwxyz", " ")
    heard, meant = "we saw dedulus there", "we saw dedalus there"
    frames = np.full((2 * len(heard), len(letters)), -8.0)
    for place, letter in enumerate(heard):
        frames[2 * place, letters.index(letter)] = 0.0
        frames[2 * place + 1, 0] = 0.0
    frames[2 * heard.index("u"), letters.index("a")] = -3.0
    frames -= np.logaddexp.reduce(frames, axis=1, keepdims=True)

    def find(weights: dict[str, float] | None) -> str:
        hotwords = None if weights is None else Hotwords(weights, letters)
        return "".join(letters[one] for one in ctc_beam_search(frames, CtcBeam(letters, 0, 8, hotwords=hotwords))[0][1])

    assert find(None) == heard
    assert find({"Dedalus": 4.0}) == meant
    assert find({"Dedalus": 2.0}) == heard, "a weight below what the audio says against it changes nothing"
    assert find({"dedaluses": 9.0, "sawing": 9.0}) == heard, "what it begins like is not what it is"


def test_files_and_words_have_their_weights(tmp_path: Path):
    names = tmp_path / "names.txt"
    names.write_text("Dedalus\t7.5\n\n New York \nनमस्ते\n", encoding="utf-8")
    found = read_hotwords(["Ambrose", str(names)], 4.0, (".txt",))
    assert found == {"Ambrose": 4.0, "Dedalus": 7.5, "New York": 4.0, "नमस्ते": 4.0}
    names.write_text("Dedalus\n-\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"names\.txt:2: a hotword needs a letter or a digit"):
        read_hotwords([str(names)], 4.0, (".txt",))
    for wrong in ("x", "-1", "0", "nan", "inf"):
        names.write_text(f"Dedalus\t{wrong}\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"names\.txt:1: expected a weight above 0 after the tab, found"):
            read_hotwords([str(names)], 4.0, (".txt",))
    with pytest.raises(UserError, match=r"none\.txt"):
        read_hotwords([str(tmp_path / "none.txt")], 4.0, (".txt",))


def test_what_is_kept_of_gains_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vaak.nn.decoding.hotwords.MOST_STORED", 3 * len(PIECES))
    rng = np.random.default_rng(2)
    rows = [np.log(rng.dirichlet(np.ones(len(PIECES)), 20)) for _ in range(3)]
    small = search_rows(rows, CtcBeam(PIECES, 0, 4, hotwords=Hotwords(WEIGHTS, PIECES)))
    monkeypatch.undo()
    assert small == search_rows(rows, CtcBeam(PIECES, 0, 4, hotwords=Hotwords(WEIGHTS, PIECES)))
