"""Noun phrases and clauses: agreement and case are decided here, words are chosen elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vaak.text.grammar.lexicon import Noun, Pronoun, Verb
from vaak.text.grammar.morphology import ASPECT_OF, DEFAULT, Features, adjective_form, noun_form, verb_group

Words = tuple[str, ...]

DETERMINERS = {
    "यह": ("यह", "ये", "इस", "इन"),
    "वह": ("वह", "वे", "उस", "उन"),
    "जो": ("जो", "जो", "जिस", "जिन"),
}


def agreeing(word: str, gender: str, number: str, oblique: bool) -> str:
    """A word that modifies a noun: adjectives, का, अपना, and the determiners यह, वह, जो."""
    if word in DETERMINERS:
        return DETERMINERS[word][2 * oblique + (number == "pl")]
    return adjective_form(word, gender, number, oblique)


@dataclass(frozen=True)
class Nominal:
    """A noun with what stands before it; the last word of each modifier agrees: (अच्छा,), (राम, का), (बहुत, लाल)."""

    noun: Noun
    number: str = "sg"
    modifiers: tuple[Words, ...] = ()

    def __post_init__(self) -> None:
        assert self.number == "sg" or self.noun.inflection != "mass", f"{self.noun.lemma} has no plural"

    @property
    def honorific(self) -> bool:
        return "elder" in self.noun.classes

    @property
    def features(self) -> Features:
        return Features(self.noun.gender, "pl" if self.honorific else self.number)

    def words(self, *postposition: str) -> Words:
        """The phrase in the direct case, or in the oblique before a postposition."""
        oblique = bool(postposition)
        if self.honorific:
            return (self.noun.lemma, "जी", *postposition)
        before = [
            word
            for modifier in self.modifiers
            for word in (*modifier[:-1], agreeing(modifier[-1], self.noun.gender, self.number, oblique))
        ]
        return (*before, noun_form(self.noun, self.number, oblique), *postposition)


@dataclass(frozen=True)
class Personal:
    """A personal pronoun of whom we know the gender."""

    pronoun: Pronoun
    gender: str

    @property
    def features(self) -> Features:
        return Features(self.gender, self.pronoun.number, self.pronoun.person)

    def words(self, *postposition: str) -> Words:
        """The pronoun in the direct case, or fused with ने or को."""
        forms = {(): self.pronoun.direct, ("ने",): self.pronoun.ergative, ("को",): self.pronoun.dative}
        return (forms[postposition],)


class Clause(NamedTuple):
    """The words of a clause and the place of its verb's first word."""

    words: Words
    verb_at: int

    def then(self, *words: str) -> Clause:
        return Clause((*self.words, *words), self.verb_at)


@dataclass(frozen=True)
class Predicate:
    """A verb with all that stands between it and its subject.

    ``before`` and ``after`` are the words before and after the object; ``marked`` puts को on the object.
    """

    verb: Verb
    tense: str
    before: Words = ()
    object: Nominal | None = None
    marked: bool = False
    after: Words = ()

    @property
    def ergative(self) -> bool:
        return self.verb.ergative and ASPECT_OF[self.tense] == "perfective"

    def of(self, subject: Nominal | Personal) -> Clause:
        """The clause with this subject: it takes ने, and the verb agrees with a bare object, where ``ergative``."""
        postposition = ("को",) if self.marked else ()
        object_words = self.object.words(*postposition) if self.object else ()
        agreement = subject.features
        if self.ergative:
            agreement = self.object.features if self.object and not self.marked else DEFAULT
        start = (*subject.words(*(("ने",) if self.ergative else ())), *self.before, *object_words, *self.after)
        return Clause(start + verb_group(self.verb.lemma, self.tense, agreement), len(start))
