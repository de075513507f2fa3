"""Augmentation of texts: synonyms for words, inserted synonyms, exchanged words, deleted words.

Source: Wei and Zou 2019, "EDA: Easy Data Augmentation Techniques for Boosting Performance on Text Classification
Tasks". Differs: each word is changed with a probability, instead of a fixed number of words; words of negation may be
kept, since a text without its "not" has another label. Each technique has a separate random generator, so leaving one
out doesn't change the draws of the others.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key

log = logging.getLogger("vaak")

Synonyms = Callable[[str], Sequence[str]]
"""Words that mean about the same as a word in small letters; none where it is unknown."""

NEGATIONS = {"no", "not", "n't", "never", "none", "nobody", "nothing", "neither", "nor", "nowhere", "cannot", "without"}
NEGATIONS |= {"नहीं", "नही", "न", "मत", "ना", "बिना"}
NEIGHBOURS = 5


class Augmenter:
    """Changes texts; what it does to one is a function of the text and the generator alone."""

    def __init__(
        self,
        techniques: Sequence[str],
        probability: float,
        synonyms: Synonyms | None = None,
        keep_negation: bool = True,
    ) -> None:
        """Raises UserError for an unknown technique, or one that needs synonyms where there are none.

        ``techniques`` are applied in their order, each to every word with ``probability``.
        """
        for technique in techniques:
            if technique not in TECHNIQUES:
                raise UserError(f"augmentation: unknown technique {technique!r}; choose from {', '.join(TECHNIQUES)}")
            if technique in OF_SYNONYMS and synonyms is None:
                raise UserError(f"augmentation: {technique} needs synonyms; give some, or leave it out")
        self.techniques, self.probability = tuple(techniques), probability
        self.synonyms, self.keep_negation = synonyms, keep_negation

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        words, key = text.split(), int(rng.integers(2**63))
        for technique in self.techniques if words else ():
            own = np.random.default_rng(draw_key(Purpose.AUGMENTATION, key, technique))
            chosen = own.random(len(words)) < self.probability
            words = _CHANGES[technique](self, words, chosen, own)
        return " ".join(words)

    def fixed(self, word: str) -> bool:
        """Whether a word stays as and where it is."""
        word = word.lower()
        return self.keep_negation and (word in NEGATIONS or word.endswith(("n't", "n’t")))

    def synonym(self, word: str, rng: np.random.Generator) -> str | None:
        """A synonym; None where there is none."""
        found = self.synonyms(word.lower()) if self.synonyms is not None else ()
        return found[int(rng.integers(len(found)))] if found else None

    def replaced(self, words: list[str], chosen: np.ndarray, rng: np.random.Generator) -> list[str]:
        """Synonyms in place of the chosen words."""
        pairs = zip(words, chosen, strict=True)
        return [(self.synonym(word, rng) or word) if one and not self.fixed(word) else word for word, one in pairs]

    def inserted(self, words: list[str], chosen: np.ndarray, rng: np.random.Generator) -> list[str]:
        """Synonyms of the chosen words at random places."""
        longer = list(words)
        for word in (word for word, one in zip(words, chosen, strict=True) if one and not self.fixed(word)):
            found = self.synonym(word, rng)
            if found is not None:
                longer.insert(int(rng.integers(len(longer) + 1)), found)
        return longer

    def swapped(self, words: list[str], chosen: np.ndarray, rng: np.random.Generator) -> list[str]:
        """Each chosen word exchanged with a random one."""
        words = list(words)
        for one in np.flatnonzero(chosen).tolist():
            other = int(rng.integers(len(words)))
            if not self.fixed(words[one]) and not self.fixed(words[other]):
                words[one], words[other] = words[other], words[one]
        return words

    def deleted(self, words: list[str], chosen: np.ndarray, rng: np.random.Generator) -> list[str]:
        """The words that weren't chosen; at least one."""
        kept = [word for word, one in zip(words, chosen, strict=True) if not one or self.fixed(word)]
        return kept or [words[int(rng.integers(len(words)))]]


_CHANGES: dict[str, Callable[[Augmenter, list[str], np.ndarray, np.random.Generator], list[str]]] = {
    "synonym_replacement": Augmenter.replaced,
    "random_insertion": Augmenter.inserted,
    "random_swap": Augmenter.swapped,
    "random_deletion": Augmenter.deleted,
}
TECHNIQUES = tuple(_CHANGES)
OF_SYNONYMS = ("synonym_replacement", "random_insertion")


class DataAugmenter:
    """Augments whole data sets, as the research kit writes it; without WordNet only by swaps and deletions.

    >>> augmenter = DataAugmenter(augmentation_prob=0.5, techniques=["random_swap"])
    >>> [row["label"] for row in augmenter.augment_dataset([{"text": "a b c", "label": 1}])]
    [1, 1]
    """

    def __init__(
        self,
        augmentation_prob: float = 0.1,
        techniques: Sequence[str] = TECHNIQUES,
        synonyms: Synonyms | None = None,
        seed: int = 42,
        keep_negation: bool = True,
    ) -> None:
        """``augmentation_prob`` is each word's, for each of the ``techniques``; ``synonyms`` default to WordNet's.

        The same ``seed`` gives the same texts. ``keep_negation`` leaves words such as "not" as and where they are.
        """
        if synonyms is None and set(OF_SYNONYMS) & set(techniques):
            try:
                synonyms = wordnet_synonyms()
            except UserError as error:
                log.warning("%s; only words are exchanged and deleted", error)
                techniques = [technique for technique in techniques if technique not in OF_SYNONYMS]
        self.seed, self.change = seed, Augmenter(techniques, augmentation_prob, synonyms, keep_negation)

    def augment_dataset(self, data: Any, text_column: str = "text", augmentation_factor: int = 1) -> Any:
        """The rows (dictionaries, or a DataFrame of pandas), then ``augmentation_factor`` changed copies of each.

        Raises UserError where a row has no such column.
        """
        is_frame = hasattr(data, "to_dict") and not isinstance(data, Mapping)
        rows: list[dict[str, Any]] = data.to_dict("records") if is_frame else list(data)
        lacking = next((number for number, row in enumerate(rows) if text_column not in row), None)
        if lacking is not None:
            raise UserError(f"row {lacking}: no column {text_column!r}; give text_column")
        copies = [
            row | {text_column: self.change(row[text_column], self._generator(copy, number))}
            for copy in range(augmentation_factor)
            for number, row in enumerate(rows)
        ]
        return type(data)(rows + copies) if is_frame else rows + copies

    def _generator(self, copy: int, number: int) -> np.random.Generator:
        return np.random.default_rng(draw_key(Purpose.AUGMENTATION, self.seed, copy, number))


def listed_synonyms(path: Path) -> Synonyms:
    """Of a file with words that mean the same in each line, separated by tabs or commas.

    Raises UserError where it can't be read, or has none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.augmentation.synonyms: {path} can't be read: {error}") from error
    found: dict[str, list[str]] = {}
    for line in lines:
        words = [word for word in re.split(r"\s*[\t,]\s*", line.strip()) if word]
        for word in words:
            found.setdefault(word.lower(), []).extend(other for other in words if other != word)
    if not any(found.values()):
        raise UserError(f"data.augmentation.synonyms: {path} has no line with two words, separated by a tab or a comma")
    return functools.partial(_listed, found)


def _listed(found: Mapping[str, Sequence[str]], word: str) -> Sequence[str]:
    return found.get(word, ())


def wordnet_synonyms() -> Synonyms:
    """Of WordNet, by nltk. Raises UserError where either is missing."""
    instead = "give a file as synonyms, or leave synonym_replacement and random_insertion out of techniques"
    try:
        importlib.import_module("nltk.corpus").wordnet.ensure_loaded()
    except ImportError as error:
        raise UserError(
            f"data.augmentation.synonyms: wordnet requires nltk (pip install nltk); or {instead}"
        ) from error
    except LookupError as error:
        download = "python -m nltk.downloader wordnet"
        raise UserError(f"data.augmentation.synonyms: nltk has no WordNet ({download}); or {instead}") from error
    return _of_wordnet


@functools.lru_cache(maxsize=1 << 16)
def _of_wordnet(word: str) -> Sequence[str]:
    wordnet = importlib.import_module("nltk.corpus").wordnet
    lemmas = {lemma.name().replace("_", " ") for synset in wordnet.synsets(word) for lemma in synset.lemmas()}
    return sorted(lemmas - {word})


class NeighbourSynonyms:
    """The nearest words among vectors ``(word, width)``, by their angle; NaN where a word has none."""

    def __init__(self, words: Iterable[str], vectors: np.ndarray) -> None:
        self.words = list(words)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.directions = np.nan_to_num(vectors / np.maximum(norms, 1e-12), nan=0.0)
        self.places = {word: place for place, word in enumerate(self.words) if self.directions[place].any()}
        self._found: dict[str, list[str]] = {}

    def __call__(self, word: str) -> Sequence[str]:
        if word in self.places and word not in self._found:
            place = self.places[word]
            cosines = self.directions @ self.directions[place]
            cosines[place] = -1
            nearest = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
            self._found[word] = [self.words[other] for other in nearest if cosines[other] > 0]
        return self._found.get(word, [])
