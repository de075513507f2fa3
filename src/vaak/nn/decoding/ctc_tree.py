"""The beam search of CTC over few prefixes and tokens: prefixes are nodes of a tree, a frame is a loop over them.

It finds what ``ctc_search`` finds on arrays. An operation on arrays costs as much as some twenty steps of a loop: where
pruning leaves one or two tokens of a frame, or where a language model is asked about words one by one, the loop is
faster. The words that tokens end are asked about once, those of all rows together.

Where a language model is used, only the best text is sought and prefixes are pruned, two more are left out. One is a
prefix that ends in the same token and the same begun word as a better one, in the same states of all models
(pyctcdecode's ``prune_history``): later frames add the same to both, so it gets ahead only by paths that join it later,
from the prefix that it continues. The other one is a prefix whose begun word can't become one of the language model's:
the least that this will cost is charged at once, not when the word ends. Texts have the same scores at their end
(pyctcdecode charges 10 more for each unknown word).

    root ──h──▶ "h" ──e──▶ "he" ──␣──▶ "he "      each node: log p of its paths that end in a blank, and in its token
                  └───a──▶ "ha"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import exp, log1p
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from vaak.nn.decoding.ctc_beam import CtcBeam, Found
from vaak.nn.decoding.ctc_words import END, NEVER, Endings, EndingScores, WordEnd, find_most_gained
from vaak.nn.decoding.hotwords import BEGIN

ROOM = 1e-6
"""How far below the least useful score a bound must be: sums in another order differ by less."""
UNCHANGED = -1
"""The token of a candidate that is an unchanged prefix of the beam."""
NOT_YET = -1
"""The time of a prefix that no beam has had."""


def search_tree(rows: Sequence[np.ndarray], search: CtcBeam, n_best: int = 1) -> list[Found]:
    """Return the ``n_best`` texts of each of ``rows`` ``(frame, vocab)``, whose tokens have been pruned."""
    shared = _Shared(search, n_best)
    searches = [_Row(shared, row, n_best) for row in rows]
    waiting = [one.run() for one in searches]
    while waiting:
        going, asked = list[Iterator[list[WordEnd]]](), dict[WordEnd, str]()
        for row in waiting:
            for ends in islice(row, 1):
                going.append(row)
                asked |= {end: str(end[1]) for end in ends if end not in shared.scores.known}
        shared.scores.read(asked)
        waiting = going
    return [one.found[:n_best] for one in searches]


class _Node:
    """A prefix, and what the frames so far say about it. Each frame makes several, so dicts only where one is used."""

    __slots__ = ("bonus", "children", "ended", "hot", "hot_state", "in_blank", "in_token", "key", "lost", "parent",
                 "state", "time", "token", "total", "word", "words")  # fmt: skip

    time: int
    """The number of frames, but for those that can only be a blank, after which it was in the beam last."""
    in_blank: float
    in_token: float
    total: float
    """Log-probabilities after that frame, which the beam sets: of paths that end in a blank, in the token, of all."""

    def __init__(
        self, parent: _Node | None, token: int, words: float, state: int, word: str, lost: float, hot: float,
        hot_state: int,
    ) -> None:  # fmt: skip
        """``words``: the score of complete words; ``state``: the language model's after them; ``word``: the letters of
        the one that has begun, and ``lost`` its known cost; ``hot``: the score of hotwords, and their state."""
        self.parent, self.token, self.words, self.state, self.word = parent, token, words, state, word
        self.hot, self.hot_state, self.lost = hot, hot_state, lost
        self.bonus = words + hot + lost
        self.key = state, word, token, hot_state
        """Everything that later frames depend on in a prefix, except its probabilities."""
        self.children: dict[int, _Node] = NO_CHILDREN
        self.ended: dict[int, tuple[float, int]] = NO_ENDS
        """By the kind of a next token: ``words`` and ``state`` after it."""


NO_CHILDREN: dict[int, _Node] = {}
NO_ENDS: dict[int, tuple[float, int]] = {}
"""Children and ends of new prefixes; nothing is written to them."""

_Candidate = tuple[float, _Node, int, float, float, float]
"""A score, a prefix of the beam, what continues it (a token, or UNCHANGED), log p of the paths that end in a token, and
of all, the known cost of the word that has begun."""


_Ahead = dict[tuple[int, str, int, int], tuple[float, float]]
"""By all that later frames depend on in a prefix: the best one's scores of paths ending in a blank and in a token."""


class _Unread(NamedTuple):
    """A candidate whose words have to be read."""

    node: _Node
    token: int
    in_token: float
    kind: int
    hot: float


class _Frame(NamedTuple):
    time: int
    """Its number, not counting those that can only be a blank."""
    blank: float
    log_probs: dict[int, float]
    """For all tokens that are left, even if there are too many to continue prefixes."""
    tokens: list[tuple[int, float, int]]
    """Tokens that continue prefixes, the most probable first, with their kinds."""


class _Shared:
    """The part of a search that all its rows share."""

    def __init__(self, search: CtcBeam, n_best: int) -> None:
        self.prunes_more = n_best == 1 and search.words is not None and search.beam_threshold is not None
        self.search, self.endings = search, search.endings or Endings([""] * len(search.pieces))
        self.kinds: list[int] = self.endings.kinds.tolist()
        self.only_end: list[bool] = self.endings.only_end.tolist()
        self.scores = EndingScores(self.endings, search.words)
        self.most_gained: list[float] = find_most_gained(self.endings, search.words, search.alpha, search.beta).tolist()
        self.most = max(0.0, *self.most_gained)
        """The most that a token adds to a score besides its own."""
        if search.hotwords is not None:
            search.hotwords.find_gains(np.arange(len(search.hotwords.parts)))
            self.most += float(search.hotwords.most.max())
        self._hot: dict[tuple[int, int], tuple[int, float]] = {}
        self.unknown = find_unknown_cost(search) if self.prunes_more else 0.0
        """The least that a word costs that the language model lacks; 0 where it isn't charged before its end."""
        self.has_hotwords, self.looks_ahead = search.hotwords is not None, self.unknown < 0
        self._lost: dict[str, float] = {"": 0.0}

    def find_lost(self, word: str) -> float:
        """Return the least cost of a word that has begun; 0 where it may become one of the model's."""
        lost = self._lost.get(word)
        if lost is None:
            assert self.search.words is not None
            lost = self._lost[word] = 0.0 if self.search.words.has_beginning(word) else self.unknown
        return lost

    def find_lost_after(self, node: _Node, token: int, kind: int) -> float:
        """Return the least cost, after one more token, of the word that has then begun."""
        if kind:
            return self.find_lost(self.endings.tails[token])
        return node.lost or self.find_lost(node.word + self.endings.tails[token])

    def read_hotword(self, state: int, token: int) -> tuple[int, float]:
        """Return the state of hotwords after a token, and what it adds."""
        known = self._hot.get((state, token))
        if known is None:
            assert self.search.hotwords is not None
            after, gained = self.search.hotwords.read(np.array(state), np.array(token))
            known = self._hot[state, token] = int(after), float(gained)
        return known

    def end_word(self, node: _Node, kind: int) -> tuple[float, int] | None:
        """Return the words' bonus after a token of a kind, and the state then; None if it must be read first."""
        found = node.ended.get(kind)
        if found is not None:
            return found
        if not node.word and self.only_end[kind]:
            found = node.words, node.state
        elif (known := self.scores.known.get((node.state, node.word, kind))) is not None:
            words = node.words
            for score in known[0]:
                words = words + self.search.beta + self.search.alpha * score
            found = words, known[1]
        else:
            return None
        if node.ended is NO_ENDS:
            node.ended = {}
        node.ended[kind] = found
        return found


class _Row:
    """The search in one row."""

    def __init__(self, shared: _Shared, log_probs: np.ndarray, n_best: int) -> None:
        self.shared, self.search, self.log_probs = shared, shared.search, log_probs
        self.threshold = np.inf if self.search.beam_threshold is None else self.search.beam_threshold
        self.prunes_more = shared.prunes_more
        self.found: Found = []

    def run(self) -> Iterator[list[WordEnd]]:
        """Search; stop at words that must be read before it continues. At the end, the texts are in ``found``."""
        state = 0 if self.search.words is None else self.search.words.begin()
        root = _Node(None, self.search.blank, 0.0, state, "", 0.0, 0.0, BEGIN)
        root.time, root.in_blank, root.in_token, root.total = 0, 0.0, NEVER, 0.0
        beam = [root]
        for blanks, frame in self._read():
            if blanks:
                self._add_blanks(beam, blanks)
            if frame is None:
                break
            candidates, unread = self._continue(beam, frame)
            if unread:
                yield [(one.node.state, one.node.word, one.kind) for one in unread]
                candidates += [self._end(one) for one in unread]
            beam = self._select(candidates, frame.blank, frame.time + 1)
        yield from self._finish(beam)

    def _read(self) -> Iterator[tuple[list[float], _Frame | None]]:
        """The frames, with the tokens that are left, each after those that can only be a blank; None at the end."""
        blank, kinds, width = self.search.blank, self.shared.kinds, self.search.beam_size
        frames, places = (self.log_probs > NEVER).nonzero()
        found = self.log_probs[frames, places].astype(np.float64)
        order = np.lexsort((-found, frames))
        tokens, values, start = places[order].tolist(), found[order].tolist(), 0
        blanks, time = list[float](), 0
        for end in np.searchsorted(frames, np.arange(len(self.log_probs)), "right").tolist():
            if end == start + 1 and tokens[start] == blank:
                blanks.append(values[start])
            else:
                pairs = list(zip(tokens[start:end], values[start:end], strict=True))
                log_probs = dict(pairs)
                longer = [(token, own, kinds[token]) for token, own in pairs[:width] if token != blank]
                yield blanks, _Frame(time, log_probs.get(blank, NEVER), log_probs, longer)
                blanks, time = [], time + 1
            start = end
        yield blanks, None

    @staticmethod
    def _add_blanks(beam: list[_Node], blanks: list[float]) -> None:
        """Read frames that can only be a blank: no prefix gets ahead of another."""
        for node in beam:
            total = node.total
            for blank in blanks:
                total += blank
            node.in_blank, node.in_token, node.total = total, NEVER, total

    def _stay(self, beam: list[_Node], frame: _Frame) -> list[_Candidate | None]:
        """Return the prefixes unchanged: with a blank; with the last token, longer, or after a parent in the beam.

        None if that is impossible, as it mostly is at a frame that must be a letter.
        """
        time, blank, log_probs, tokens = frame
        continued = log_probs if len(log_probs) <= self.search.beam_size else {one[0] for one in tokens}
        found = list[_Candidate | None]()
        for node in beam:
            token, in_token = node.token, NEVER
            if (own := log_probs.get(token)) is not None:
                in_token, parent = node.in_token + own, node.parent
                if parent is not None and parent.time == time and token in continued:
                    # A token repeats in the text only over a blank between; without one, it is the same token, longer.
                    in_token = add_logs(in_token, (parent.in_blank if parent.token == token else parent.total) + own)
            elif blank == NEVER:
                found.append(None)
                continue
            total = node.total + blank
            if in_token != NEVER:
                total = add_logs(total, in_token)
            found.append((total + node.bonus, node, UNCHANGED, in_token, total, 0.0))
        return found

    def _continue(self, beam: list[_Node], frame: _Frame) -> tuple[list[_Candidate], list[_Unread]]:
        """Return the prefixes, unchanged and continued by tokens, and those whose words must be read first."""
        found, unread = self._follow(beam, frame), list[_Unread]()
        if found:
            return found, unread
        stays, tokens = self._stay(beam, frame), frame.tokens
        least, likeliest = self._find_least(stays), tokens[0][1] + self.shared.most if tokens else NEVER
        for node, stay in zip(beam, stays, strict=True):
            if node.total + node.bonus - node.lost + likeliest >= least:
                least = self._lengthen(node, frame, least, found, unread)
            if stay is not None and stay[0] >= least:
                found.append(stay)
        if not found and not unread:
            # One prefix stays even if all are impossible, so that each row has a text.
            found.append((NEVER, beam[0], UNCHANGED, NEVER, NEVER, 0.0))
        return found, unread

    def _follow(self, beam: list[_Node], frame: _Frame) -> list[_Candidate]:
        """Return all prefixes continued by the only token of a frame, most frames' of speech that isn't a blank.

        Nothing if that isn't all: where the token ends a word, or the last one may be longer, or hotwords count.
        """
        shared, found = self.shared, list[_Candidate]()
        if len(frame.log_probs) > 1 or not frame.tokens or shared.has_hotwords or beam[0].total == NEVER:
            return found
        [(token, own, kind)] = frame.tokens
        if kind or token in [node.token for node in beam]:
            return found
        looks_ahead, lost = shared.looks_ahead, 0.0
        for node in beam:
            in_token = node.total + own
            score = in_token + node.bonus
            if looks_ahead and (lost := shared.find_lost_after(node, token, kind)):
                score += lost - node.lost
            found.append((score, node, token, in_token, in_token, lost))
        return found

    def _lengthen(
        self, node: _Node, frame: _Frame, least: float, found: list[_Candidate], unread: list[_Unread]
    ) -> float:
        """Add a prefix continued by tokens to what was ``found``, or to those whose words must be read first.

        Return ``least``, which rises where one is found that is so good that it is too far ahead of others.
        """
        shared, in_beam, bonus = self.shared, node.children, node.bonus
        likeliest = node.total + bonus - node.lost + shared.most
        time, _, _, tokens = frame
        for token, own, kind in tokens:
            # Tokens come by falling probability: no later one reaches the beam, either.
            if likeliest + own < least:
                break
            # That prefix is in the beam itself: _stay has added what it gets from here.
            if in_beam and (child := in_beam.get(token)) is not None and child.time == time:
                continue
            in_token = (node.in_blank if token == node.token else node.total) + own
            hot = shared.read_hotword(node.hot_state, token)[1] if shared.has_hotwords else 0.0
            if not kind:
                score = in_token + bonus + hot
            elif (ended := shared.end_word(node, kind)) is not None:
                score = in_token + ended[0] + node.hot + hot
            else:
                # The language model reads a word only if its best score would stay in the beam.
                if in_token + bonus - node.lost + hot + shared.most_gained[kind] >= least and in_token > NEVER:
                    unread.append(_Unread(node, token, in_token, kind, hot))
                continue
            lost = 0.0
            if score >= least and shared.looks_ahead and (lost := shared.find_lost_after(node, token, kind)):
                score += lost if kind else lost - node.lost
            if score >= least and score > NEVER:
                found.append((score, node, token, in_token, in_token, lost))
                least = max(least, score - self.threshold - ROOM)
        return least

    def _find_least(self, stays: list[_Candidate | None]) -> float:
        """Return a score; those below it bring nothing into the beam."""
        scores = [one[0] for one in stays if one is not None]
        if not scores:
            return NEVER
        least = max(scores) - self.threshold
        if len(scores) >= self.search.beam_size:
            least = max(least, min(scores))
        return least - ROOM

    def _end(self, one: _Unread) -> _Candidate:
        ended = self.shared.end_word(one.node, one.kind)
        assert ended is not None
        lost = self.shared.find_lost_after(one.node, one.token, one.kind) if self.shared.looks_ahead else 0.0
        score = one.in_token + ended[0] + one.node.hot + one.hot + lost
        return score, one.node, one.token, one.in_token, one.in_token, lost

    def _select(self, candidates: list[_Candidate], blank: float, time: int) -> list[_Node]:
        """Return the beam after a frame: the best prefixes, except those too far below the very best."""
        if len(candidates) > 1:
            candidates.sort(key=itemgetter(0), reverse=True)
        least, width, prunes_more = candidates[0][0] - self.threshold, self.search.beam_size, self.prunes_more
        beam, ahead = list[_Node](), _Ahead()
        for score, node, token, in_token, total, lost in candidates:
            if score < least or len(beam) == width or (score == NEVER and beam):
                break
            if token == UNCHANGED:
                in_blank = node.total + blank
            else:
                in_blank, node = (
                    NEVER,
                    (node.children.get(token) if node.children else None) or self._make(node, token, lost),
                )
            if prunes_more and is_behind(ahead, node, in_blank, in_token):
                continue
            node.in_blank, node.in_token, node.total, node.time = in_blank, in_token, total, time
            beam.append(node)
        return beam

    def _make(self, node: _Node, token: int, lost: float) -> _Node:
        """Return a new prefix, continued by a token, whose begun word has this known cost."""
        shared, hot, hot_state = self.shared, 0.0, BEGIN
        tail, kind = shared.endings.tails[token], shared.kinds[token]
        if self.search.hotwords is not None:
            hot_state, hot = shared.read_hotword(node.hot_state, token)
            hot += node.hot
        if kind:
            words, state = node.ended[kind]
            child = _Node(node, token, words, state, tail, lost, hot, hot_state)
        else:
            child = _Node(node, token, node.words, node.state, node.word + tail, lost, hot, hot_state)
        if node.children is NO_CHILDREN:
            node.children = {token: child}
        else:
            node.children[token] = child
        child.time = NOT_YET
        return child

    def _finish(self, beam: list[_Node]) -> Iterator[list[WordEnd]]:
        """Find the texts of a beam whose frames are all read, the best first; stop at what must be read before."""
        scored = [(node.total + node.words + node.hot, node, node.state) for node in beam]
        if self.search.endings is not None:
            # A token of kind 0 ends nothing: the word is unchanged.
            yield [(node.state, node.word, 0) for node in beam if node.word]
            ends = [self.shared.end_word(node, 0) if node.word else (node.words, node.state) for node in beam]
            scored = [
                (node.total + node.hot + end[0], node, end[1]) for node, end in zip(beam, ends, strict=True) if end
            ]
        if self.search.words is not None:
            yield [(state, END, 0) for _, _, state in scored]
            known, alpha = self.shared.scores.known, self.search.alpha
            scored = [(score + alpha * known[state, END, 0][0][0], node, state) for score, node, state in scored]
        if self.search.hotwords is not None:
            end = self.search.hotwords.end(np.array([node.hot_state for node in beam])).tolist()
            scored = [(score + more, node, state) for (score, node, state), more in zip(scored, end, strict=True)]
        scored.sort(key=itemgetter(0), reverse=True)
        self.found = [(score, trace(node)) for score, node, _ in scored]


def find_unknown_cost(search: CtcBeam) -> float:
    """Return the least that a word costs that the language model lacks, as a number below 0; 0 if it costs nothing."""
    if search.words is None or search.alpha <= 0:
        return 0.0
    return min(0.0, search.beta + search.alpha * search.words.unknown)


def is_behind(ahead: _Ahead, node: _Node, in_blank: float, in_token: float) -> bool:
    """Return whether a better prefix exists that later frames treat alike; the first of them is noted."""
    bonus = node.bonus
    best = ahead.get(node.key)
    if best is None:
        ahead[node.key] = in_blank + bonus, in_token + bonus
        return False
    return in_blank + bonus <= best[0] and in_token + bonus <= best[1]


def trace(node: _Node) -> tuple[int, ...]:
    """Return the tokens of a prefix."""
    tokens = list[int]()
    while node.parent is not None:
        tokens.append(node.token)
        node = node.parent
    return tuple(reversed(tokens))


def add_logs(one: float, other: float) -> float:
    """Return log(exp(one) + exp(other)).

    >>> add_logs(float("-inf"), 0.5)
    0.5
    """
    if one < other:
        one, other = other, one
    return one if other == NEVER else one + log1p(exp(other - one))
