"""Augmentation of texts: synonyms for words, inserted synonyms, exchanged words, deleted words; negations are kept.

Source: Wei and Zou 2019, "EDA: Easy Data Augmentation Techniques for Boosting Performance on Text Classification
Tasks". Differs: each word is changed with a probability, instead of a fixed number of words; words of negation may be
kept, since a text without its "not" has another label; punctuation stays at its place when the word next to it is
replaced, exchanged or deleted, and a synonym gets the capitals of its word. Each technique has a separate random
generator, so leaving one out doesn't change the draws of the others.

Words of negation in English and Hindi are known however they are written::

    isn't  isn’t  isnt  ISN'T,  couldn't've  n't        its apostrophe, case and punctuation don't matter
    no-one  not/never  "no"  नहीं।है                     one of the parts between punctuation is enough
    नहीं  नहीँ  नही  nahi                                spellings in use, also in Latin letters
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaak.core.errors import DataError, UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.text_lines import read_text_lines

log = logging.getLogger("vaak")
Synonyms = Callable[[str], Sequence[str]]
"""Words that mean about the same as a word in small letters; none if it is unknown."""
NEIGHBOURS = 5
SYNONYMS = "data.augmentation.synonyms"


class Word(NamedTuple):
    """A word, and the punctuation that touches it on both sides."""

    before: str
    core: str
    after: str

    @classmethod
    def of(cls, text: str) -> Word:
        """One of the words between spaces; punctuation alone is a word, too.

        >>> Word.of("(isn't!).")
        Word(before='(', core="isn't", after='!).')
        """
        places = [index for index, letter in enumerate(text) if not is_punctuation(letter)]
        if not places:
            return cls("", text, "")
        first, end = places[0], places[-1] + 1
        return cls(text[:first], text[first:end], text[end:])

    def __str__(self) -> str:
        return self.before + self.core + self.after


class Augmenter:
    """Changes texts; the result is a function of the text and the generator alone."""

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
        # A generator per technique, from one draw: leaving a technique out doesn't change the draws of the others.
        words, key = [Word.of(word) for word in text.split()], int(rng.integers(2**63))
        for technique in self.techniques if words else ():
            own = np.random.default_rng(draw_key(Purpose.AUGMENTATION, key, technique))
            chosen = own.random(len(words)) < self.probability
            words = _CHANGES[technique](self, words, chosen, own)
        return " ".join(map(str, words))

    def fixed(self, word: Word) -> bool:
        """Return whether a word stays unchanged and in place."""
        return self.keep_negation and is_negation(word.core)

    def synonym(self, word: Word, rng: np.random.Generator) -> str | None:
        """Return a synonym that doesn't negate, unless negations may come and go; None if there is none."""
        found = self.synonyms(word.core.lower()) if self.synonyms is not None else ()
        if self.keep_negation:
            found = [one for one in found if not any(map(is_negation, one.split()))]
        return found[int(rng.integers(len(found)))] if found else None

    def replaced(self, words: list[Word], chosen: np.ndarray, rng: np.random.Generator) -> list[Word]:
        """Synonyms in place of the chosen words."""
        changed = list(words)
        for place in np.flatnonzero(chosen).tolist():
            word = words[place]
            found = None if self.fixed(word) else self.synonym(word, rng)
            # The synonym takes over the word's capitals.
            if found is not None:
                if len(word.core) > 1 and word.core.isupper():
                    found = found.upper()
                elif word.core[:1].isupper():
                    found = found[:1].upper() + found[1:]
                changed[place] = word._replace(core=found)
        return changed

    def inserted(self, words: list[Word], chosen: np.ndarray, rng: np.random.Generator) -> list[Word]:
        """Synonyms of the chosen words at random places."""
        longer = list(words)
        for word in (word for word, one in zip(words, chosen, strict=True) if one and not self.fixed(word)):
            found = self.synonym(word, rng)
            if found is not None:
                # Anywhere, as in EDA, not next to its word; without punctuation, which stays with its words.
                longer.insert(int(rng.integers(len(longer) + 1)), Word("", found, ""))
        return longer

    def swapped(self, words: list[Word], chosen: np.ndarray, rng: np.random.Generator) -> list[Word]:
        """Return each chosen word exchanged with a random one; punctuation stays."""
        words = list(words)
        for place in np.flatnonzero(chosen).tolist():
            other = int(rng.integers(len(words)))
            one, another = words[place], words[other]
            # The cores change places, the punctuation stays, so the sentence still ends with its full stop.
            if not self.fixed(one) and not self.fixed(another):
                words[place], words[other] = one._replace(core=another.core), another._replace(core=one.core)
        return words

    def deleted(self, words: list[Word], chosen: np.ndarray, rng: np.random.Generator) -> list[Word]:
        """The words that weren't chosen, at least one; a deleted word leaves its punctuation to its neighbours."""
        left = [not one or self.fixed(word) for word, one in zip(words, chosen, strict=True)]
        if not any(left):
            return [words[int(rng.integers(len(words)))]]
        # Closing punctuation goes to the word before, opening to the word after. The empty first word is a place for
        # the former.
        kept, opening = [Word("", "", "")], ""
        for word, stays in zip(words, left, strict=True):
            if stays:
                kept.append(word._replace(before=opening + word.before))
                opening = ""
            else:
                opening += word.before
                kept[-1] = kept[-1]._replace(after=kept[-1].after + word.after)
        return kept[1:]


_CHANGES: dict[str, Callable[[Augmenter, list[Word], np.ndarray, np.random.Generator], list[Word]]] = {
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
        synonyms: Synonyms | str | PathLike[str] | None = None,
        seed: int = 42,
        keep_negation: bool = True,
    ) -> None:
        """``augmentation_prob`` is each word's, for each of the ``techniques``; ``synonyms`` default to WordNet's.

        They are a function, a file with words that mean the same in each line (separated by tabs or commas), or
        "wordnet". The same ``seed`` gives the same texts. ``keep_negation`` leaves words such as "not" unchanged.

        Raises UserError if the file can't be read, or WordNet was asked for and is missing; where no synonyms were
        named and it is missing, a warning says that words are exchanged and deleted only.
        """
        if isinstance(synonyms, str | PathLike):
            synonyms = named_synonyms(synonyms, "synonyms")
        if synonyms is None and set(OF_SYNONYMS) & set(techniques):
            try:
                synonyms = wordnet_synonyms()
            except UserError as error:
                log.warning("%s; only words are exchanged and deleted", error)
                techniques = [technique for technique in techniques if technique not in OF_SYNONYMS]
        self.seed, self.change = seed, Augmenter(techniques, augmentation_prob, synonyms, keep_negation)

    def augment_dataset(self, data: Any, text_column: str = "text", augmentation_factor: int = 1) -> Any:
        """The rows (dictionaries, or a DataFrame of pandas), then ``augmentation_factor`` changed copies of each.

        Raises UserError if a row has no such column.
        """
        is_frame = hasattr(data, "to_dict") and not isinstance(data, Mapping)
        rows: list[dict[str, Any]] = data.to_dict("records") if is_frame else list(data)
        lacking = next((number for number, row in enumerate(rows) if text_column not in row), None)
        if lacking is not None:
            raise UserError(f"row {lacking}: no column {text_column!r}; give text_column")
        copies = []
        for copy in range(augmentation_factor):
            for number, row in enumerate(rows):
                rng = np.random.default_rng(draw_key(Purpose.AUGMENTATION, self.seed, copy, number))
                copies.append(row | {text_column: self.change(row[text_column], rng)})
        return type(data)(rows + copies) if is_frame else rows + copies


def named_synonyms(name: str | PathLike[str], key: str = SYNONYMS, folder: Path = Path()) -> Synonyms:
    """Return the synonyms of "wordnet", or of a file, relative to ``folder``.

    Raises UserError, which begins with ``key``, where they are missing.
    """
    return wordnet_synonyms(key) if name == "wordnet" else listed_synonyms(folder / Path(name).expanduser(), key)


def listed_synonyms(path: Path, key: str = SYNONYMS) -> Synonyms:
    """Return the synonyms of a file: words of the same meaning in each line, separated by tabs or commas.

    Raises UserError, which begins with ``key``, where it can't be read, or has none.
    """
    try:
        lines = read_text_lines(path)
    except DataError as error:
        raise UserError(f"{key}: {path} can't be read: {error}") from error
    found: dict[str, list[str]] = {}
    for line in lines:
        words = [word for word in re.split(r"\s*[\t,]\s*", line.strip()) if word]
        for word in words:
            found.setdefault(word.lower(), []).extend(other for other in words if other != word)
    if not any(found.values()):
        raise UserError(f"{key}: {path} has no line with two words, separated by a tab or a comma")
    return functools.partial(_look_up, found)


def _look_up(found: Mapping[str, Sequence[str]], word: str) -> Sequence[str]:
    return found.get(word, ())


def wordnet_synonyms(key: str = SYNONYMS) -> Synonyms:
    """Return the synonyms of WordNet, by nltk. Raises UserError, which begins with ``key``, where either is missing."""
    instead = "give a file as synonyms, or leave synonym_replacement and random_insertion out of techniques"
    try:
        importlib.import_module("nltk.corpus").wordnet.ensure_loaded()
    except ImportError as error:
        raise UserError(f"{key}: wordnet requires nltk (pip install 'vaak[augmentation]'); or {instead}") from error
    except LookupError as error:
        download = "python -m nltk.downloader wordnet"
        raise UserError(f"{key}: nltk has no WordNet ({download}); or {instead}") from error
    return _wordnet_synonyms


@functools.lru_cache(maxsize=1 << 16)
def _wordnet_synonyms(word: str) -> Sequence[str]:
    wordnet = importlib.import_module("nltk.corpus").wordnet
    lemmas = {lemma.name().replace("_", " ") for synset in wordnet.synsets(word) for lemma in synset.lemmas()}
    return sorted(lemmas - {word})


class NeighbourSynonyms:
    """The nearest words among vectors ``(word, width)``, by their angle; NaN where a word has none."""

    def __init__(self, words: Iterable[str], vectors: np.ndarray) -> None:
        self.words = list(words)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.directions = np.nan_to_num(vectors / np.maximum(norms, 1e-12), nan=0.0)
        self.places = {word: index for index, word in enumerate(self.words) if self.directions[index].any()}
        self._found: dict[str, list[str]] = {}

    def __call__(self, word: str) -> Sequence[str]:
        if word in self.places and word not in self._found:
            place = self.places[word]
            cosines = self.directions @ self.directions[place]
            # A word isn't its own synonym.
            cosines[place] = -1
            nearest = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
            self._found[word] = [self.words[other] for other in nearest if cosines[other] > 0]
        return self._found.get(word, [])


ENGLISH_NEGATIONS = (
    "no not never none nobody nothing neither nor nowhere noone nope nah cannot without ain aint nt nary naught"
)
"""``nt`` is what a tokenizer of words leaves of *n't*; *ain* of *ain't*."""
SEMI_NEGATIVES = "hardly scarcely barely rarely seldom"
"""Adverbs after which a sentence is negated, too ("it hardly works")."""
WITHOUT_APOSTROPHE = (
    "dont doesnt didnt isnt arent wasnt werent cant couldnt wont wouldnt shouldnt shant hasnt havent hadnt mustnt "
    "neednt mightnt oughtnt darent"
)
HINDI_NEGATIONS = "नहीं नहीँ नही नहिं नहि नाहीं न ना मत बिना बिन बगैर बग़ैर गैर ग़ैर nahi nahin nahee nahii na mat bina bagair"
APOSTROPHES = dict.fromkeys(map(ord, "’‘ʼ`´′＇‛"), "'")
JOINERS = "\u200c\u200d"
REPEATED = re.compile(r"(.)\1{2,}")


def _normalise_spelling(text: str) -> str:
    """Return a text in one spelling: small letters, one kind of apostrophe, no invisible signs, composed in one way."""
    visible = "".join(letter for letter in text.translate(APOSTROPHES) if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold()


NEGATIONS = frozenset(
    _normalise_spelling(" ".join((ENGLISH_NEGATIONS, SEMI_NEGATIVES, WITHOUT_APOSTROPHE, HINDI_NEGATIONS))).split()
)


def is_punctuation(letter: str) -> bool:
    """Return whether a character is a sign next to words, such as ``.``, ``।``, ``“``, ``$`` or an emoji."""
    category = unicodedata.category(letter)
    return category[0] in "PS" or (category == "Cf" and letter not in JOINERS)


@functools.lru_cache(maxsize=1 << 16)
def is_negation(word: str) -> bool:
    """Return whether one of a word's parts negates.

    >>> [word for word in "It isnt bad; NOT at all, नहीं। Nothing's Hardly!".split() if is_negation(word)]
    ['isnt', 'NOT', 'नहीं।', "Nothing's", 'Hardly!']
    """
    written = _normalise_spelling(word)
    parts = groupby(written, lambda letter: is_punctuation(letter) and letter != "'")
    for part in ("".join(letters) for between, letters in parts if not between):
        # nothing's; people write the visarga for a colon.
        alone = part.strip("'ः").partition("'")[0]
        if "n't" in part or alone in NEGATIONS or REPEATED.sub(r"\1", alone) in NEGATIONS:
            # REPEATED reads nooo as no.
            return True
    return False
