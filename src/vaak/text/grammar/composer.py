"""Chooses words that go together (who does what, where, with whom, in which tense), and those that never meet.

One noun in ten with any given verb, and one pair of nouns in ten, is *held out*: no sentence of any split has both, in
whatever form. The minimal pairs are made of such combinations, so that they can't be answered from memory. What is
held out, and which split a sentence belongs to, are pure functions of its words.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple, TypeVar

from vaak.core.random_keys import Purpose, draw_key
from vaak.text.grammar.lexicon import (
    NUMERALS,
    ONE,
    POSTPOSITIONS,
    PRONOUNS,
    RELATIONS,
    Adjective,
    Adverb,
    Noun,
    Verb,
    lexicon,
)
from vaak.text.grammar.morphology import (
    ASPECT_OF,
    TENSES,
    Features,
    Nominal,
    Personal,
    Predicate,
    Words,
    adjective_form,
    imperative,
    noun_form,
    verb_group,
)

T = TypeVar("T")
NOUNS_OF_PLACE = ("inside", "surface")
OWNED = frozenset({"kin", "animal", "thing", "clothes", "reading", "vehicle", "owned", "vessel", "instrument"})
# मैं and तुम twice: their verb forms are nobody else's.
SPEAKERS = (*PRONOUNS, PRONOUNS[0], PRONOUNS[2])
PRONOUN_RATE = 0.25
ADVERB_RATE = 0.45
PLACE_RATE = 0.55


@cache
def _verbs(valencies: tuple[str, ...], subjects: str) -> list[Verb]:
    return [verb for verb in lexicon().verbs if verb.valency in valencies and subjects in verb.subjects]


@cache
def _adverbs(aspect: str, kind: str) -> list[Adverb]:
    return [adverb for adverb in lexicon().adverbs if adverb.kind == kind and adverb.aspects & {"all", aspect}]


@cache
def _adjectives(classes: frozenset[str], kinds: tuple[str, ...], inflecting: bool | None) -> list[Adjective]:
    fitting = [each for each in lexicon().adjectives if each.classes & classes and each.kind in kinds]
    return [each for each in fitting if inflecting in (None, each.inflects)]


class NoChoiceError(Exception):
    """No word meets the conditions drawn so far; the caller draws afresh."""


class Composer:
    """Draws words and phrases from the lexicon with one generator; the same seed draws the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lexicon = lexicon()

    def one(self, options: Sequence[T]) -> T:
        """One of the options. Raises NoChoiceError if there is none."""
        if not options:
            raise NoChoiceError
        return options[int(self.random.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def noun(self, classes: Collection[str], gender: str | None = None, new_to: Collection[str] = ()) -> Noun:
        """A noun of any of the classes; each of its combinations with ``new_to`` is a held-out one."""
        nouns = self.lexicon.find_nouns(classes, gender)
        if new_to:
            nouns = tuple(noun for noun in nouns if all(held_out(noun.lemma, other) for other in new_to))
        return self.one(nouns)

    def person(self, gender: str | None = None, new_to: Collection[str] = ()) -> Noun:
        """A human being, by name or by what he or she is."""
        return self.noun(("human", "name"), gender, new_to)

    # Verbs and tenses

    def verb(self, valencies: tuple[str, ...], subjects: str = "human") -> Verb:
        return self.one(_verbs(valencies, subjects))

    def tense(self, *aspects: str) -> str:
        aspect = self.one(aspects or tuple(TENSES))
        return self.one(TENSES[aspect])

    def adverb(self, tense: str, kind: str = "time") -> Words:
        return self.one(_adverbs(ASPECT_OF[tense], kind)).words

    # Noun phrases

    def number(self, noun: Noun, plural_rate: float = 0.3) -> str:
        fixed = noun.inflection == "mass" or noun.classes & {"name", "elder"}
        return "pl" if not fixed and self.chance(plural_rate) else "sg"

    def adjective(
        self, noun: Noun, kinds: tuple[str, ...] = ("quality", "state"), inflecting: bool | None = None
    ) -> Adjective:
        """An adjective that goes with the noun; ``inflecting`` asks for those that agree, or don't."""
        return self.one(_adjectives(noun.classes, kinds, inflecting))

    def modifiers(self, noun: Noun, rate: float = 0.45) -> tuple[Words, ...]:
        """Possessor, determiner and adjective, or nothing at all."""
        if noun.classes & {"name", "elder"} or not self.chance(rate):
            return ()
        if noun.classes & OWNED and self.chance(0.5):
            return (self.possessor(),) + (self.described(noun) if self.chance(0.3) else ())
        if self.chance(0.3):
            return ((self.one(("यह", "वह")),),)
        return self.described(noun)

    def described(self, noun: Noun) -> tuple[Words, ...]:
        """One adjective, sometimes with बहुत, or two with और; nothing for a noun that none goes with."""
        try:
            # Both are drawn in any case, so that the later draws are the same for one adjective or two.
            first, second = self.adjective(noun).lemma, self.adjective(noun).lemma
        except NoChoiceError:
            return ()
        if first != second and self.chance(0.15):
            return (first,), ("और", second)
        return ((("बहुत", first) if self.chance(0.1) else (first,)),)

    def possessor(self) -> Words:
        """राम का, लड़के का, मेरा: the last word agrees with what is possessed."""
        if self.chance(0.35):
            return (self.one(PRONOUNS).genitive,)
        return Nominal(self.person()).words("का")

    def nominal(self, classes: Collection[str], rate: float = 0.45) -> Nominal:
        noun = self.noun(classes)
        return Nominal(noun, self.number(noun), self.modifiers(noun, rate))

    def subject(self, verb: Verb) -> Nominal | Personal:
        """Someone or something that can do this."""
        if "human" not in verb.subjects or ("animal" in verb.subjects and self.chance(0.3)):
            return self.nominal(sorted(verb.subjects - {"human"}), 0.25)
        if self.chance(PRONOUN_RATE):
            return self.pronoun()
        if self.chance(0.12):
            return Nominal(self.noun(("elder",)))
        return self.nominal(("human", "name"), 0.3)

    def pronoun(self) -> Personal:
        pronoun = self.one(SPEAKERS)
        return Personal(pronoun, "m" if pronoun.direct == "हम" else self.one("mf"))

    def object(self, verb: Verb, own: bool = True) -> Nominal:
        """Return an object for the verb; ``own`` allows अपना."""
        noun = self.noun(sorted(verb.objects))
        number = self.number(noun)
        is_own = own and noun.classes & OWNED and self.chance(0.2)
        return self.counted(Nominal(noun, number, (("अपना",),) if is_own else self.modifiers(noun)))

    def counted(self, nominal: Nominal) -> Nominal:
        """The phrase, sometimes with a numeral; mass nouns aren't counted."""
        if nominal.modifiers or nominal.noun.inflection == "mass" or "work" in nominal.noun.classes:
            return nominal
        if not self.chance(0.25 if nominal.number == "sg" else 0.65):
            return nominal
        numeral = ONE if nominal.number == "sg" else self.numeral()
        described = self.described(nominal.noun) if self.chance(0.4) else ()
        return Nominal(nominal.noun, nominal.number, ((numeral,), *described))

    def numeral(self) -> str:
        """Two or more; the smaller, the more often."""
        return NUMERALS[int(len(NUMERALS) * self.random.random() ** 3)]

    # What stands between subject and verb

    def place(self, noun: Noun, modifiers: tuple[Words, ...] = ()) -> Words:
        """मेज़ पर, घर में, दुकान के सामने."""
        if self.chance(0.25):
            relation: Words = ("के", self.one(("पास", "सामने", "पीछे")))
        else:
            relation = ("पर",) if "surface" in noun.classes else ("में",)
        return Nominal(noun, "sg", modifiers).words(*relation)

    def adjunct(self, verb: Verb, rate: float = 0.25, new_to: Collection[str] = ()) -> tuple[Words, Noun]:
        """A postpositional phrase that goes with the verb, and its noun."""
        kind = self.one(sorted(verb.adjuncts))
        if kind in ("with", "against"):
            noun = self.person(new_to=new_to)
            owned = noun.classes & OWNED and self.chance(0.3)
            phrase = Nominal(noun, "sg", (("अपना",),) if owned else ())
            return phrase.words(*(("के", "साथ") if kind == "with" else ("से",))), noun
        if kind == "water":
            noun = self.noun(("water",), new_to=new_to)
            return Nominal(noun, "sg", self.modifiers(noun, rate)).words("में"), noun
        noun = self.noun(NOUNS_OF_PLACE if kind == "place" else ("inside",), new_to=new_to)
        modifiers = self.modifiers(noun, rate)
        if kind == "place":
            return self.place(noun, modifiers), noun
        relation = {"from": ("से",), "to": ("तक",), "above": ("के", "ऊपर")}[kind]
        return Nominal(noun, "sg", modifiers).words(*relation), noun

    def predicate(self, verb: Verb, tense: str, own: bool = True) -> Predicate:
        """The verb with adverbs, adjunct and objects as it needs or may have them."""
        before = self.adverb(tense) if self.chance(ADVERB_RATE) else ()
        place = self.adjunct(verb)[0] if verb.adjuncts and self.chance(PLACE_RATE) else ()
        manner = self.adverb(tense, "manner") if "human" in verb.subjects and self.chance(0.12) else ()
        if verb.valency == "intransitive":
            return Predicate(verb, tense, before + place, after=manner)
        if verb.valency == "ditransitive":
            receiver = self.nominal(("human", "name"), 0.2).words("को")
            return Predicate(verb, tense, before + receiver, self.object(verb, own))
        # Animate objects take को; where a verb allows both kinds, half of them do.
        if verb.marked_objects and (not verb.objects or self.chance(0.5)):
            animate = self.nominal(sorted(verb.marked_objects) + ["name"] * ("human" in verb.marked_objects), 0.2)
            object_, marked = animate, True
        else:
            object_, marked = self.object(verb, own), False
        if self.chance(0.45):
            return Predicate(verb, tense, before, object_, marked, place + manner)
        return Predicate(verb, tense, before + place, object_, marked, manner)


HELD_OUT_ONE_IN = 10


class FormReading(NamedTuple):
    """The lexemes a form may belong to: सो is of सोना, चला of चलना and of चलाना."""

    nouns: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


@cache
def held_out(first: str, second: str) -> bool:
    """Return whether two lexemes never meet in a sentence of a split; their order doesn't matter."""
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
    people = [("sg", 1), ("pl", 2), ("sg", 3), ("pl", 3)]
    features = [Features(gender, number, person) for gender in "mf" for number, person in people]
    for verb in lexicon().verbs:
        finite = {verb_group(verb.lemma, tense, each)[0] for tense in ASPECT_OF for each in features}
        for form in finite | {imperative(verb.lemma, polite) for polite in (False, True)}:
            note(form, 1, verb.lemma)
    # These forms are nearly always function words (की is also "did"), so they must not count as lexemes.
    for word in (*POSTPOSITIONS, *RELATIONS, *NUMERALS, "की"):
        found.pop(word, None)
    return {form: FormReading(*map(frozenset, parts)) for form, parts in found.items()}


def meets_held_out(words: Sequence[str]) -> bool:
    """Return whether the words hold a held-out pair of lexemes, under any reading of an ambiguous form."""
    table = readings()
    known = [table[word] for word in words if word in table]
    nouns = [reading.nouns for reading in known if reading.nouns]
    pairs = list(combinations(nouns, 2))
    # All readings of an ambiguous form count: a split must not leak under any of them.
    pairs += [(some, reading.verbs) for reading in known if reading.verbs for some in nouns]
    return any(held_out(first, second) for some, others in pairs for first in some for second in others)


def choose_split(words: Sequence[str]) -> str:
    """The split of a sentence, from the set of its lexemes: 80 % train, 10 % valid, 10 % test.

    Two sentences of the same lexemes, in whatever tense, number or order, are in the same split.
    """
    table = readings()
    lexemes = sorted({lemma for word in words if word in table for part in table[word] for lemma in part})
    bucket = draw_key(Purpose.GRAMMAR_SPLIT, *lexemes) % 10
    return "valid" if bucket == 0 else "test" if bucket == 1 else "train"
