"""The most probable text of CTC's frames, with a language model of words: a search over prefixes.

    score(text) = log p(text) + alpha · log p_words(text) + beta · (number of words)

A prefix is in the beam once, however its tokens are placed. It has two probabilities: of all placements that end in a
blank, and of all that end in its last token. They differ in the next step, where a repeated token is a new one only
after a blank. Words count when they are complete, the end of the text at the end. At each frame, the ``beam_size`` best
prefixes are continued by as many of the most probable tokens.

Sources: Hannun et al. 2014, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
DNNs", algorithm 1. Differs: words are scored when they end, not when their first token does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

NEVER = -np.inf
END = "</s>"


class WordModel(Protocol):
    """A language model of words: ``vaak.text.ngram.Ngram``, ``vaak.tasks.lm.predict.WordScores``."""

    def prepare(self, pairs: Iterable[tuple[tuple[str, ...], str]]) -> None:
        """Compute the scores of words after those before at once, as far as that is faster."""
        ...

    def begin(self) -> tuple[str, ...]: ...

    def score(self, before: tuple[str, ...], word: str) -> float: ...

    def after(self, before: tuple[str, ...], word: str) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class CtcBeam:
    """How the search is made.

    ``pieces`` are the texts of tokens, a space where a word begins or ends; ``words`` is a language model, or None.
    """

    pieces: Sequence[str]
    blank: int
    beam_size: int
    words: WordModel | None = None
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class _Prefix:
    """Tokens, what their words count, the words before, and the letters of the one that has begun."""

    ids: tuple[int, ...]
    bonus: float
    before: tuple[str, ...]
    begun: str

    def continued(self, token: int, search: CtcBeam) -> _Prefix:
        first, *others = search.pieces[token].split(" ")
        found = _Prefix((*self.ids, token), self.bonus, self.before, self.begun + first)
        for letters in others:
            found = found.at_a_space(search, letters)
        return found

    def at_a_space(self, search: CtcBeam, letters: str) -> _Prefix:
        """The word that has begun is complete, and ``letters`` begin another."""
        if not self.begun:
            return _Prefix(self.ids, self.bonus, self.before, letters)
        bonus, before = self.bonus + search.beta, self.before
        if search.words is not None:
            bonus += search.alpha * search.words.score(before, self.begun)
            before = search.words.after(before, self.begun)
        return _Prefix(self.ids, bonus, before, letters)

    def total(self, search: CtcBeam) -> float:
        """Return the score of the words if the text ends here."""
        ended = self.at_a_space(search, "")
        return ended.bonus + (0.0 if search.words is None else search.alpha * search.words.score(ended.before, END))


def ctc_beam_search(log_probs: np.ndarray, search: CtcBeam) -> list[tuple[float, tuple[int, ...]]]:
    """Return the scores and tokens of the beam at the end, the best first, of ``log_probs`` ``(frame, vocab)``.

    Of equal scores, the one that was found first is first.
    """
    start = _Prefix((), 0.0, () if search.words is None else search.words.begin(), "")
    prefixes, ends = {start.ids: start}, {start.ids: (0.0, NEVER)}
    """The log-probabilities of each prefix: of placements that end in a blank, and in its last token."""
    for frame in log_probs.astype(np.float64):
        best = np.argsort(-frame, kind="stable")[: search.beam_size].tolist()
        tokens = [token for token in best if token != search.blank and frame[token] > NEVER]
        if search.words is not None and any(search.pieces[token].startswith(" ") for token in tokens):
            # asks the language model for all words that may end here in one batch
            search.words.prepare((one.before, one.begun) for one in prefixes.values() if one.begun)
        found = dict[tuple[int, ...], tuple[float, float]]()
        for ids, (in_blank, in_token) in ends.items():
            whole = float(np.logaddexp(in_blank, in_token))
            last = ids[-1] if ids else search.blank
            _add(found, ids, whole + frame[search.blank], in_token + frame[last] if ids else NEVER)
            for token in tokens:
                # a token repeats in the text only over a blank between; without one, it is the same token, longer
                longer, before = (*ids, token), in_blank if token == last else whole
                if before > NEVER:
                    if longer not in prefixes:
                        prefixes[longer] = prefixes[ids].continued(token, search)
                    _add(found, longer, NEVER, before + frame[token])
        scores = {ids: float(np.logaddexp(*one)) + prefixes[ids].bonus for ids, one in found.items()}
        kept = sorted(scores, key=lambda ids: -scores[ids])[: search.beam_size]
        ends, prefixes = {ids: found[ids] for ids in kept}, {ids: prefixes[ids] for ids in kept}
    if search.words is not None:
        search.words.prepare((one.before, one.begun) for one in prefixes.values() if one.begun)
        ended = [one.at_a_space(search, "") for one in prefixes.values()]
        search.words.prepare((one.before, END) for one in ended)
    scored = [(float(np.logaddexp(*ends[ids])) + prefixes[ids].total(search), ids) for ids in ends]
    return sorted(scored, key=lambda one: -one[0])


def _add(found: dict[tuple[int, ...], tuple[float, float]], ids: tuple[int, ...], blank: float, token: float) -> None:
    before = found.get(ids, (NEVER, NEVER))
    found[ids] = float(np.logaddexp(before[0], blank)), float(np.logaddexp(before[1], token))
