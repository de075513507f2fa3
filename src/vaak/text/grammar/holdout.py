"""Which split a sentence belongs to, and which lexemes never meet in one: pure functions of its words.

One noun in ten with any given verb, and one pair of nouns in ten, is *held out*: no sentence of any split has both, in
whatever form. The minimal pairs are made of such combinations, so that they can't be answered from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from vaak.core.random_keys import Purpose, draw_key
from vaak.text.grammar.lexicon import NUMERALS, POSTPOSITIONS, RELATIONS, lexicon
from vaak.text.grammar.morphology import ASPECT_OF, Features, adjective_form, imperative, noun_form, verb_group

HELD_OUT_ONE_IN = 10


class FormReading(NamedTuple):
    """The lexemes a form may belong to: सो is of सोना, चला of चलना and of चलाना."""

    nouns: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


@cache
def held_out(first: str, second: str) -> bool:
    """Whether two lexemes never meet in a sentence of a split; their order doesn't matter."""
    return draw_key(Purpose.GRAMMAR_COMBINATION, *sorted((first, second))) % HELD_OUT_ONE_IN == 0


@cache
def readings() -> dict[str, FormReading]:
    """Every inflected form of nouns, verbs and adjectives with its lexemes; function words are left out."""
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}

    def note(form: str, part: int, lemma: str) -> None:
        found.setdefault(form, (set(), set(), set()))[part].add(lemma)

    cells = [(number, oblique) for number in ("sg", "pl") for oblique in (False, True)]
    for noun in lexicon().nouns:
        for number, oblique in cells:
            note(noun_form(noun, number, oblique), 0, noun.lemma)
    for adjective in lexicon().adjectives:
        for gender in "mf":
            for number, oblique in cells:
                note(adjective_form(adjective.lemma, gender, number, oblique), 2, adjective.lemma)
    for verb in lexicon().verbs:
        for form in _verb_forms(verb.lemma):
            note(form, 1, verb.lemma)
    for word in (*POSTPOSITIONS, *RELATIONS, *NUMERALS, "की"):
        found.pop(word, None)
    return {form: FormReading(*map(frozenset, parts)) for form, parts in found.items()}


def _verb_forms(lemma: str) -> set[str]:
    people = [("sg", 1), ("pl", 2), ("sg", 3), ("pl", 3)]
    features = [Features(gender, number, person) for gender in "mf" for number, person in people]
    finite = {verb_group(lemma, tense, each)[0] for tense in ASPECT_OF for each in features}
    return finite | {imperative(lemma, polite) for polite in (False, True)}


def meets_held_out(words: Sequence[str]) -> bool:
    """Whether the words hold a held-out pair of lexemes, under any reading of an ambiguous form."""
    table = readings()
    known = [table[word] for word in words if word in table]
    nouns = [reading.nouns for reading in known if reading.nouns]
    pairs = list(combinations(nouns, 2))
    pairs += [(some, reading.verbs) for reading in known if reading.verbs for some in nouns]
    return any(held_out(first, second) for some, others in pairs for first in some for second in others)


def split_of(words: Sequence[str]) -> str:
    """The split of a sentence, from the set of its lexemes: 80 % train, 10 % valid, 10 % test.

    Two sentences of the same lexemes, in whatever tense, number or order, are in the same split.
    """
    table = readings()
    lexemes = sorted({lemma for word in words if word in table for part in table[word] for lemma in part})
    bucket = draw_key(Purpose.GRAMMAR_SPLIT, *lexemes) % 10
    return "valid" if bucket == 0 else "test" if bucket == 1 else "train"
