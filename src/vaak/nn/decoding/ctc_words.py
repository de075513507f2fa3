"""Bonuses of words in a search over CTC's frames: a language model's scores, and a constant for each word.

A word is scored when a token ends it. The language model is asked, once, about a prefix whose continuation could reach
the beam by the most that a word adds; the others are not in the beam whatever it says, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

NEVER = -np.inf
END = "</s>"
UNBOUNDED = 1e30
"""More than any score; infinity less infinity wouldn't be a number."""
FACTOR, LETTER = 0x9E3779B97F4A7C15, 0x2545F4914F6CDD1D
"""Odd numbers that make hashes of letters."""


class WordModel(Protocol):
    """A language model of words: ``vaak.text.ngram.Ngram``, ``vaak.tasks.lm.predict.WordScores``.

    What it has read is a whole number, its state.
    """

    @property
    def highest(self) -> float:
        """No word has a higher score than this."""
        ...

    @property
    def unknown(self) -> float:
        """No word has a higher score than this of which no beginning is known (``has_beginning``)."""
        ...

    def has_beginning(self, letters: str) -> bool:
        """Return whether a known word begins with these letters."""
        ...

    def begin(self) -> int:
        """Return the state before the first word."""
        ...

    def read(self, asked: Sequence[tuple[int, str]]) -> list[tuple[float, int]]:
        """Return the log-probability of each word after a state, and the state after both."""
        ...


def hash_letters(letters: str) -> int:
    """Return 64 bits with a sign, 0 for no letters; of two texts together they are h(a) · FACTOR^len(b) + h(b).

    >>> joined = hash_letters("ab") * FACTOR**2 + hash_letters("cd")
    >>> (joined - hash_letters("abcd")) % 2**64
    0
    """
    found = 0
    for letter in letters:
        found = (found * FACTOR + (ord(letter) + 1) * LETTER) % 2**64
    return found - 2**64 if found >= 2**63 else found


class Endings:
    """Each token's effect on the words of a text; the last token here, beyond the vocabulary, has none.

    ``kinds`` ``(vocab + 1,)`` is 0 for a token within a word. Others end one: first it gets the letters
    ``before[kind]``, and ``whole[kind]`` are words after it. The word that has begun is a hash of its letters: a token
    within it multiplies this by ``factors`` and adds ``letters``; one that ends it leaves ``letters``.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        known: dict[tuple[str, ...], int] = {}
        parts = [tuple(piece.split(" ")) for piece in (*pieces, "")]
        kinds = [1 + known.setdefault(one[:-1], len(known)) if len(one) > 1 else 0 for one in parts]
        self.kinds = np.array(kinds, np.int64)
        self.before = ["", *(one[0] for one in known)]
        self.whole = [(), *(tuple(word for word in one[1:] if word) for one in known)]
        self.tails = [one[-1] for one in parts]
        self.letters = np.array([hash_letters(tail) for tail in self.tails], np.int64)
        factors = [pow(FACTOR, len(tail), 2**64) for tail in self.tails]
        self.factors = np.array(factors, np.uint64).view(np.int64)
        self.first_sizes = np.array([len(first) for first in self.before])
        self.num_whole = np.array([len(more) for more in self.whole])
        self.only_end = (self.first_sizes == 0) & (self.num_whole == 0)
        """Kinds that change nothing if no word has begun."""

    def most_gained(self, by_word: float) -> np.ndarray:
        """Return the most that a token of each kind adds, where a word adds ``by_word`` at most, ``(kind,)``."""
        return np.where(self.only_end, by_word, np.maximum(0.0, (1 + self.num_whole) * by_word))


def find_most_gained(endings: Endings, words: WordModel | None, alpha: float, beta: float) -> np.ndarray:
    """Return the most that a token of each kind adds by the words that it ends, ``(kind,)``."""
    highest = 0.0 if words is None or not alpha else alpha * words.highest if alpha > 0 else UNBOUNDED
    return endings.most_gained(beta + min(highest, UNBOUNDED))


WordEnd = tuple[int, int | str, int]
"""A state of the language model, the word that has begun (its letters or their hash), and the kind that ends it."""


class EndingScores:
    """The language model's scores of the words that tokens end; each word is scored once."""

    def __init__(self, endings: Endings, words: WordModel | None) -> None:
        self.endings, self.words = endings, words
        self.known: dict[WordEnd, tuple[tuple[float, ...], int]] = {}
        """The log-probabilities of the words, and the state after them."""

    def read(self, spelled: Mapping[WordEnd, str]) -> None:
        """Ask about the words that tokens end, with the letters that have begun; all those that are next at once."""
        unread: dict[WordEnd, list[str]] = {}
        for key, letters in spelled.items():
            word = letters + self.endings.before[key[2]]
            unread[key] = [*([word] if word else []), *self.endings.whole[key[2]]]
        self.known |= {key: ((), key[0]) for key in unread}
        while unread := {key: words for key, words in unread.items() if words}:
            asked = [(self.known[key][1], words.pop(0)) for key, words in unread.items()]
            for key, (score, state) in zip(unread, self.ask(asked), strict=True):
                self.known[key] = (*self.known[key][0], score), state

    def ask(self, asked: Sequence[tuple[int, str]]) -> list[tuple[float, int]]:
        """Read words by ``WordModel.read``; scores are 0 without a language model."""
        return [(0.0, 0)] * len(asked) if self.words is None else self.words.read(asked)


class WordBonuses:
    """The scores that words add to the prefixes in the beam, ``(row, prefix)``.

    ``bonus`` is that of words that are complete; ``ended`` ``(row, prefix, kind)`` would be it after a token of each
    kind, NaN where nobody has asked yet.
    """

    def __init__(
        self, endings: Endings, words: WordModel | None, alpha: float, beta: float, shape: tuple[int, int]
    ) -> None:
        self.endings, self.words, self.alpha, self.beta = endings, words, alpha, beta
        self.num_kinds = len(endings.before)
        self.bonus = np.zeros(shape)
        self.state = np.full(shape, 0 if words is None else words.begin(), np.int64)
        self.word = np.zeros(shape, np.int64)
        self.ended = np.zeros((*shape, self.num_kinds))
        self.ended_state = np.repeat(self.state[..., None], self.num_kinds, 2)
        self._expect(np.ones(shape, bool))
        self.most_gained = find_most_gained(endings, words, alpha, beta)
        self.scores = EndingScores(endings, words)

    def _expect(self, is_new: np.ndarray) -> None:
        """Forget what tokens would add, where a prefix ``is_new``; they add nothing if no word has begun."""
        if self.words is None:
            begun = (self.word != 0)[..., None] | (self.endings.first_sizes > 0)
            self.ended = self.bonus[..., None] + self.beta * (begun + self.endings.num_whole)
        else:
            self.ended[is_new] = np.nan
            idle = (self.word == 0)[..., None] & self.endings.only_end
            np.copyto(self.ended, self.bonus[..., None], where=idle)
            np.copyto(self.ended_state, self.state[..., None], where=idle)
        self.ended[..., 0], self.ended_state[..., 0] = self.bonus, self.state

    def after_tokens(
        self, kinds: np.ndarray, log_probs: np.ndarray, whole: np.ndarray, least: np.ndarray,
        spell: Callable[[int, int], str],
    ) -> np.ndarray:  # fmt: skip
        """Return the bonus of each prefix after tokens ``(row, token)`` of these ``kinds``, ``(row, prefix, token)``.

        ``log_probs`` are the tokens', ``whole`` those of prefixes; with less than ``least`` ``(row,)`` none reaches
        the beam, and -inf stands for what wasn't asked. ``spell`` gives the letters of a prefix's last word.
        """
        best = np.full((len(kinds), self.num_kinds), NEVER)
        np.maximum.at(best.reshape(-1), kinds + self.num_kinds * np.arange(len(kinds))[:, None], log_probs)
        most = (whole + self.bonus)[..., None] + (best + self.most_gained)[:, None]
        asked = np.isnan(self.ended) & (most >= least[:, None, None]) & (most > NEVER)
        if asked.any():
            self._ask(asked, spell)
        ended = np.where(np.isnan(self.ended), NEVER, self.ended)
        prefixes = self.num_kinds * np.arange(self.bonus.size).reshape(self.bonus.shape)
        found: np.ndarray = ended.take(prefixes[..., None] + kinds[:, None])
        return found

    def _ask(self, asked: np.ndarray, spell: Callable[[int, int], str]) -> None:
        rows, places, kinds = asked.nonzero()
        states, words = self.state[rows, places].tolist(), self.word[rows, places].tolist()
        keys: list[WordEnd] = list(zip(states, words, kinds.tolist(), strict=True))
        known = self.scores.known
        self.scores.read({
            key: spell(row, place)
            for key, row, place in zip(keys, rows.tolist(), places.tolist(), strict=True)
            if key not in known
        })  # fmt: skip
        added, after = list[float](), list[int]()
        for bonus, key in zip(self.bonus[rows, places].tolist(), keys, strict=True):
            scores, state = known[key]
            for score in scores:
                bonus = bonus + self.beta + self.alpha * score
            added.append(bonus)
            after.append(state)
        self.ended[asked], self.ended_state[asked] = added, after

    def select(self, places: np.ndarray, tokens: np.ndarray, is_new: np.ndarray) -> None:
        """Keep the prefixes at ``places`` ``(row, prefix)`` of all, continued by ``tokens`` where ``is_new``."""
        kinds = self.endings.kinds.take(tokens)
        chosen = self.num_kinds * places + kinds
        self.bonus, self.state = self.ended.take(chosen), self.ended_state.take(chosen)
        self.bonus[np.isnan(self.bonus)] = 0.0  # of places without a prefix, while there are fewer
        within = np.where(kinds == 0, self.word.take(places) * self.endings.factors.take(tokens), 0)
        self.word = within + self.endings.letters.take(tokens)
        self.ended = self.ended.reshape(-1, self.num_kinds)[places]
        self.ended_state = self.ended_state.reshape(-1, self.num_kinds)[places]
        self._expect(is_new)

    def keep_rows(self, count: int) -> None:
        """Keep the first rows."""
        for name in ("bonus", "state", "word", "ended", "ended_state"):
            setattr(self, name, getattr(self, name)[:count])

    def at_the_end(self, row: int, places: list[int], begun: Sequence[str]) -> np.ndarray:
        """Return the words' bonus for a row's prefixes if the text ends, where these words had ``begun`` ("": none)."""
        bonus, states = self.bonus[row, places], self.state[row, places].tolist()
        last = [place for place, word in enumerate(begun) if word]
        for place, (score, state) in zip(
            last, self.scores.ask([(states[one], begun[one]) for one in last]), strict=True
        ):
            bonus[place], states[place] = bonus[place] + self.beta + self.alpha * score, state
        if self.words is not None:
            bonus += self.alpha * np.array([score for score, _ in self.scores.ask([(state, END) for state in states])])
        return bonus
