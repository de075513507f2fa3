"""Words and phrases that a search should prefer: scores that hotwords add to a text while it is being written.

    score(text) = log p(text) + the weight of each hotword, once per occurrence

A text has a hotword where its words follow one another. They are compared without case; letters, marks and digits make
words, and everything else separates them. A beam has to keep a hotword before it is complete: so each of its letters
adds an equal part of the weight. Where the text leaves the hotword, or its last word grows, the parts are taken back:
a text whose hotwords are all left has the score that it has without them.

The parts of all hotwords are found by one automaton over the bytes of the text, in which a space stands for whatever
separates words: " new york " is a pattern, and a text begins and ends with a space.

Sources: Aho and Corasick 1975, "Efficient String Matching" (the automaton); Zhao et al. 2019, "Shallow-Fusion
End-to-End Contextual Biasing" (parts of the weight, and taking them back). Differs from both: the weight is that of a
hotword, however it is split into tokens.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from vaak.nn.decoding.hotword_list import space_words

INSIDE, BEGIN = 0, 1
"""States: within a word of no hotword, and where a word may begin."""
SPACE, NOTHING = ord(" "), 0
"""Symbols: the separator of words, and the end of a token, which changes no state."""
UNICODE_FORMS: Final = ("NFC", "NFD")
MOST_STORED = 1 << 24
"""Numbers that are kept of what tokens add."""


def to_symbols(text: str | bytes) -> bytes:
    """Return a text, or the bytes of a token, as the automaton reads it.

    >>> to_symbols(" Jean-Luc, ")
    b' jean luc '
    """
    # A token may end within a character, whose bytes are compared directly.
    decoded = text.decode(errors="surrogateescape") if isinstance(text, bytes) else text
    spaced = space_words(decoded.lower())
    joined = "".join(one for at, one in enumerate(spaced) if one != " " or spaced[at - 1 : at] != " ")
    return joined.encode(errors="surrogateescape")


class Hotwords:
    """The automaton of hotwords, and what tokens do to its states."""

    def __init__(self, weights: dict[str, float], tokens: Sequence[str | bytes]) -> None:
        """``weights`` are those of hotwords; ``tokens`` what each token adds to a text, with the spaces of words."""
        self._add_patterns(weights)
        parts = [to_symbols(one) for one in (*tokens, "")]
        self.symbols = np.zeros((max(1, *map(len, parts)), len(parts)), np.intp)
        """``(place, vocab + 1)``; the last token, beyond the vocabulary, does nothing."""
        for token, part in enumerate(parts):
            self.symbols[: len(part), token] = [*part]
        self._places: np.ndarray
        self._gains: np.ndarray
        self.most: np.ndarray
        """The most that a token adds after a state that ``find_gains`` was asked about."""
        self._forget()

    def _add_patterns(self, weights: dict[str, float]) -> None:
        children: list[dict[int, int]] = [{SPACE: BEGIN}, {}]
        parts, complete = [0.0, 0.0], [0.0, 0.0]
        patterns: dict[bytes, float] = {}
        for text, weight in weights.items():
            # Tokens may be of letters that are composed with their marks, or not.
            for form in UNICODE_FORMS:
                pattern = to_symbols(f" {unicodedata.normalize(form, text)} ")
                patterns[pattern] = max(weight, patterns.get(pattern, 0.0))
        for pattern, weight in patterns.items():
            state = INSIDE
            for place, symbol in enumerate(pattern):
                if symbol not in children[state]:
                    children[state][symbol] = len(children)
                    children.append({})
                    parts.append(0.0)
                    complete.append(0.0)
                state = children[state][symbol]
                if place < len(pattern) - 1:
                    parts[state] = max(parts[state], weight * place / (len(pattern) - 2))
            complete[state] = weight
        self.parts, self.complete = np.array(parts), np.array(complete)
        """For each state, the bonus so far of begun hotwords, which is taken back, and that of completed ones."""
        self.after = np.zeros((len(children), 256), np.intp)
        """The state after a symbol."""
        self._link(children)

    def _link(self, children: list[dict[int, int]]) -> None:
        """Lead each state, after a symbol by which no pattern continues, to the longest pattern begun within it."""
        shorter = [INSIDE] * len(children)
        before_words, waiting = list[int](), deque([INSIDE])
        while waiting:
            state = waiting.popleft()
            if state != INSIDE:
                self.after[state] = self.after[shorter[state]]
                self.parts[state] += self.parts[shorter[state]]
                self.complete[state] += self.complete[shorter[state]]
            for symbol, child in children[state].items():
                shorter[child] = INSIDE if state == INSIDE else int(self.after[shorter[state], symbol])
                self.after[state, symbol] = child
                before_words += [child] if symbol == SPACE else []
            waiting += children[state].values()
        # Another space after a space, in another token, separates no more than one.
        self.after[before_words, SPACE] = before_words
        self.after[:, NOTHING] = np.arange(len(children))

    def read(self, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the states after ``tokens``, and what these add to the scores: arrays of one shape, together."""
        gained = -self.parts[states]
        for symbols in self.symbols:
            after = self.after[states, symbols[tokens]]
            gained = gained + np.where(after != states, self.complete[after], 0.0)
            states = after
        return states, gained + self.parts[states]

    def end(self, states: np.ndarray) -> np.ndarray:
        """Return the bonus at the text's end, which completes a hotword, or takes the parts of one back."""
        after = self.after[states, SPACE]
        found: np.ndarray = np.where(after != states, self.complete[after], 0.0) - self.parts[states]
        return found

    def score(self, tokens: Sequence[int], *, has_ended: bool = True) -> float:
        """Return the hotwords' bonus for a text of ``tokens``; until it has ended, begun hotwords count in part."""
        state, total = np.array(BEGIN), 0.0
        for token in tokens:
            state, gained = self.read(state, np.array(token))
            total += float(gained)
        return total + (float(self.end(state)) if has_ended else 0.0)

    def find_gains(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens' gains, ``(kept state, vocab)``, and the row in it of each of ``states``."""
        unknown = np.unique(states[self._places[states] < 0])
        if len(self._gains) + len(unknown) > max(len(unknown), MOST_STORED // self.symbols.shape[1]):
            self._forget()
            unknown = np.unique(states)
        if len(unknown):
            every = np.arange(self.symbols.shape[1] - 1)
            gains = self.read(unknown[:, None], every)[1]
            self._places[unknown] = len(self._gains) + np.arange(len(unknown))
            self._gains = np.concatenate((self._gains, gains))
            self.most[unknown] = gains.max(1, initial=0.0)
        return self._gains, self._places[states]

    def _forget(self) -> None:
        self._places = np.full(len(self.parts), -1)
        self._gains = np.zeros((0, self.symbols.shape[1] - 1))
        self.most = np.zeros(len(self.parts))


class PrefixHotwords:
    """The scores that hotwords add to the prefixes in a beam of CTC, ``(row, prefix)``."""

    def __init__(self, hotwords: Hotwords, shape: tuple[int, int]) -> None:
        self.hotwords = hotwords
        self.bonus, self.states = np.zeros(shape), np.full(shape, BEGIN)

    @property
    def most_gained(self) -> np.ndarray:
        """The most that a token adds to each prefix."""
        self.hotwords.find_gains(self.states)
        found: np.ndarray = self.hotwords.most[self.states]
        return found

    def after_tokens(self, tokens: np.ndarray) -> np.ndarray:
        """Return the bonus of each prefix after ``tokens`` ``(row, token)``, ``(row, prefix, token)``."""
        gains, places = self.hotwords.find_gains(self.states)
        found: np.ndarray = self.bonus[..., None] + gains[places[..., None], tokens[:, None]]
        return found

    def select(self, places: np.ndarray, tokens: np.ndarray) -> None:
        """Keep the prefixes at ``places`` ``(row, prefix)`` of all, continued by ``tokens``."""
        self.states, gained = self.hotwords.read(self.states.take(places), tokens)
        self.bonus = self.bonus.take(places) + gained

    def keep_rows(self, count: int) -> None:
        """Keep the first rows."""
        self.bonus, self.states = self.bonus[:count], self.states[:count]

    def at_the_end(self, row: int, places: list[int]) -> np.ndarray:
        """Return the hotwords' bonus for prefixes of a row if the text ends."""
        found: np.ndarray = self.bonus[row, places] + self.hotwords.end(self.states[row, places])
        return found
