"""The most probable texts of CTC's frames, with a language model of words: a search over prefixes, of rows together.

    score(text) = log p(text) + alpha · log p_words(text) + beta · (number of words) + weights of hotwords

A prefix is in the beam once, however its tokens are placed. It has two probabilities: of all placements that end in a
blank, and of all that end in its last token. They differ in the next step, where a repeated token is a new one only
after a blank. Words count when they are complete, the end of the text at the end. At each frame, the ``beam_size`` best
prefixes are continued by as many of the most probable tokens. Those that ``CtcBeam`` leaves out are pruned, nothing
else. Where few are left, ``ctc_tree`` finds the same texts faster.

A frame is a few operations on arrays ``(row, prefix, token)``, whatever came before it: the time is linear in the
frames. A prefix is the place in the beam that it came from, and its last token. Two are the same one if the hashes of
their tokens are, of 64 bits. Log-probabilities are summed in float64.

Sources: Hannun et al. 2014, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
DNNs", algorithm 1. Differs: words are scored when they end, not when their first token does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple, cast

import numpy as np

from vaak.nn.decoding.ctc_beam import CtcBeam, Found
from vaak.nn.decoding.ctc_tree import search_tree
from vaak.nn.decoding.ctc_words import NEVER, WordBonuses
from vaak.nn.decoding.hotwords import PrefixHotwords

BLOCK = 2**20
"""Log-probabilities that are sorted at once."""
ROOT, NOWHERE = 1, 0
"""Hashes: of no tokens, and of a place of the beam that has no prefix."""
SPREAD, SHIFT = np.int64(0x1E3779B97F4A7C15), np.int64(29)
"""How hashes of tokens are mixed."""
MOST_FOR_TREE = 48.0
"""Tokens of a frame, on average, times the beam, up to which a row without a language model is searched by a tree.

A tree takes 0.2 to 8 times the time of arrays (29 letters, beams of 8, 16 and 64). Both take as long at about 110 for a
row alone, and at about 16 for each of eight together. Which search a row has can't depend on the others, as its bits
don't: this is between the two.
"""


def ctc_beam_search(log_probs: np.ndarray, search: CtcBeam) -> Found:
    """Return the beam at the end, of ``log_probs`` ``(frame, vocab)``; of equal scores, the first one found first."""
    return search_rows([log_probs], search, search.beam_size)[0]


def search_rows(rows: Sequence[np.ndarray], search: CtcBeam, n_best: int = 1) -> list[Found]:
    """Return the ``n_best`` texts of each of ``rows`` ``(frame, vocab)``, which are searched together."""
    rows = [search.prune_tokens(row) for row in rows]
    # Which search a row has depends on it alone: so the batch that it is in changes no bit of its score.
    by_tree = [place for place, row in enumerate(rows) if _is_for_tree(row, search)]
    by_arrays = sorted({*range(len(rows))} - {*by_tree})
    found = dict(zip(by_tree, search_tree([rows[place] for place in by_tree], search, n_best), strict=True))
    found |= zip(by_arrays, search_arrays([rows[place] for place in by_arrays], search, n_best), strict=True)
    return [found[place] for place in range(len(rows))]


def _is_for_tree(row: np.ndarray, search: CtcBeam) -> bool:
    """Return whether the search by a tree is the faster one for a row whose tokens have been pruned."""
    if search.token_min_logp is None:
        return False
    return search.words is not None or bool((row > NEVER).sum() * search.beam_size <= MOST_FOR_TREE * len(row))


def search_arrays(rows: Sequence[np.ndarray], search: CtcBeam, n_best: int = 1) -> list[Found]:
    """Return the ``n_best`` texts of each of ``rows`` ``(frame, vocab)``, whose tokens have been pruned."""
    # The longest first: then those that are over are the last ones of the arrays, which become shorter.
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    found = _Search([rows[row] for row in order], search, n_best).run() if rows else []
    return [found[place] for place in np.argsort(np.array(order, np.int64), kind="stable")]


class _Prefixes(NamedTuple):
    """The prefixes of the beam, arrays ``(row, prefix)``; a place without one is improbable (-inf)."""

    in_blank: np.ndarray
    in_token: np.ndarray
    hashes: np.ndarray
    parents: np.ndarray
    """Hashes of the prefixes without their last tokens."""
    last: np.ndarray
    parent: np.ndarray
    """The place, counted over all rows, of the prefix without the last token; any where it isn't in the beam."""
    has_parent: np.ndarray
    repeats: np.ndarray
    """Whether that ends in the same token."""


class _Frame(NamedTuple):
    """A frame of the rows that aren't over."""

    log_probs: np.ndarray
    """``(row, vocab)``."""
    tokens: np.ndarray
    """The best tokens ``(row, token)``, the most probable first."""
    own: np.ndarray
    """Their log-probabilities, -inf for the blank."""
    most: np.ndarray
    """The most that they add to a score, with the words that they end."""
    kinds: np.ndarray
    """Their effect on words (``Endings.kinds``)."""
    places: np.ndarray
    """The place of each token of the vocabulary among them, ``(row, vocab)``; a high number where it isn't."""


class _Unchanged(NamedTuple):
    """The prefixes of the beam after a frame without new tokens, ``(row, prefix)``, and what they were before it."""

    in_blank: np.ndarray
    in_token: np.ndarray
    scores: np.ndarray
    before: np.ndarray
    """Log-probabilities before the frame."""
    last: np.ndarray
    """The last token's in the frame."""
    least: np.ndarray
    """The score ``(row,)`` that others must exceed to get into the beam."""


class _Search:
    """A search in rows, the longest first."""

    def __init__(self, rows: Sequence[np.ndarray], search: CtcBeam, n_best: int) -> None:
        self.rows, self.search, self.n_best = rows, search, n_best
        self.lengths = [len(row) for row in rows]
        self.vocab, self.width, self.threshold = len(search.pieces), search.beam_size, search.beam_threshold
        shape = len(rows), self.width
        in_blank, hashes = np.full(shape, NEVER), np.zeros(shape, np.int64)
        in_blank[:, 0], hashes[:, 0] = 0.0, ROOT
        none = np.zeros(shape, np.int64)
        self.live = _find_parents(in_blank, np.full(shape, NEVER), hashes, none, none + search.blank)
        self.words: WordBonuses | None = None
        if search.endings is not None:
            self.words = WordBonuses(search.endings, search.words, search.alpha, search.beta, shape)
        self.hotwords = None if search.hotwords is None else PrefixHotwords(search.hotwords, shape)
        self.bonuses = [one for one in (self.words, self.hotwords) if one is not None]
        self.sources, self.tokens = list[np.ndarray](), list[np.ndarray]()
        """For each frame, the prefixes' places in the beam before it, and their new tokens; ``vocab``: none."""
        self.same_places, self.no_tokens = none + np.arange(self.width), none + self.vocab
        # A prefix is identified by a hash of its tokens, with a fixed seed: results don't depend on the process.
        self.marks = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, self.vocab + 1, np.int64)

    def run(self) -> list[Found]:
        found, number = [Found() for _ in self.rows], len(self.rows)
        frames: Iterator[_Frame] = iter(())
        for time in range(max(self.lengths) + 1):
            # The longest row is the first, so those that end are the last ones.
            while number and self.lengths[number - 1] == time:
                number -= 1
                found[number] = self._finish(number)
            if not number:
                break
            if number < len(self.live.last):
                self._keep_rows(number)
            frame = next(frames, None)
            if frame is None:
                frames = self._read(time, number)
                frame = next(frames)
            self._step(_Frame(*(one[:number] for one in frame)))
        return found

    def _keep_rows(self, number: int) -> None:
        self.live = _Prefixes(*(one[:number] for one in self.live))
        self.same_places, self.no_tokens = self.same_places[:number], self.no_tokens[:number]
        for bonuses in self.bonuses:
            bonuses.keep_rows(number)

    def _read(self, start: int, number: int) -> Iterator[_Frame]:
        """Yield the next frames of the first rows, as many as fit into BLOCK numbers."""
        size = min(max(1, BLOCK // (number * self.vocab)), self.lengths[0] - start)
        log_probs = np.full((size, number, self.vocab), NEVER)
        for place, row in enumerate(self.rows[:number]):
            own = row[start : start + size]
            log_probs[: len(own), place] = own
        rows, count = log_probs.reshape(-1, self.vocab), min(self.width, self.vocab)
        # In a large vocabulary a whole sort would take longer than the search.
        best = _find_highest(rows, count) if 4 * count < self.vocab else np.argsort(-rows, 1, kind="stable")[:, :count]
        taken = best + self.vocab * _numbers(len(rows))
        own, places = np.where(best == self.search.blank, NEVER, rows.take(taken)), np.full(rows.shape, self.vocab)
        places.put(taken, np.broadcast_to(np.arange(count), best.shape))
        places[:, self.search.blank] = self.vocab
        kinds, most = np.zeros_like(best), own
        if self.words is not None:
            kinds = self.words.endings.kinds.take(best)
            most = own + np.maximum(self.words.most_gained, 0.0).take(kinds)  # where no word has begun, 0
        arrays = (one.reshape(size, number, -1) for one in (best, own, most, kinds, places))
        yield from map(_Frame, log_probs, *arrays)

    def _step(self, frame: _Frame) -> None:
        unchanged, words = self._stay(frame), self.words
        before = unchanged.before if words is None else unchanged.before + words.bonus
        if self.hotwords is not None:
            before = before + self.hotwords.bonus + self.hotwords.most_gained
        # Tokens that add less bring nothing into the beam.
        useful = (frame.most + before.max(1)[:, None] > unchanged.least[:, None]).any(0).nonzero()[0]
        if len(useful):
            self._continue(frame, unchanged, int(useful[-1]) + 1)
        else:
            self.live = self.live._replace(in_blank=unchanged.in_blank, in_token=unchanged.in_token)
            self._drop(unchanged.scores)
            self.sources.append(self.same_places)
            self.tokens.append(self.no_tokens)

    def _stay(self, frame: _Frame) -> _Unchanged:
        """Return the unchanged prefixes: with a blank; with the last token, longer, or after a parent in the beam."""
        live = self.live
        chosen = live.last + self.vocab * _numbers(len(live.last))
        before, last = np.logaddexp(live.in_blank, live.in_token), frame.log_probs.take(chosen)
        in_token = live.in_token + last
        if live.has_parent.any():
            # A token repeats in the text only over a blank between; without one, it is the same token, longer.
            parents = np.where(live.repeats, live.in_blank.take(live.parent), before.take(live.parent))
            is_continued = live.has_parent & (frame.places.take(chosen) < self.vocab)
            in_token = np.logaddexp(in_token, np.where(is_continued, parents + last, NEVER))
        in_blank = before + frame.log_probs[:, self.search.blank, None]
        scores = np.logaddexp(in_blank, in_token)
        for bonuses in self.bonuses:
            scores = scores + bonuses.bonus
        least = scores.min(1)
        if self.threshold is not None:
            least = np.maximum(least, scores.max(1) - self.threshold)
        return _Unchanged(in_blank, in_token, scores, before, last, least)

    def _continue(self, frame: _Frame, unchanged: _Unchanged, count: int) -> None:
        """Continue the prefixes by the ``count`` best tokens, too, and keep the best of all."""
        live, (number, width), every = self.live, self.live.last.shape, count + 1
        # The last of a prefix's continuations is the one without a token.
        longer = np.empty((number, width, every))
        np.add(unchanged.before[..., None], frame.own[:, None, :count], out=longer[..., :count])
        firsts = every * np.arange(number * width).reshape(number, width)
        places = np.minimum(frame.places.take(live.last + self.vocab * _numbers(number)), count)
        longer.put(firsts + places, live.in_blank + unchanged.last)
        # Those that are in the beam already were added there.
        longer.put(np.where(live.has_parent, every * live.parent + places, firsts + count), NEVER)
        scores = longer
        if self.words is not None or self.hotwords is not None:
            scores = longer.copy()
            scores[..., :count] += self._add_bonuses(frame, unchanged, count)
        scores[..., count] = unchanged.scores
        flat = scores.reshape(number, -1)
        chosen = _find_highest(flat, width)
        sources = chosen // every
        tokens = np.concatenate((frame.tokens[:, :count], self.no_tokens[:, :1]), 1)
        tokens = tokens.take(chosen - every * (sources - _numbers(number)))
        self.sources.append(sources)
        self.tokens.append(tokens)
        chosen += width * every * _numbers(number)
        sources = sources + width * _numbers(number)
        is_new, hashes = tokens != self.vocab, live.hashes.take(sources)
        mixed = hashes * SPREAD + self.marks.take(tokens)
        mixed = np.where(is_new, mixed ^ (mixed >> SHIFT), hashes)
        parents = np.where(is_new, hashes, live.parents.take(sources))
        if not (scores.take(chosen[:, -1]) > NEVER).all():  # there are fewer prefixes than places
            is_empty = scores.take(chosen) == NEVER
            mixed[is_empty] = parents[is_empty] = NOWHERE
        self.live = _find_parents(
            np.where(is_new, NEVER, unchanged.in_blank.take(sources)),
            np.where(is_new, longer.take(chosen), unchanged.in_token.take(sources)),
            mixed,
            parents,
            np.where(is_new, tokens, live.last.take(sources)),
        )
        self._drop(scores.take(chosen))
        if self.words is not None:
            self.words.select(sources, tokens, is_new)
        if self.hotwords is not None:
            self.hotwords.select(sources, tokens)

    def _drop(self, scores: np.ndarray) -> None:
        """Empty the places of prefixes whose ``scores`` are too far below the best one's."""
        if self.threshold is None:
            return
        is_behind = scores < scores.max(1, keepdims=True) - self.threshold
        if is_behind.any():
            self.live.in_blank[is_behind] = self.live.in_token[is_behind] = NEVER

    def _add_bonuses(self, frame: _Frame, unchanged: _Unchanged, count: int) -> np.ndarray:
        """Return the bonuses of words and hotwords for prefixes continued by the ``count`` best tokens."""
        found, before = np.zeros(()), unchanged.before
        if self.hotwords is not None:
            found = self.hotwords.after_tokens(frame.tokens[:, :count])
            before = before + self.hotwords.bonus + self.hotwords.most_gained
        if self.words is not None:
            kinds, own = frame.kinds[:, :count], frame.own[:, :count]
            found = found + self.words.after_tokens(kinds, own, before, unchanged.least, self._spell)
        return found

    def _trace(self, row: int, place: int) -> Iterator[int]:
        """Yield the tokens of a prefix, the last first."""
        for sources, tokens in zip(reversed(self.sources), reversed(self.tokens), strict=True):
            token, place = int(tokens[row, place]), int(sources[row, place])
            if token != self.vocab:
                yield token

    def _spell(self, row: int, place: int) -> str:
        """Return the letters of the word that a prefix has begun."""
        endings, letters = cast("WordBonuses", self.words).endings, list[str]()
        for token in self._trace(row, place):
            letters.append(endings.tails[token])
            if endings.kinds[token]:
                break
        return "".join(reversed(letters))

    def _finish(self, row: int) -> Found:
        """Return the best texts of a row whose frames are all read."""
        scores = np.logaddexp(self.live.in_blank[row], self.live.in_token[row])
        places = (scores > NEVER).nonzero()[0].tolist() or [0]
        scores = scores[places]
        if self.words is not None:
            begun = [self._spell(row, place) if self.words.word[row, place] else "" for place in places]
            scores += self.words.at_the_end(row, places, begun)
        if self.hotwords is not None:
            scores += self.hotwords.at_the_end(row, places)
        order = np.argsort(-scores, kind="stable")[: self.n_best].tolist()
        return [(float(scores[one]), tuple(self._trace(row, places[one]))[::-1]) for one in order]


class CtcStream:
    """The search in one row that comes in parts; its last texts are those of the whole row.

    With pruning and a language model, ``search_rows`` may find another text of the whole row: a tree merges prefixes.
    """

    def __init__(self, search: CtcBeam) -> None:
        self._search = _Search([np.zeros((0, len(search.pieces)))], search, 1)

    def read(self, log_probs: np.ndarray) -> tuple[int, ...]:
        """Take further log-probabilities ``(frame, vocab)``; return the tokens that all texts in the beam begin with.

        These only grow: each text continues one that was in the beam.
        """
        search, done = self._search, 0
        search.rows, search.lengths = [search.search.prune_tokens(log_probs)], [len(log_probs)]
        while done < len(log_probs):
            for frame in search._read(done, 1):
                search._step(frame)
                done += 1
        live = search.live
        places = (np.logaddexp(live.in_blank[0], live.in_token[0]) > NEVER).nonzero()[0].tolist() or [0]
        texts = [tuple(search._trace(0, place))[::-1] for place in places]
        # What the first and the last in order begin with, those between begin with, too.
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(min(texts), max(texts), strict=False))
        return tuple(token for token, _ in alike)

    def finish(self) -> tuple[int, ...]:
        """Return the tokens of the best text."""
        return self._search._finish(0)[0][1]


def _find_parents(
    in_blank: np.ndarray, in_token: np.ndarray, hashes: np.ndarray, parents: np.ndarray, last: np.ndarray
) -> _Prefixes:
    """Return the prefixes of a beam, with the places of their parents in it."""
    is_parent = parents[..., None] == hashes[:, None]
    found = is_parent.argmax(2)
    found += hashes.shape[1] * _numbers(len(hashes))
    return _Prefixes(
        in_blank, in_token, hashes, parents, last, found, hashes.take(found) == parents, last.take(found) == last
    )


def _find_highest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the highest scores of each row, in order; of equal ones the earlier first."""
    rows, length = _numbers(len(scores)), scores.shape[1]
    places = (
        np.argpartition(scores, length - count, 1)[:, length - count :]
        if count < length
        else 0 * rows + np.arange(length)
    )
    places.sort(1)
    order = np.argsort(-scores.take(places + length * rows), 1, kind="stable")
    found: np.ndarray = places.take(order + count * rows)
    return found


@cache
def _numbers(count: int) -> np.ndarray:
    """Return the numbers from 0, ``(count, 1)``."""
    return np.arange(count)[:, None]
