"""How hard a text is: by its length, its rare words, or its inflected words; measured once, stored next to it.

All frequencies are those of the texts themselves (the training data), so that one text's difficulty depends on the
others. Both measures of words are means over a text's words, in bits, so long texts aren't harder by their length::

    lexical      -log2 p(word)           the rarity of its words
    morphology   -log2 p(word | stem)    the part of it due to inflection: 0 if a stem has only one form

    FOLDER/difficulty-MEASURE-KEY.bin    float64, one per text; KEY is a hash of the texts

Source: Platanios et al. 2019, "Competence-based Curriculum Learning for Neural Machine Translation", section 2.1, for
length and rarity. Differs: the mean of the words' rarity, theirs is the sum, which is mostly a measure of length.
Morphology is Vaak's own, on stems (a Hindi word without its ending) by Ramanathan, Rao 2003, "A Lightweight Stemmer
for Hindi". Texts are read one at a time, so memory grows with the different words and not with the text.
"""

from __future__ import annotations

import contextlib
import logging
import math
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from vaak.core.errors import UserError
from vaak.core.progress import track
from vaak.core.storage.files import write_bytes
from vaak.core.storage.mapped_lines import mapped

log = logging.getLogger("vaak")

MEASURES = ("length", "lexical", "morphology")
PUNCTUATION = string.punctuation + "।॥…–—‘’“”«»·"
# Source: Ramanathan, Rao 2003. A nasal vowel is written ं here, as ``stem`` reads it.
OF_NOUNS = "ा ि ी ु ू े ो ां ीं ें ों ाएं ाओं ियां ियों ाइयां ाइयों ताएं ताओं नाएं नाओं ुआं ुएं ुओं"
OF_PARTICIPLES = "ता ती ते तीं ाता ाती ाते ातीं ना नी ने ाना ाने ाया ाई ाए ाईं कर ाकर"
OF_FINITE_VERBS = "ेगा ेगी ोगी ोगे ेंगी ेंगे ूंगा ूंगी एंगी एंगे ाएगा ाएगी ाएंगी ाएंगे ाओगी ाओगे ाऊंगा ाऊंगी ाओ ाइए िए"
INFLECTIONS = frozenset(f"{OF_NOUNS} {OF_PARTICIPLES} {OF_FINITE_VERBS}".split())
LONGEST_ENDING = max(map(len, INFLECTIONS))


class WordCounts:
    """Counts of words and stems in texts. Memory grows only with the number of different words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.words: Counter[str] = Counter()
        for text in texts:
            self.words.update(split_words(text))
        self.stems: Counter[str] = Counter()
        for word, count in self.words.items():
            self.stems[stem(word)] += count
        total = math.log2(max(self.words.total(), 1))
        self._lexical = {word: total - math.log2(count) for word, count in self.words.items()}
        # Given the stem, the surprise at this form: log2 of the stem's count over the word's.
        self._morphology = {
            word: math.log2(self.stems[stem(word)]) - math.log2(count) for word, count in self.words.items()
        }

    @property
    def has_inflection(self) -> bool:
        """Whether any stem comes up in more than one form."""
        return len(self.stems) < len(self.words)

    def lexical(self, text: str) -> float:
        """Return the mean rarity of a text's words, in bits; 0 if it has none. All must have been counted.

        >>> WordCounts(["वह गया", "वह"]).lexical("वह गया") == (math.log2(3 / 2) + math.log2(3)) / 2
        True
        """
        return _mean(self._lexical, text)

    def morphology(self, text: str) -> float:
        """Return the mean rarity of a text's words among those of their stem, in bits; 0 if it has none.

        >>> counts = WordCounts(["लड़का लड़का लड़का", "लड़कों का"])
        >>> counts.morphology("लड़कों का"), round(counts.morphology("लड़का"), 3)
        (1.0, 0.415)
        """
        return _mean(self._morphology, text)


def _mean(bits: dict[str, float], text: str) -> float:
    words = split_words(text)
    return math.fsum(bits[word] for word in words) / max(len(words), 1)


def split_words(text: str) -> list[str]:
    """Return the words of a text without the punctuation around them, capital letters made small.

    >>> split_words("“वह गया।” Then - nothing!")
    ['वह', 'गया', 'then', 'nothing']
    """
    stripped = (word.strip(PUNCTUATION) for word in text.casefold().split())
    return [word for word in stripped if word]


def stem(word: str) -> str:
    """A Hindi word without its longest inflectional ending, of which at least two signs are left; others unchanged.

    Source: Ramanathan, Rao 2003.

    >>> stem("लड़कियाँ"), stem("लड़का"), stem("करूँगा"), stem("ने"), stem("running")
    ('लड़क', 'लड़क', 'कर', 'ने', 'running')
    """
    word = word.replace("ँ", "ं")
    # The longest ending first; at least two signs of the word are left.
    for size in range(min(LONGEST_ENDING, len(word) - 2), 0, -1):
        if word[-size:] in INFLECTIONS:
            return word[:-size]
    return word


def measure_difficulties(texts: Sequence[str], measure: str) -> list[float]:
    """Return how hard each text is, harder ones higher; lengths are in words.

    Raises UserError for an unknown measure, and if ``morphology`` finds no inflection.
    """
    if measure == "length":
        return [float(len(text.split())) for text in texts]
    counts = count_words(texts, measure)
    return [getattr(counts, measure)(text) for text in texts]


def count_words(texts: Iterable[str], measure: str) -> WordCounts:
    """Return the counts that ``lexical`` or ``morphology`` need. Raises as ``measure_difficulties`` does."""
    if measure not in MEASURES:
        raise UserError(f"unknown difficulty {measure}; choose from {', '.join(MEASURES)}")
    counts = WordCounts(texts)
    if measure == "morphology" and not counts.has_inflection:
        raise UserError("difficulty morphology requires Hindi inflection, but these texts have none: choose another")
    return counts


def sort_by_difficulty(texts: Iterable[str], measure: str = "length") -> list[str]:
    """Return the texts, easiest first; those equally hard keep their order. Raises as ``measure_difficulties`` does.

    >>> sort_by_difficulty(["वह घर गया", "वह गया", "गया"])
    ['गया', 'वह गया', 'वह घर गया']
    """
    texts = list(texts)
    difficulties = measure_difficulties(texts, measure)
    return [texts[index] for index in sorted(range(len(texts)), key=difficulties.__getitem__)]


def difficulty_stages(texts: Iterable[str], measure: str = "length", number: int = 3) -> list[list[str]]:
    """Return the texts in ``number`` stages of increasing difficulty, as equally large as may be.

    >>> easy, medium, hard = difficulty_stages(["a b c", "a", "a b", "a b c d"])
    >>> easy, medium, hard
    (['a'], ['a b'], ['a b c', 'a b c d'])
    """
    ordered = sort_by_difficulty(texts, measure)
    ends = [len(ordered) * stage // number for stage in range(number + 1)]
    return [ordered[start:end] for start, end in pairwise(ends)]


# Rounded, so that machines whose logarithms differ in the last bit still agree about the order.
DECIMALS = 6


def kept_difficulties(
    folder: Path, key: str, measure: str, texts: Callable[[], Iterable[str]], number: int
) -> np.ndarray:
    """Return how hard each of ``number`` texts is by ``lexical`` or ``morphology``, ``(text,)``, harder ones higher.

    They are kept in ``folder`` under ``key``, and computed by ``measure`` from ``texts`` where they aren't there.

    Raises UserError for another measure, and if ``morphology`` finds no inflection.
    """
    path = folder / f"difficulty-{measure}-{key}.bin"
    with contextlib.suppress(OSError, ValueError):
        found = mapped(path, "<f8")
        if len(found) == number:
            return found
    # Two passes over the texts: rarity is known only after all words were counted.
    counts = count_words(track(texts(), "counting words", number), measure)
    difficulty = {"lexical": counts.lexical, "morphology": counts.morphology}[measure]
    difficulties = np.fromiter(map(difficulty, track(texts(), "measuring difficulty", number)), "<f8", number)
    difficulties = np.round(difficulties, DECIMALS)
    try:
        write_bytes(path, difficulties.tobytes())
    except OSError as error:
        log.warning(
            "%s can't be written (%s): difficulties are measured again next time", path, error.strerror or error
        )
    return difficulties
