"""Noun phrases and pronouns in two languages: their shared features, and their form in each language.

English always says *the* or *a*: एक is *a*, and what has no एक, no यह and no possessor is *the* (or nothing, before a
mass noun or a plural). English *his* is अपना where the subject is a man, and उसका where it isn't; so for each pronoun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bilingual_grammar.dictionary import NUMERALS, PREPOSITIONS, adjective_english, noun_english
from bilingual_grammar.english_morphology import Agreement, article, plural
from vaak.text.grammar.lexicon import ONE, PRONOUNS, Adjective, Noun, Pronoun
from vaak.text.grammar.morphology import Features, Nominal, Personal, Words, adjective_form


@dataclass(frozen=True)
class Speaker:
    """A person meant by a pronoun, with its English subject, object and possessive."""

    pronoun: Pronoun
    gender: str
    subject: str
    object: str
    possessive: str
    agreement: Agreement

    @property
    def features(self) -> Features:
        return self.nominal().features

    def nominal(self, owner: str = "") -> Personal:
        """The Hindi pronoun; ``owner`` changes nothing, as a pronoun has no possessor."""
        return Personal(self.pronoun, self.gender)

    def hindi(self, *postposition: str, owner: str = "") -> Words:
        """मैं, मैंने, मुझे, मुझसे, मेरा, मेरे साथ."""
        if postposition == ("का",):
            return (self.pronoun.genitive,)
        if postposition[:1] == ("के",):
            return (adjective_form(self.pronoun.genitive, "m", oblique=True), *postposition[1:])
        if postposition == ("से",):
            return (_OBLIQUE[self.pronoun.direct] + "से",)
        return self.nominal().words(*postposition)

    def english(self) -> str:
        return self.object


_OBLIQUE = {"मैं": "मुझ", "हम": "हम", "आप": "आप", "वह": "उस", "वे": "उन"}
_BY_NAME = {pronoun.direct: pronoun for pronoun in PRONOUNS}
ME = Speaker(_BY_NAME["मैं"], "m", "I", "me", "my", "I")
WE = Speaker(_BY_NAME["हम"], "m", "we", "us", "our", "many")
YOU = Speaker(_BY_NAME["आप"], "m", "you", "you", "your", "many")
HE = Speaker(_BY_NAME["वह"], "m", "he", "him", "his", "one")
SHE = Speaker(_BY_NAME["वह"], "f", "she", "her", "her", "one")
THEY = Speaker(_BY_NAME["वे"], "m", "they", "them", "their", "many")
WHO = Speaker(Pronoun("कौन", "किसने", "किसे", "किसका", 3, "sg"), "m", "who", "whom", "his", "one")
SPEAKERS = (ME, WE, YOU, HE, SHE, THEY)

# With a singular, and with a plural.
_DETERMINERS = {"यह": ("this", "these"), "वह": ("that", "those"), "कोई": ("no", "")}
_DETERMINERS |= {hindi: ("", english) for hindi, english in NUMERALS.items()}


@dataclass(frozen=True)
class Phrase:
    """A noun with a possessor, a determiner (यह, वह, एक, दो …) and adjectives.

    ``definite``: English has *the* where nothing else stands there; of a singular that can be counted it always has.
    """

    noun: Noun
    number: str = "sg"
    determiner: str = ""
    possessor: Phrase | Speaker | None = None
    adjectives: tuple[Adjective, ...] = ()
    very: bool = False
    definite: bool = True

    @property
    def features(self) -> Features:
        return self.nominal().features

    @property
    def agreement(self) -> Agreement:
        return "many" if self.number == "pl" else "one"

    @property
    def possessive(self) -> str:
        """The English pronoun for what is his, hers, its or theirs."""
        if self.number == "pl":
            return "their"
        if not self.noun.classes & {"human", "name", "elder"}:
            return "its"
        return "her" if self.noun.gender == "f" else "his"

    @property
    def subject(self) -> str:
        return self.english()

    def nominal(self, owner: str = "") -> Nominal:
        """The Hindi phrase in a clause whose subject's possessive is ``owner``."""
        modifiers: list[Words] = []
        if isinstance(self.possessor, Speaker):
            modifiers.append(("अपना" if self.possessor.possessive == owner else self.possessor.pronoun.genitive,))
        elif self.possessor:
            modifiers.append(self.possessor.hindi("का"))
        if self.determiner:
            modifiers.append((self.determiner,))
        if self.adjectives:
            first, *others = self.adjectives
            modifiers.append(("बहुत", first.lemma) if self.very else (first.lemma,))
            modifiers += [("और", other.lemma) for other in others]
        return Nominal(self.noun, self.number, tuple(modifiers))

    def hindi(self, *postposition: str, owner: str = "") -> Words:
        return self.nominal(owner).words(*postposition)

    @property
    def english_words(self) -> str:
        """The noun with its adjectives: big and yellow books."""
        noun = noun_english(self.noun)
        adjectives = " and ".join(adjective_english(each, self.noun) for each in self.adjectives)
        words = ("very" if self.very else "", adjectives, plural(noun) if self.number == "pl" else noun)
        return " ".join(word for word in words if word)

    def english(self) -> str:
        """the boy's two big and yellow books."""
        if self.noun.classes & {"name", "elder"}:
            return noun_english(self.noun)
        return " ".join((*self._english_before(), self.english_words))

    def _english_before(self) -> tuple[str, ...]:
        if self.determiner == ONE:
            return (article(self.english_words),)
        found = (_DETERMINERS[self.determiner][self.number == "pl"],) if self.determiner else ()
        if isinstance(self.possessor, Speaker):
            return (self.possessor.possessive, *found)
        if self.possessor:
            owner = self.possessor.english()
            return (owner + ("'" if self.possessor.number == "pl" and owner.endswith("s") else "'s"), *found)
        if found:
            return found
        indefinite = not self.definite and (self.number == "pl" or self.noun.inflection == "mass")
        return () if indefinite else ("the",)


Participant = Phrase | Speaker


class Adjunct(NamedTuple):
    """A phrase with its postposition; ``preposition`` is what the verb wants in English, if not the usual one."""

    phrase: Participant
    postposition: Words
    preposition: str | None = None

    def hindi(self, owner: str = "") -> Words:
        """The Hindi phrase; the place one goes to (जाना) is only oblique: बाज़ार, मेले."""
        if self.postposition == ("",):
            return self.phrase.hindi("", owner=owner)[:-1]
        return self.phrase.hindi(*self.postposition, owner=owner)

    @property
    def english_preposition(self) -> str:
        return PREPOSITIONS.get(self.postposition, "") if self.preposition is None else self.preposition

    def english(self) -> str:
        return f"{self.english_preposition} {self.phrase.english()}".strip()
