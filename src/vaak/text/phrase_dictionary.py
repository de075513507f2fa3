"""A dictionary of phrases made from pairs of sentences, and translations phrase by phrase.

Words are aligned in both directions (``vaak.text.word_dictionary``, Model 1). The links that both directions have, and
those next to them that one has, stay. A phrase and a part of the target translate each other if their words are linked
to none outside of the two.

Source: Koehn, Och and Marcu 2003, "Statistical Phrase-Based Translation", sections 3.1 (growing alignments, here also
diagonally, then "final-and") and 4.4 (weighting, here by the phrases' frequencies alone).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaak.core.progress import track
from vaak.core.storage.files import write_json
from vaak.text.word_dictionary import Links, WordDictionary, joined, words

MOST_WORDS = 5
"""Words of a phrase."""
UNSEEN = 0.5
"""Added to the frequency of a phrase: one that was seen once isn't certain."""
UNKNOWN = -10.0
"""The score of a word that stays as it is."""
Link = tuple[int, int]


@dataclass(frozen=True)
class PhraseDictionary:
    """For each source phrase, in lower case, its best target phrase, and the log of how well they fit each other."""

    entries: dict[str, tuple[str, float]]

    def translate(self, text: str) -> str:
        """Return the text phrase by phrase, in its own order; a word that the dictionary doesn't have stays.

        Of all divisions into phrases it takes the one of the highest sum of scores: few, frequent phrases.

        >>> entries = {"old": ("पुराना", -0.5), "house": ("घर", -0.4), "the old house": ("वह पुराना मकान", -0.7)}
        >>> PhraseDictionary(entries).translate("The old house!")
        'वह पुराना मकान!'
        """
        written = words(text)
        lower = [word.lower() for word in written]
        best: list[tuple[float, int, str]] = [(0.0, 0, "")]
        for end in range(1, len(written) + 1):
            found = [(best[end - 1][0] + UNKNOWN, end - 1, written[end - 1])]
            for start in range(max(end - MOST_WORDS, 0), end):
                if entry := self.entries.get(" ".join(lower[start:end])):
                    found.append((best[start][0] + entry[1], start, entry[0]))
            best.append(max(found))
        parts: list[str] = []
        end = len(written)
        while end:
            _, end, part = best[end]
            parts += reversed(part.split(" "))
        return joined(reversed(parts))

    def save(self, path: Path) -> None:
        write_json(path, self.entries)


def load_dictionary(path: Path) -> WordDictionary | PhraseDictionary:
    """Return the dictionary that one of the two classes has saved."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    if all(isinstance(entry, str) for entry in entries.values()):
        return WordDictionary(entries)
    return PhraseDictionary({phrase: (translation, score) for phrase, (translation, score) in entries.items()})


class AlignedPairs:
    """Pairs of sentences, to be aligned in both directions."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        self.sources = [source for source, _ in self._pairs]
        self._forward = Links(self._pairs)
        self._backward = Links(((target, source.lower()) for source, target in self._pairs), lower=False)

    def dictionary(self, rounds: int, without: np.ndarray | None = None) -> PhraseDictionary:
        """Return the dictionary of all pairs but those where ``without`` ``(pair,)`` is True."""
        forward, backward = (one.align(rounds, without) for one in (self._forward, self._backward))
        together: Counter[tuple[str, str]] = Counter()
        aligned = sorted(forward.keys() & backward.keys())
        for number in track(aligned, "phrases of pairs", len(aligned)):
            source, target = self._pairs[number]
            source_words, target_words = words(source.lower()), words(target)
            links = grow_alignment(forward[number], backward[number])
            spans = find_phrases(links, len(source_words), len(target_words))
            # Once in each pair of sentences.
            together.update({(" ".join(source_words[slice(*a)]), " ".join(target_words[slice(*b)])) for a, b in spans})
        return PhraseDictionary(_choose_translations(together))


def grow_alignment(forward: Sequence[int], backward: Sequence[int]) -> set[Link]:
    """Return the links (source place, target place) of both directions, and those of one that are needed.

    ``forward`` has a source place for each target word, ``backward`` a target place for each source word; -1 is none.

    >>> sorted(grow_alignment([0, 1, 1], [0, 1]))
    [(0, 0), (1, 1), (1, 2)]
    """
    given = {(source, place) for place, source in enumerate(forward) if source >= 0}
    taken = {(place, target) for place, target in enumerate(backward) if target >= 0}
    links, further = given & taken, sorted(given ^ taken)
    sources, targets = ({link[side] for link in links} for side in (0, 1))

    def add(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    grows = True
    while grows:
        grows = False
        for source, target in further:
            around = ((source + down, target + right) for down in (-1, 0, 1) for right in (-1, 0, 1))
            is_needed = source not in sources or target not in targets
            if is_needed and any(link in links for link in around):
                add((source, target))
                grows = True
    for source, target in further:
        if source not in sources and target not in targets:
            add((source, target))
    return links


def find_phrases(links: Iterable[Link], num_source: int, num_target: int) -> Iterator[tuple[Link, Link]]:
    """Spans of source and target with words linked to each other, and none linked to a word outside of the two.

    A source span has at most MOST_WORDS words, a target span one more.

    >>> sorted(find_phrases([(0, 0), (1, 2)], 2, 3))
    [((0, 1), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (0, 3)), ((1, 2), (1, 3)), ((1, 2), (2, 3))]
    """
    of_source: list[list[int]] = [[] for _ in range(num_source)]
    of_target: list[list[int]] = [[] for _ in range(num_target)]
    for source, target in links:
        of_source[source].append(target)
        of_target[target].append(source)
    for start in range(num_source):
        first, last = num_target, -1
        for end in range(start + 1, min(start + MOST_WORDS, num_source) + 1):
            first, last = min([first, *of_source[end - 1]]), max([last, *of_source[end - 1]])
            if last - first > MOST_WORDS:
                break
            if last < 0 or any(not start <= place < end for one in of_target[first : last + 1] for place in one):
                continue
            # Words linked to none may belong to it, on either side.
            before = first
            while True:
                after = last + 1
                while after - before <= MOST_WORDS + 1:
                    yield (start, end), (before, after)
                    if after == num_target or of_target[after]:
                        break
                    after += 1
                if before == 0 or of_target[before - 1] or last + 2 - before > MOST_WORDS + 1:
                    break
                before -= 1


def _choose_translations(together: Counter[tuple[str, str]]) -> dict[str, tuple[str, float]]:
    """Return each phrase's translation of the greatest product of probabilities in both directions, and its log."""
    of_phrase, of_translation = Counter[str](), Counter[str]()
    for (phrase, translation), count in together.items():
        of_phrase[phrase] += count
        of_translation[translation] += count
    best: dict[str, tuple[float, str]] = {}
    for (phrase, translation), count in together.items():
        share = count / (of_phrase[phrase] + UNSEEN) * count / (of_translation[translation] + UNSEEN)
        best[phrase] = max(best.get(phrase, (0.0, "")), (share, translation))
    return {phrase: (translation, math.log(share)) for phrase, (share, translation) in sorted(best.items())}
