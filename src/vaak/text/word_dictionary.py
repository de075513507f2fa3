"""A dictionary of words made from pairs of sentences, and word-by-word translations.

Every word of a target translates one word of the source, or none; which one isn't known, so all are counted
by their probability, repeatedly (expectation-maximisation). The dictionary has the most probable target word for each
source word.

Source: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1 (Model 1, with its empty
word).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from vaak.core.progress import track
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import write_json

log = logging.getLogger("vaak")

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


class Dictionary(Protocol):
    """What ``translations_by_others`` and a translator read."""

    def translate(self, text: str) -> str: ...

    def save(self, path: Path) -> None: ...


class PairsOfSentences(Protocol):
    """The sources of pairs of sentences, and dictionaries made from any of the pairs."""

    sources: list[str]

    def dictionary(self, rounds: int, without: np.ndarray | None = None) -> Dictionary: ...


def translations_by_others(pairs: PairsOfSentences) -> Iterator[str]:
    """Each pair's source by a dictionary made without the tenth of the pairs to which it belongs.

    So it makes the same mistakes as for unseen sentences: a source that is repeated is in the same tenth every time.
    """
    folds = assign_folds(pairs.sources)
    parts = track(range(FOLDS), "dictionaries of other pairs", FOLDS)
    dictionaries = [pairs.dictionary(ROUNDS, without=folds == fold) for fold in parts]
    for fold, source in zip(folds.tolist(), pairs.sources, strict=True):
        yield dictionaries[fold].translate(source)


def assign_folds(sources: Sequence[str]) -> np.ndarray:
    """The fold of each source, by its words in lower case."""
    hashes = (draw_key(Purpose.FOLD, *words(source.lower())) for source in sources)
    return np.fromiter(hashes, dtype=np.int64, count=len(sources)) % FOLDS


class Links:
    """All pairs of a source word, if ``lower`` in lower case, and a target word in one pair of sentences."""

    def __init__(self, pairs: Iterable[tuple[str, str]], lower: bool = True) -> None:
        self.sources: list[str] = []
        # Number 0 is the empty word.
        self.source_words, self.target_words = _Numbers([""]), _Numbers()
        linked = [np.zeros((5, 0), dtype=np.int32)]
        links_left = MOST_LINKS
        for number, (source, target) in enumerate(track(pairs, "words of pairs")):
            self.sources.append(source)
            # The empty word explains target words that no source word does.
            of_source = self.source_words.of(["", *words(source.lower() if lower else source)])
            of_target = self.target_words.of(words(target))
            # Memory is bounded by the number of links; pairs beyond it are translated, but not learned from.
            links_left -= len(of_source) * len(of_target)
            if links_left >= 0:
                place, source_place = np.divmod(np.arange(len(of_source) * len(of_target)), len(of_source))
                one = [of_source[source_place], of_target[place], np.full(len(place), number), place, source_place - 1]
                linked.append(np.stack(one).astype(np.int32))
        # In both directions the same pairs are left out: said once.
        if links_left < 0 and lower:
            log.warning(
                "dictionary: %s of %s pairs are counted; the rest would take too much memory",
                f"{len(linked) - 1:,}",
                f"{len(self.sources):,}",
            )
        self._source, self._target, self._pair, self._place, self._source_place = np.concatenate(linked, axis=1)

    def dictionary(self, rounds: int, without: np.ndarray | None = None) -> WordDictionary:
        """The dictionary of all pairs but those where ``without`` ``(pair,)`` is True."""
        fitted = self._fit(rounds, without)
        by, word = fitted.source, fitted.target
        # Sorted by source word, most probable first: the first entry of each is its translation.
        best = np.lexsort((-fitted.probability, by))
        first = best[np.unique(by[best], return_index=True)[1]]
        names, others = self.source_words.names, self.target_words.names
        entries = {names[by[at]]: others[word[at]] for at in first.tolist() if by[at]}
        return WordDictionary(entries)

    def align(self, rounds: int, without: np.ndarray | None = None) -> dict[int, list[int]]:
        """The place of the source word that each target word most probably translates, -1 for none, by pair.

        Leaves out the pairs where ``without`` ``(pair,)`` is True.
        """
        fitted = self._fit(rounds, without)
        pair, source_place = self._pair[fitted.links], self._source_place[fitted.links]
        # Sorted by target word, most probable first; of equals the first in the sentence, and the empty word last.
        best = np.lexsort((source_place, source_place < 0, -fitted.probability[fitted.said], fitted.spot))
        first = best[np.unique(fitted.spot[best], return_index=True)[1]]
        aligned: dict[int, list[int]] = {}
        for number, place in zip(pair[first].tolist(), source_place[first].tolist(), strict=True):
            aligned.setdefault(number, []).append(place)
        return aligned

    def _fit(self, rounds: int, without: np.ndarray | None) -> _Fitted:
        links = np.arange(len(self._pair)) if without is None else np.flatnonzero(~without[self._pair])
        # One number for each pair of words: its probability is shared by all its links.
        both = self._source[links] * np.int64(len(self.target_words.names)) + self._target[links]
        both, said = np.unique(both, return_inverse=True)
        by, word = np.divmod(both, max(len(self.target_words.names), 1))
        # A word of a target.
        longest = np.int64(self._place.max(initial=0) + 1)
        _, spot = np.unique(self._pair[links] * longest + self._place[links], return_inverse=True)
        probability = np.ones(len(both))
        for _ in track(range(rounds), "rounds of a dictionary", rounds):
            share = probability[said]
            # Expectation: each target word is divided among the source words of its sentence (IBM model 1).
            share /= np.bincount(spot, share)[spot]
            counts = np.bincount(said, share, len(both))
            # Maximisation: the probabilities of each source word's translations add up to 1.
            probability = counts / np.bincount(by, counts)[by]
        return _Fitted(by, word, probability, links, said, spot)


class _Fitted(NamedTuple):
    """The probability of each pair of words that are linked, and the pair and the target word of each link."""

    source: np.ndarray
    target: np.ndarray
    probability: np.ndarray
    links: np.ndarray
    said: np.ndarray
    spot: np.ndarray


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
