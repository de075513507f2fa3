"""The search over prefixes, against every path of every text."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vaak.core.errors import DataError
from vaak.nn.ctc import collapse
from vaak.nn.decoding.ctc_beam import CtcBeam
from vaak.nn.decoding.ctc_search import ctc_beam_search, search_arrays, search_rows
from vaak.nn.decoding.ctc_tree import search_tree
from vaak.nn.decoding.hotwords import BEGIN, Hotwords
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
HOTWORDS = {"ab": 2.0, "a": 0.5, "ab ba": 3.0, "b a b": 1.5}
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
    [(first, after_a)] = ngram.read([(ngram.begin(), "a")])
    [(second, _), (unknown, after_unknown)] = ngram.read([(after_a, "b"), (after_a, "other")])
    log10 = (first / math.log(10), second / math.log(10), unknown / math.log(10))
    assert log10 == pytest.approx((-0.3, -0.1, -0.25 - 0.4 - 1.5))
    assert ngram.read([(after_unknown, "b")])[0][0] / math.log(10) == pytest.approx(-0.7)
    assert max(log10) <= ngram.highest / math.log(10)


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
    """Return the score of each text, by all of its paths and its split words."""
    sums: dict[tuple[int, ...], float] = defaultdict(lambda: -math.inf)
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        total = sum(frame[token] for frame, token in zip(log_probs, path, strict=True))
        ids = tuple(collapse(path, search.blank))
        sums[ids] = float(np.logaddexp(sums[ids], total))
    return {ids: total + bonus_of(ids, search) for ids, total in sums.items()}


def bonus_of(ids: tuple[int, ...], search: CtcBeam, *, has_ended: bool = True) -> float:
    """Return the words' contribution to a text's score, without the last word where it may still grow."""
    parts = "".join(search.pieces[one] for one in ids).split(" ")
    words = [word for word in (parts if has_ended else parts[:-1]) if word]
    bonus = search.beta * len(words)
    if isinstance(search.words, Ngram):
        said = ["<s>", *words, *(["</s>"] if has_ended else [])]
        bonus += search.alpha * sum(search.words.score(tuple(said[:at]), said[at]) for at in range(1, len(said)))
    if search.hotwords is not None and has_ended:
        bonus += sum(weight * count_occurrences(hotword.split(), words) for hotword, weight in HOTWORDS.items())
    elif search.hotwords is not None:
        bonus += read_tokens(search.hotwords, ids)[1]
    return bonus


@functools.cache
def read_tokens(hotwords: Hotwords, ids: tuple[int, ...]) -> tuple[int, float]:
    """The state of hotwords after tokens, and what these add."""
    if not ids:
        return BEGIN, 0.0
    state, total = read_tokens(hotwords, ids[:-1])
    after, gained = hotwords.read(np.array(state), np.array(ids[-1]))
    return int(after), total + float(gained)


def count_occurrences(some: list[str], words: list[str]) -> int:
    return sum(words[at : at + len(some)] == some for at in range(len(words)))


@pytest.mark.parametrize("hotwords", [{}, HOTWORDS])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.8, 0.5), (2.0, -1.0)])
def test_a_beam_that_holds_all_finds_the_best_of_all(
    ngram: Ngram, alpha: float, beta: float, hotwords: dict[str, float]
):
    generator = np.random.default_rng(0)
    for frames in (1, 3, 5):
        scores = generator.normal(size=(frames, len(PIECES)))
        log_probs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        preferred = Hotwords(hotwords, PIECES) if hotwords else None
        search = CtcBeam(PIECES, 0, 2000, ngram if alpha else None, alpha, beta, preferred)
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


def search_by_tuples(
    log_probs: np.ndarray, search: CtcBeam, *, looks_ahead: bool = False
) -> list[tuple[float, tuple[int, ...]]]:
    """The same search in its plainest form: prefixes are tuples, words are counted when they are split.

    ``looks_ahead``: a begun word that no word of the model begins with is charged before it ends.
    """
    ends: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}
    lowest = -np.inf if search.token_min_logp is None else search.token_min_logp
    behind = np.inf if search.beam_threshold is None else search.beam_threshold
    for whole_frame in log_probs.astype(np.float64):
        frame = np.where(whole_frame >= min(lowest, whole_frame.max()), whole_frame, -np.inf)
        tokens = np.argsort(-frame, kind="stable")[: search.beam_size].tolist()
        found: dict[tuple[int, ...], tuple[float, float]] = {}

        def add(ids: tuple[int, ...], blank: float, token: float, found: Any = found) -> None:
            before = found.get(ids, (-np.inf, -np.inf))
            found[ids] = float(np.logaddexp(before[0], blank)), float(np.logaddexp(before[1], token))

        for ids, (in_blank, in_token) in ends.items():
            whole = float(np.logaddexp(in_blank, in_token))
            add(ids, whole + frame[search.blank], in_token + frame[ids[-1]] if ids else -np.inf)
            for token in tokens:
                before = in_blank if ids and token == ids[-1] else whole
                if token != search.blank and before + frame[token] > -np.inf:
                    add((*ids, token), -np.inf, before + frame[token])
        scores = {ids: np.logaddexp(*one) + bonus_of(ids, search, has_ended=False) for ids, one in found.items()}
        if looks_ahead and search.words is not None:
            for ids in scores:
                begun = "".join(search.pieces[one] for one in ids).split(" ")[-1]
                lost = min(0.0, search.beta + search.alpha * search.words.unknown)
                scores[ids] += 0.0 if not begun or search.words.has_beginning(begun) else lost
        best = sorted(scores, key=lambda ids: -scores[ids])[: search.beam_size]
        ends = {ids: found[ids] for ids in best if scores[ids] >= scores[best[0]] - behind}
    scored = [(float(np.logaddexp(*one)) + bonus_of(ids, search), ids) for ids, one in ends.items()]
    return sorted(scored, key=lambda one: -one[0])


def draw_frames(rng: np.random.Generator, frames: int, vocab: int, never: int | None = None) -> np.ndarray:
    """Log-probabilities of frames, some flat and some nearly certain; one token may be impossible."""
    scores = rng.normal(size=(frames, vocab)) * rng.choice([0.5, 2.0, 8.0], size=(frames, 1))
    if never is not None:
        scores[:, never] = -np.inf
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


WITH_SPACES = ("", "a", "b", " ", " a", "b ", "a b a", " b a")  # tokens that end words in all ways


MODELS: tuple[tuple[float, float, dict[str, float]], ...] = (
    (0.0, 0.0, {}),
    (0.0, -1.0, {}),
    (0.8, 0.5, {}),
    (1.5, -1.0, {}),
    (0.0, 0.0, HOTWORDS),
    (0.8, 0.5, HOTWORDS),
)
PRUNINGS = ((None, None), (-2.5, None), (None, 4.0), (-3.0, 3.0))


@pytest.mark.parametrize("pieces", [PIECES, WITH_SPACES])
@pytest.mark.parametrize(
    ("alpha", "beta", "hotwords", "pruning"),
    [
        # Each of a kind in the quick suite, all pairs in the slow one.
        pytest.param(*model, pruning, marks=[] if (number + place) % len(PRUNINGS) == 0 else [pytest.mark.slow])
        for number, model in enumerate(MODELS)
        for place, pruning in enumerate(PRUNINGS)
    ],
)
def test_both_searches_find_what_the_plain_one_finds(
    ngram: Ngram,
    pieces: tuple[str, ...],
    alpha: float,
    beta: float,
    hotwords: dict[str, float],
    pruning: tuple[float | None, float | None],
):
    rng = np.random.default_rng(1)
    for width in (1, 3, 5, 10):
        rows = [draw_frames(rng, int(rng.integers(0, 20)), len(pieces), 2 if width % 2 else None) for _ in range(3)]
        preferred = Hotwords(hotwords, pieces) if hotwords else None
        search = CtcBeam(pieces, 0, width, ngram if alpha else None, alpha, beta, preferred, *pruning)
        pruned = [search.prune_tokens(row) for row in rows]
        number_of_texts = max(2, width)  # where one is sought, more is pruned
        together = search_arrays(pruned, search, number_of_texts), search_tree(pruned, search, number_of_texts)
        for number, row in enumerate(rows):
            expected = [one for one in search_by_tuples(row, search) if one[0] > -np.inf]
            for found in together:
                assert [ids for _, ids in found[number]] == [ids for _, ids in expected]
                assert [one[0] for one in found[number]] == pytest.approx([one[0] for one in expected], abs=1e-9)
        for alone in (search_arrays, search_tree):
            assert alone(pruned[:1], search, number_of_texts)[0] in [one[0] for one in together], (
                "whatever other rows there are"
            )


def test_prefixes_that_later_frames_cannot_tell_apart_take_one_place_of_the_beam(ngram: Ngram):
    rng = np.random.default_rng(3)
    rows = [draw_frames(rng, 40, len(PIECES)) for _ in range(40)]
    search = CtcBeam(PIECES, 0, 4, None, 0.8, 0.5, token_min_logp=-5.0, beam_threshold=10.0)
    for row, [(score, ids)] in zip(rows, search_rows(rows, search), strict=True):
        best = search_by_tuples(row, search)[0]
        assert ids == best[1], "without a model, all are told apart"
        assert score == pytest.approx(best[0], abs=1e-9)
    search = dataclasses.replace(search, words=ngram)
    together = zip(search_rows(rows, search), rows, strict=True)
    pairs = [(one[0][0], search_by_tuples(row, search)[0][0]) for one, row in together]
    # The places go to others: in a beam of 4, the texts found have higher scores for it.
    assert sum(found - plain for found, plain in pairs) / len(pairs) > 0.1
    assert sum(found > plain + 0.1 for found, plain in pairs) > sum(found < plain - 0.1 for found, plain in pairs)


@pytest.mark.parametrize("pieces", [PIECES, pytest.param(WITH_SPACES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("hotwords", [{}, HOTWORDS])
def test_a_word_that_the_model_lacks_is_charged_when_it_can_become_no_other(
    ngram: Ngram, pieces: tuple[str, ...], hotwords: dict[str, float], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "vaak.nn.decoding.ctc_tree.is_behind", lambda *_: False
    )  # which the plain search doesn't leave out
    rng = np.random.default_rng(4)
    preferred = Hotwords(hotwords, pieces) if hotwords else None
    # A wide beam: only the threshold prunes.
    search = CtcBeam(pieces, 0, 400, ngram, 0.8, 0.5, preferred, token_min_logp=-4.0, beam_threshold=3.0)
    differ = 0
    for frames in range(4, 24):
        row = draw_frames(rng, frames, len(pieces))
        best = search_by_tuples(row, search, looks_ahead=True)[0]
        [(score, ids)] = search_rows([row], search)[0]
        assert ids == best[1]
        assert score == pytest.approx(best[0], abs=1e-9), "at the end, an unknown word costs what it costs"
        differ += best[1] != search_by_tuples(row, search)[0][1]
    assert differ or hotwords


def test_an_ngram_knows_beginnings_and_what_an_unknown_word_costs_at_least(ngram: Ngram, tmp_path: Path):
    assert [ngram.has_beginning(letters) for letters in ("a", "b", "ab", "<s", "c")] == [True, True, False, True, False]
    assert ngram.unknown == pytest.approx(-1.5 * math.log(10))
    text = ARPA.replace("a\t-0.4", "ab\t0.4").replace("<s> a", "<s> ab").replace("a b", "ab b")
    text = text.replace("ngram 2=3", "ngram 2=4").replace("-0.2\tb </s>", "-0.2\tb </s>\n-0.7\tb <unk>")
    (tmp_path / "more.arpa").write_text(text)
    more = Ngram(tmp_path / "more.arpa")
    assert [more.has_beginning(letters) for letters in ("a", "ab", "abb")] == [True, True, False]
    assert more.unknown == pytest.approx((-0.7 + 0.4) * math.log(10))
    states = [more.begin(), more.after(more.begin(), "ab"), more.after(more.begin(), "b")]
    assert max(score for score, _ in more.read([(state, "zzz") for state in states])) <= more.unknown


def test_the_time_of_a_frame_is_that_of_the_first_ones(ngram: Ngram):
    rng = np.random.default_rng(2)
    rows, seconds = draw_frames(rng, 3200, len(PIECES)), []
    for frames in (400, 3200):
        start = time.process_time()
        ctc_beam_search(rows[:frames], CtcBeam(PIECES, 0, 8, ngram, 0.5))
        seconds.append((time.process_time() - start) / frames)
    assert seconds[1] < 2.5 * seconds[0]


def test_frames_that_allow_nothing_leave_a_text():
    assert ctc_beam_search(np.full((3, 4), -np.inf), CtcBeam(PIECES, 0, 3))[0][1] == ()
    assert search_tree([np.full((3, 4), -np.inf)], CtcBeam(PIECES, 0, 3))[0][0][1] == ()
    assert search_rows([], CtcBeam(PIECES, 0, 3)) == []
