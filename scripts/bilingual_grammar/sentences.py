"""Sentences in two languages: a structure is drawn and expressed in both; neither is translated from the other.

The English has its mark after the last word as usual; the Hindi is as in ``vaak.text.grammar.corpus``: its mark stands
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

from bilingual_grammar.clauses import (
    Event,
    State,
    Time,
    existence,
    identity,
    possession,
    quality,
    relative,
    whose,
)
from bilingual_grammar.composer import TENSES, BilingualComposer
from bilingual_grammar.phrases import WHO, YOU, Phrase, Speaker
from vaak.core.random_keys import Purpose, draw_key
from vaak.text.grammar.composer import NOUNS_OF_PLACE, OWNED, NoChoiceError, choose_split, meets_held_out
from vaak.text.grammar.corpus import is_sound
from vaak.text.grammar.lexicon import ONE
from vaak.text.grammar.morphology import Words

Pair = tuple[str, Words]
VALENCIES = ("intransitive", "transitive", "transitive", "ditransitive")
THINGS = ("thing", "clothes", "reading", "vehicle", "vessel")
_TIMES: tuple[Time, ...] = ("present", "present", "past", "future")
PEOPLE = {"human", "name"}
CONJUNCTIONS = {"और": "and", "लेकिन": "but", "क्योंकि": "because"}


def pairs(split: str, num_pairs: int, seed: int) -> Iterator[tuple[str, str]]:
    """``num_pairs`` pairs (English, Hindi) of "train", "valid" or "test", no Hindi sentence twice.

    A pure function of its arguments; a smaller number gives the beginning of a larger one. The splits are those of
    ``vaak.text.grammar.sentences``: the set of a sentence's nouns, verbs and adjectives decides, and what is held out
    for the minimal pairs is in none.
    """
    composer = BilingualComposer(draw_key(Purpose.GRAMMAR_PAIRS, split, seed))
    seen: set[Words] = set()
    while len(seen) < num_pairs:
        english, hindi = draw_pair(composer)
        if hindi in seen or not is_sound(hindi) or meets_held_out(hindi) or choose_split(hindi) != split:
            continue
        seen.add(hindi)
        yield english, " ".join(hindi)


def draw_pair(composer: BilingualComposer) -> Pair:
    """One sentence of any kind in both languages."""
    place = int(composer.random.random() * _CUMULATIVE[-1])
    kind = next(index for index, weight in enumerate(_CUMULATIVE) if place < weight)
    while True:
        try:
            return _KINDS[kind][0](composer)
        except NoChoiceError:
            continue


def _sentence(english: str, hindi: Words, question: bool = False) -> Pair:
    """The two sentences with a capital and their marks."""
    return english[0].upper() + english[1:] + ("?" if question else "."), (*hindi, "?" if question else "।")


def _event(composer: BilingualComposer, negative: bool = False) -> Event:
    return composer.event(composer.one(VALENCIES), composer.one(TENSES), negative=negative)


def _statement(composer: BilingualComposer) -> Pair:
    event = _event(composer)
    return _sentence(event.english(), event.hindi())


def _negative(composer: BilingualComposer) -> Pair:
    event = _event(composer, negative=True)
    return _sentence(event.english(), event.hindi())


def _polar_question(composer: BilingualComposer) -> Pair:
    event = replace(_event(composer, negative=composer.chance(0.2)), time_first=False)
    return _sentence(event.english_question(), ("क्या", *event.hindi()), question=True)


def _question(composer: BilingualComposer) -> Pair:
    """Who, where, when, why, how, what or whom."""
    asked = composer.one(("कौन", "कहाँ", "कब", "क्यों", "कैसे", "object"))
    valency = "transitive" if asked == "object" else composer.one(("intransitive", "transitive"))
    event = composer.event(valency, composer.one(TENSES), subject=WHO if asked == "कौन" else composer.actor("human"))
    event = replace(event, time_first=False, manner=None)
    if asked == "object":
        marked = isinstance(event.object, Speaker) or bool(event.object and event.object.noun.classes & PEOPLE)
        event = replace(event, object=None, asked="किसे" if marked else "क्या")
    elif asked != "कौन":
        adjunct = None if asked == "कहाँ" else event.adjunct
        event = replace(event, asked=asked, adjunct=adjunct, time=None if asked == "कब" else event.time)
    return _sentence(event.english_question(), event.hindi(), question=True)


def _order(composer: BilingualComposer) -> Pair:
    """Read the book (पढ़ो); please read the book (पढ़िए)."""
    valency, polite = composer.one(VALENCIES), composer.chance(0.5)
    event = replace(composer.event(valency, "future", subject=YOU, negative=composer.chance(0.2)), time_first=False)
    if event.time and event.time.place == "mid":
        event = replace(event, time=None)
    return _sentence(event.english_order(polite), event.hindi_order(polite))


def _time(composer: BilingualComposer) -> Time:
    return composer.one(_TIMES)


def _state(composer: BilingualComposer, state: State) -> Pair:
    """The state told, denied or asked."""
    if composer.chance(0.15):
        return _sentence(state.english_question(), ("क्या", *state.hindi()), question=True)
    told = replace(state, negative=composer.chance(0.15))
    return _sentence(told.english(), told.hindi())


def _described(composer: BilingualComposer) -> Pair:
    """The watch is old; the watch is older than the sari; the boy is sitting in the house."""
    subject = composer.phrase(("human", "name", "animal", "inside", "food", *THINGS), 0.35)
    adjective = composer.quality(subject.noun, ("quality", "state", "posture"))
    if adjective.kind == "posture":
        hindi, english = quality(adjective, subject)
        place = composer.find_split(composer.location(NOUNS_OF_PLACE))
        hindi, english = (*place.hindi(), *hindi), f"{english} {place.english()}"
    elif adjective.kind == "quality" and composer.chance(0.4):
        other = Phrase(composer.noun(sorted(subject.noun.classes - {"epicene"})))
        hindi, english = quality(adjective, subject, than=other)
    else:
        hindi, english = quality(adjective, subject, composer.one(("", "", "", "very")))
    return _state(composer, State(subject, _time(composer), hindi, english))


def _person_described(composer: BilingualComposer) -> Pair:
    """She is honest."""
    subject = composer.speaker()
    hindi, english = quality(composer.quality(composer.noun(("human",))), subject)
    return _state(composer, State(subject, _time(composer), hindi, english))


def _named(composer: BilingualComposer) -> Pair:
    """Ram is a farmer; they are farmers."""
    subject = composer.actor("human")
    noun = composer.noun(("human",), subject.features.gender)
    many = subject.agreement == "many" and subject is not YOU
    what = Phrase(noun, "pl", definite=False) if many else Phrase(noun, determiner=ONE)
    hindi = replace(what, determiner="").hindi()
    return _state(composer, State(subject, _time(composer), hindi, what.english()))


def _located(composer: BilingualComposer) -> Pair:
    """The watch is on the table."""
    subject = composer.actor("human") if composer.chance(0.4) else composer.phrase(("animal", "food", *THINGS), 0.4)
    place = composer.find_split(composer.location(NOUNS_OF_PLACE))
    return _state(composer, State(subject, _time(composer), place.hindi(), place.english()))


def _existence(composer: BilingualComposer) -> Pair:
    what = _something(composer, ("human", "animal", "food", *THINGS))
    place = composer.find_split(composer.location(NOUNS_OF_PLACE))
    return _sentence(*existence(what, place, _time(composer)))


def _possession(composer: BilingualComposer) -> Pair:
    owner = composer.actor("human")
    what = _something(composer, ("kin",) if composer.chance(0.3) else ("animal", "food", *THINGS))
    return _sentence(*possession(owner, what, _time(composer)))


def _something(composer: BilingualComposer, classes: tuple[str, ...]) -> Phrase:
    """a watch, no watch, two old watches, watches."""
    noun = composer.noun(classes)
    phrase = Phrase(noun, composer.plural_or_not(noun, 0.4), definite=False)
    if phrase.number == "sg" and noun.inflection != "mass" and composer.chance(0.15):
        return replace(phrase, determiner="कोई")
    if phrase.number == "pl" and composer.chance(0.4):
        return composer.adorned(phrase)
    return composer.number_of(phrase)


def _identity(composer: BilingualComposer) -> Pair:
    """This is my book; whose books are those?"""
    noun, near = composer.noun(sorted(OWNED)), composer.chance(0.5)
    phrase = Phrase(noun, composer.plural_or_not(noun))
    if composer.chance(0.25):
        return _sentence(*whose(near, phrase), question=True)
    phrase = replace(phrase, possessor=composer.whose())
    return _sentence(*identity(near, composer.adorned(phrase) if composer.chance(0.3) else phrase))


def _coordinate(composer: BilingualComposer) -> Pair:
    first, second = _event(composer), _event(composer)
    conjunction = composer.one(tuple(CONJUNCTIONS))
    english = f"{first.english()} {CONJUNCTIONS[conjunction]} {second.english()}"
    return _sentence(english, (*first.hindi(), conjunction, *second.hindi()))


def _relative(composer: BilingualComposer) -> Pair:
    noun = composer.noun(("human",))
    head = Phrase(noun, composer.plural_or_not(noun, 0.4))
    told, main = (
        replace(composer.event(composer.one(VALENCIES), composer.one(TENSES), subject=head), time_first=False)
        for _ in range(2)
    )
    return _sentence(*relative(head, told, main))


_KINDS: tuple[tuple[Callable[[BilingualComposer], Pair], int], ...] = (
    (_statement, 44),
    (_negative, 7),
    (_polar_question, 6),
    (_question, 7),
    (_order, 6),
    (_described, 8),
    (_person_described, 2),
    (_named, 3),
    (_located, 3),
    (_existence, 3),
    (_possession, 4),
    (_identity, 3),
    (_coordinate, 4),
    (_relative, 8),
)
_CUMULATIVE = tuple(accumulate(weight for _, weight in _KINDS))
