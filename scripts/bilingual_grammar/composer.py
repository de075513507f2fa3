"""Choosing words that go together in both languages; every draw comes from one generator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from bilingual_grammar.clauses import Event
from bilingual_grammar.dictionary import bilingual_adverbs, bilingual_lexicon, noun_english, verb_english
from bilingual_grammar.english_morphology import plural
from bilingual_grammar.phrases import SPEAKERS, Adjunct, Participant, Phrase, Speaker
from vaak.text.grammar.composer import NOUNS_OF_PLACE, OWNED, Composer
from vaak.text.grammar.lexicon import ONE, Adjective, Noun, Verb
from vaak.text.grammar.morphology import ASPECT_OF

TENSES = tuple(ASPECT_OF)
FRONT_RATE = 0.3
# Without it the English verb isn't a sentence: one places a book somewhere, and meets someone.
NEEDS_ADJUNCT = frozenset({"रखना", "मिलना"})


@cache
def _verbs(valency: str, subject: str) -> tuple[Verb, ...]:
    return tuple(verb for verb in bilingual_lexicon().verbs if verb.valency == valency and subject in verb.subjects)


@cache
def _adjectives(classes: frozenset[str], kinds: tuple[str, ...]) -> tuple[Adjective, ...]:
    return tuple(each for each in bilingual_lexicon().adjectives if each.classes & classes and each.kind in kinds)


class BilingualComposer(Composer):
    """Draws phrases and events from the part of the lexicon that has English words."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lexicon = bilingual_lexicon()

    # Noun phrases

    def plural_or_not(self, noun: Noun, rate: float = 0.3) -> str:
        """sg or pl; always sg where English doesn't tell them apart (fish)."""
        english = noun_english(noun)
        return "sg" if plural(english) == english else self.number(noun, rate)

    def quality(self, noun: Noun, kinds: tuple[str, ...] = ("quality", "state")) -> Adjective:
        return self.one(_adjectives(noun.classes, kinds))

    def phrase(self, classes: Collection[str], rate: float = 0.45, definite: bool = True) -> Phrase:
        """A noun of the classes, with modifiers at this rate."""
        noun = self.noun(classes)
        bare = Phrase(noun, self.plural_or_not(noun), definite=definite)
        return self.modified(bare) if self.chance(rate) else bare

    def modified(self, phrase: Phrase) -> Phrase:
        """The phrase with a possessor, a determiner or adjectives; names have none."""
        noun = phrase.noun
        if noun.classes & {"name", "elder"}:
            return phrase
        if noun.classes & OWNED and self.chance(0.5):
            owned = replace(phrase, possessor=self.whose())
            return self.adorned(owned) if self.chance(0.3) else owned
        if self.chance(0.3):
            return replace(phrase, determiner=self.one(("यह", "वह")))
        return self.adorned(phrase)

    def adorned(self, phrase: Phrase) -> Phrase:
        """Add one adjective or two to the phrase; none where none goes with the noun."""
        if not _adjectives(phrase.noun.classes, ("quality", "state")):
            return phrase
        first, second = self.quality(phrase.noun), self.quality(phrase.noun)
        if first is not second and self.chance(0.15):
            return replace(phrase, adjectives=(first, second))
        return replace(phrase, adjectives=(first,), very=self.chance(0.1))

    def whose(self) -> Participant:
        """Whose it is: mine, Ram's, the boy's, the boys'."""
        if self.chance(0.5):
            return self.speaker()
        noun = self.person()
        return Phrase(noun, self.plural_or_not(noun, 0.2))

    def speaker(self) -> Speaker:
        return self.one(SPEAKERS)

    def number_of(self, phrase: Phrase) -> Phrase:
        """The phrase with एक or a numeral, and sometimes an adjective; mass nouns aren't counted."""
        if phrase.noun.inflection == "mass":
            return phrase
        numeral = ONE if phrase.number == "sg" else self.numeral()
        counted = Phrase(phrase.noun, phrase.number, numeral)
        return self.adorned(counted) if self.chance(0.4) else counted

    # Clauses

    def event(self, valency: str, tense: str, *, subject: Participant | None = None, negative: bool = False) -> Event:
        """An event in this tense; the subject is drawn, or, where given, a human being."""
        kind = self.one(("thing", "clothes", "lamp", "instrument", "bird", "animal"))
        if subject or valency != "intransitive" or not self.chance(0.2):
            kind = "human"
        verb = self.one(_verbs(valency, kind))
        actor = subject or self.actor(kind)
        adjunct = None
        if verb.adjuncts and (verb.lemma in NEEDS_ADJUNCT or self.chance(0.55)):
            adjunct = self.adjunct_of(verb, actor)
        places = ("free", "end") if negative else ("free", "end", "mid")
        times = bilingual_adverbs("time", tense, places)
        time = self.one(times) if times and self.chance(0.4) else None
        manners = bilingual_adverbs("manner", tense, ("end",) if negative else places)
        manner = self.one(manners) if kind == "human" and not time and self.chance(0.2) else None
        first = time is not None and time.place == "free" and self.chance(FRONT_RATE)
        event = Event(
            verb, tense, actor, adjunct=adjunct, time=time, manner=manner, negative=negative, time_first=first
        )
        return self.with_objects(event)

    def actor(self, kind: str) -> Participant:
        if kind != "human":
            return self.phrase((kind,), 0.25)
        if self.chance(0.35):
            return self.speaker()
        if self.chance(0.12):
            return Phrase(self.noun(("elder",)))
        return self.phrase(("human", "name"), 0.3)

    def with_objects(self, event: Event) -> Event:
        """The event with what its verb needs: a receiver, an object."""
        verb = event.verb
        if verb.valency == "intransitive":
            return event
        if verb.valency == "ditransitive":
            return replace(event, receiver=self.other(event.subject), object=self.thing(verb))
        if verb.marked_objects and (not verb.objects or self.chance(0.5)):
            if "human" in verb.marked_objects and self.chance(0.6):
                return replace(event, object=self.other(event.subject))
            return replace(event, object=self.phrase(sorted(verb.marked_objects), 0.2))
        return replace(event, object=self.thing(verb))

    def other(self, subject: Participant) -> Participant:
        """Someone who isn't the subject: neither I and me nor I and us."""
        if self.chance(0.35):
            speaker = self.speaker()
            if not isinstance(subject, Speaker) or speaker.pronoun.person == 3 != subject.pronoun.person:
                return speaker
        return self.phrase(("human", "name"), 0.2)

    def thing(self, verb: Verb) -> Phrase:
        """A bare object: a book, two books, his books, the red book."""
        classes = sorted(verb.objects)
        definite = "work" in verb.objects or self.chance(0.5)
        phrase = self.phrase(classes, 0.45, definite)
        plain = not phrase.possessor and not phrase.determiner and not phrase.adjectives
        return self.number_of(phrase) if plain and self.chance(0.4) else phrase

    def adjunct_of(self, verb: Verb, subject: Participant) -> Adjunct:
        """Where, with whom, from or to what."""
        kind = self.one(sorted(verb.adjuncts))
        preposition = verb_english(verb).prepositions.get(kind)
        if kind in ("with", "against"):
            return Adjunct(self.other(subject), ("के", "साथ") if kind == "with" else ("से",), preposition)
        if kind == "place":
            return self.find_split(self.location(NOUNS_OF_PLACE))
        location = self.location(("water",) if kind == "water" else ("inside",))
        relations = {"water": ("में",), "from": ("से",), "to": ("तक",), "above": ("के", "ऊपर")}
        return Adjunct(location, ("",) if verb.lemma == "जाना" else relations[kind], preposition)

    def location(self, classes: Collection[str]) -> Phrase:
        phrase = Phrase(self.noun(classes))
        return self.modified(phrase) if self.chance(0.25) else phrase

    def find_split(self, location: Phrase) -> Adjunct:
        """On the table, in the house, in front of the shop."""
        if self.chance(0.25):
            return Adjunct(location, ("के", self.one(("पास", "सामने", "पीछे"))))
        return Adjunct(location, ("पर",) if "surface" in location.noun.classes else ("में",))
