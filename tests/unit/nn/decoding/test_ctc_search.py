"""The search over prefixes, against every path of every text."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from vaak.core.errors import DataError
from vaak.nn.ctc import collapse
from vaak.nn.decoding.ctc_search import CtcBeam, ctc_beam_search
from vaak.text.ngram import Ngram

ARPA = """\
\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-0.9\t<s>\t-0.2
-0.8\t</s>
-0.6\ta\t-0.4
-0.7\tb\t-0.1
-1.5\t<unk>

\\2-grams:
-0.3\t<s> a\t-0.25
-0.4\ta b\t-0.15
-0.2\tb </s>

\\3-grams:
-0.1\t<s> a b

\\end\\
"""
PIECES = ("", "a", "b", " ")  # the blank is the first


@pytest.fixture
def ngram(tmp_path: Path) -> Ngram:
    (tmp_path / "words.arpa").write_text(ARPA)
    return Ngram(tmp_path / "words.arpa")


def test_an_ngram_backs_off(ngram: Ngram):
    found = {
        (("<s>", "a"), "b"): -0.1,
        (("<s>", "a"), "a"): -0.25 - 0.4 - 0.6,  # neither three words nor two: both back-offs
        (("x", "y", "b"), "</s>"): -0.2,
        (("a", "b"), "</s>"): -0.15 - 0.2,
        ((), "other"): -1.5,
        (("b",), "other"): -0.1 - 1.5,
    }
    for (before, word), expected in found.items():
        assert ngram.score(before, word) / math.log(10) == pytest.approx(expected)
    assert ngram.after(ngram.begin(), "a") == ("<s>", "a")
    assert ngram.after(("<s>", "a"), "other") == ("a", "<unk>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ARPA.replace("\\end\\", ""), "no .end."),
        (ARPA.replace("ngram 2=3", "ngram 2=4"), r"counts \[5, 4, 1\] n-grams, but there are \[5, 3, 1\]"),
        (ARPA.replace("-0.4\ta b\t-0.15", "-0.4\ta"), ":15: expected a number, 2 words"),
        ("so it is\n", "not a whole ARPA file"),
    ],
)
def test_what_is_not_an_arpa_file_is_one_line(tmp_path: Path, content: str, message: str):
    (tmp_path / "words.arpa").write_text(content)
    with pytest.raises(DataError, match=message):
        Ngram(tmp_path / "words.arpa")


def every_text(log_probs: np.ndarray, search: CtcBeam) -> dict[tuple[int, ...], float]:
    """The score of each text, by all of its paths and by its words as they are split."""
    sums: dict[tuple[int, ...], float] = defaultdict(lambda: -math.inf)
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        total = sum(frame[token] for frame, token in zip(log_probs, path, strict=True))
        ids = tuple(collapse(path, search.blank))
        sums[ids] = float(np.logaddexp(sums[ids], total))
    return {ids: total + bonus_of(ids, search) for ids, total in sums.items()}


def bonus_of(ids: tuple[int, ...], search: CtcBeam) -> float:
    words = "".join(search.pieces[one] for one in ids).split()
    bonus = search.beta * len(words)
    if isinstance(search.words, Ngram):
        said = ["<s>", *words, "</s>"]
        bonus += search.alpha * sum(search.words.score(tuple(said[:at]), said[at]) for at in range(1, len(said)))
    return bonus


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.8, 0.5), (2.0, -1.0)])
def test_a_beam_that_holds_all_finds_the_best_of_all(ngram: Ngram, alpha: float, beta: float):
    generator = np.random.default_rng(0)
    for frames in (1, 3, 5):
        scores = generator.normal(size=(frames, len(PIECES)))
        log_probs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        search = CtcBeam(PIECES, 0, 2000, ngram if alpha else None, alpha, beta)
        expected = every_text(log_probs, search)
        found = ctc_beam_search(log_probs, search)
        assert len(found) == len(expected)
        assert found[0][1] == max(expected, key=lambda ids: expected[ids])
        for score, ids in found:
            assert score == pytest.approx(expected[ids], abs=1e-9)


def test_a_language_model_changes_what_is_found_and_a_narrow_beam_finds_the_obvious(ngram: Ngram):
    frames = np.log(np.array([[0.02, 0.94, 0.02, 0.02], [0.05, 0.05, 0.05, 0.85], [0.02, 0.5, 0.46, 0.02]]))
    assert ctc_beam_search(frames, CtcBeam(PIECES, 0, 3))[0][1] == (1, 3, 1)
    assert ctc_beam_search(frames, CtcBeam(PIECES, 0, 3, ngram, 1.0))[0][1] == (1, 3, 2)
