"""When each word of a text is spoken, and how sure a CTC model is of it, by the most probable path of its tokens.

A word lasts from before the first frame of its tokens to the last: a CTC model gives a token one or two frames, in the
midst of its sound or at its end. Its confidence is the geometric mean of the probabilities of its tokens in their
frames: a product would make long words less sure than short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vaak.audio.segments import Interval
from vaak.nn.ctc import best_path

MOST_BEFORE = 0.1
"""Seconds that a word begins at most before its first token, where there are blanks: a model writes it late."""


class Spelling(NamedTuple):
    """The tokens of a text, and the word that each belongs to; -1 between words."""

    ids: list[int]
    words: list[int]


class Frames(NamedTuple):
    """Log-probabilities ``(frame, vocab)`` of a recording, the time at which each frame begins, and its duration."""

    log_probs: np.ndarray
    starts: np.ndarray
    duration: float


def time_words(
    frames: Frames, spelling: Spelling, path: np.ndarray, num_words: int, shift: float
) -> list[tuple[float, float, float]]:
    """Return start and end in seconds, and confidence, of each word, with up to MOST_BEFORE of the pause before it.

    ``path`` is that of the tokens through the frames (``vaak.nn.ctc.best_path``), each of ``shift`` seconds. A word
    without tokens takes no time, after the one before.
    """
    tokens = np.array(spelling.words)
    # Odd places of the path are tokens, even ones are the blanks between them (best_path).
    is_said = path % 2 == 1
    word_at = np.full(len(path), -1)
    word_at[is_said] = tokens[path[is_said] // 2]
    at = frames.log_probs[np.flatnonzero(is_said), np.array(spelling.ids)[path[is_said] // 2]]
    logs = np.zeros(len(path))
    logs[is_said] = at
    said = np.flatnonzero(word_at >= 0)
    firsts, lasts = np.full(num_words, -1), np.full(num_words, -1)
    lasts[word_at[said]] = said
    # Where an index occurs several times, numpy's assignment keeps the last value: a word's last frame above, and
    # here, in reverse order, its first.
    firsts[word_at[said][::-1]] = said[::-1]
    sums = np.bincount(word_at[said], logs[said], num_words)
    numbers = np.bincount(word_at[said], minlength=num_words)
    starts = np.where(firsts >= 0, frames.starts[firsts], np.nan)
    ends = np.where(lasts >= 0, frames.starts[lasts] + shift, np.nan)
    # The geometric mean over frames: a product would make long words less sure than short ones.
    confidences = np.exp(sums / np.maximum(numbers, 1)) * (numbers > 0)
    is_known = np.isfinite(starts)
    ends = np.minimum(ends, frames.duration)
    # The end of the latest word before that has tokens: no word begins earlier, and one without tokens stands
    # there.
    before = np.concatenate(([0.0], np.maximum.accumulate(np.where(is_known, ends, 0.0))[:-1]))
    starts = np.where(is_known, np.minimum(np.maximum(starts - MOST_BEFORE, before), ends), before)
    ends = np.where(is_known, ends, before)
    return list(zip(starts.tolist(), ends.tolist(), confidences.tolist(), strict=True))


def find_words(
    frames: Frames, ids: Sequence[int], pieces: Sequence[str], blank: int, shift: float
) -> tuple[tuple[Interval, ...], tuple[float, ...]]:
    """Return the words of a transcript, with their times, and the confidence of each.

    ``ids`` are its tokens, ``pieces`` the texts of all tokens, with the space before a word. Of a token that ends a
    word and begins another, the frames count for the one that it begins.
    """
    texts, owners = [""], list[int]()
    for token in ids:
        first, *others = pieces[token].split(" ")
        texts[-1] += first
        texts += others
        owners.append(len(texts) - 1 if others[-1:] != [""] or first else -1)
        if first and others[-1:] == [""]:
            owners[-1] = len(texts) - 1 - len(others)
    path = best_path(frames.log_probs, ids, blank) if any(texts) else None
    if path is None:
        return (), ()
    found = time_words(frames, Spelling(list(ids), owners), path, len(texts), shift)
    named = [(text, *one) for text, one in zip(texts, found, strict=True) if text]
    words = tuple(Interval(round(start, 3), round(end, 3), text) for text, start, end, _ in named)
    return words, tuple(round(confidence, 4) for *_, confidence in named)
