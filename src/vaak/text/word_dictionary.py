"""A dictionary of words made from pairs of sentences, and word-by-word translations.

Every word of a target translates one word of the source, or none; which one isn't known, so all are counted
by their probability, repeatedly (expectation-maximisation). The dictionary has the most probable target word for each
source word.

Source: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1 (Model 1, with its empty
word).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaak.core.progress import track
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import write_json

# \w has no vowel signs.
WORDS = re.compile(r"(?:[^\W_]|[\u0900-\u0963\u0970-\u097f\u200c\u200d'’-])+|[^\w\s]|_")
ROUNDS = 5
FOLDS = 10
MOST_LINKS = 20_000_000
"""Pairs of a source and a target word in one sentence that are counted; the rest is ignored."""


def words(text: str) -> list[str]:
    """The words and signs of a text.

    >>> words("यह पुराना घर है। It's 5.")
    ['यह', 'पुराना', 'घर', 'है', '।', "It's", '5', '.']
    """
    return WORDS.findall(text)


def joined(parts: Iterable[str]) -> str:
    """Words as a text, closing signs directly after the previous word.

    >>> joined(["यह", "घर", "है", "।"])
    'यह घर है।'
    """
    return re.sub(r"\s+([।,.?!:;)\]])", r"\1", " ".join(parts))


@dataclass(frozen=True)
class WordDictionary:
    """For each source word, in lower case, its most probable target word."""

    entries: dict[str, str]

    def translate(self, text: str) -> str:
        """The text word by word, in its own order; a word that the dictionary doesn't have stays.

        >>> WordDictionary({"old": "पुराना", "home": "घर"}).translate("Old home.")
        'पुराना घर.'
        """
        return joined(self.entries.get(word.lower(), word) for word in words(text))

    def save(self, path: Path) -> None:
        write_json(path, self.entries)

    @classmethod
    def load(cls, path: Path) -> WordDictionary:
        return cls(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def drawn_from(cls, pairs: Iterable[tuple[str, str]], rounds: int = ROUNDS) -> WordDictionary:
        """The dictionary of pairs of sentences."""
        return Links(pairs).dictionary(rounds)


def translations_by_others(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Each pair's source word by word, by a dictionary made without the tenth of the pairs to which it belongs.

    So it makes the same mistakes as for unseen sentences: a source that is repeated is in the same tenth every time.
    """
    links = Links(pairs)
    folds = assign_folds(links.sources)
    parts = track(range(FOLDS), "dictionaries of other pairs", FOLDS)
    dictionaries = [links.dictionary(ROUNDS, without=folds == fold) for fold in parts]
    for fold, source in zip(folds.tolist(), links.sources, strict=True):
        yield dictionaries[fold].translate(source)


def assign_folds(sources: Sequence[str]) -> np.ndarray:
    """The fold of each source, by its words in lower case."""
    hashes = (draw_key(Purpose.FOLD, *words(source.lower())) for source in sources)
    return np.fromiter(hashes, dtype=np.int64, count=len(sources)) % FOLDS


class Links:
    """All pairs of a source word and a target word in one pair of sentences."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.sources: list[str] = []
        # Number 0 is the empty word.
        self.source_words, self.target_words = _Numbers([""]), _Numbers()
        linked = [np.zeros((4, 0), dtype=np.int64)]
        links_left = MOST_LINKS
        for number, (source, target) in enumerate(track(pairs, "words of pairs")):
            self.sources.append(source)
            # The empty word explains target words that no source word does.
            of_source = self.source_words.of(["", *words(source.lower())])
            of_target = self.target_words.of(words(target))
            # Memory is bounded by the number of links; pairs beyond it are translated, but not learned from.
            links_left -= len(of_source) * len(of_target)
            if links_left >= 0:
                each, every = np.repeat(np.arange(len(of_target)), len(of_source)), np.tile(of_source, len(of_target))
                linked.append(np.stack([every, of_target[each], np.full(len(each), number), each]))
        self._source, self._target, self._pair, self._place = np.concatenate(linked, axis=1)

    def dictionary(self, rounds: int, without: np.ndarray | None = None) -> WordDictionary:
        """The dictionary of all pairs but those where ``without`` ``(pair,)`` is True."""
        kept = slice(None) if without is None else ~without[self._pair]
        source, target, pair, place = (one[kept] for one in (self._source, self._target, self._pair, self._place))
        if not len(source):
            return WordDictionary({})
        # One number for each pair of words: its probability is shared by all its links.
        said, link = np.unique(source * len(self.target_words.names) + target, return_inverse=True)
        by, word = np.divmod(said, len(self.target_words.names))
        # A word of a target.
        _, spot = np.unique(pair * (place.max() + 1) + place, return_inverse=True)
        probability = np.ones(len(said))
        for _ in track(range(rounds), "rounds of a dictionary", rounds):
            share = probability[link]
            # Expectation: each target word is divided among the source words of its sentence (IBM model 1).
            share /= np.bincount(spot, share)[spot]
            counts = np.bincount(link, share, len(said))
            # Maximisation: the probabilities of each source word's translations add up to 1.
            probability = counts / np.bincount(by, counts)[by]
        # Sorted by source word, most probable first: the first entry of each is its translation.
        best = np.lexsort((-probability, by))
        first = best[np.unique(by[best], return_index=True)[1]]
        names, others = self.source_words.names, self.target_words.names
        entries = {names[by[at]]: others[word[at]] for at in first.tolist() if by[at]}
        return WordDictionary(entries)


class _Numbers:
    """Numbers words in the order in which they come."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self._number = {name: number for number, name in enumerate(self.names)}

    def of(self, names: Sequence[str]) -> np.ndarray:
        for name in names:
            if name not in self._number:
                self._number[name] = len(self.names)
                self.names.append(name)
        return np.array([self._number[name] for name in names], dtype=np.int64)
