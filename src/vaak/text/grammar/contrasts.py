"""For each phenomenon, two good sentences that share all but what the target word depends on.

The controller (what the target agrees with) is a held-out combination with the verb, or with the noun that stands
between, or with both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from vaak.text.grammar.composer import NOUNS_OF_PLACE, OWNED, Composer, NoChoiceError
from vaak.text.grammar.corpus import relative_sentence, setting
from vaak.text.grammar.lexicon import ONE, PRONOUNS, Noun, Verb
from vaak.text.grammar.morphology import (
    TENSES,
    Clause,
    Nominal,
    Personal,
    Predicate,
    Words,
    adjective_form,
    copula,
    imperative,
    noun_form,
)

# Tenses in which one word alone shows the subject's gender.
GENDERED = ("habitual_present", "future")
IMPERFECTIVE = ("habitual_present", "habitual_past", "progressive_present", "future")
KINDS_OF_PEOPLE = ("human", "name")


class Marked(NamedTuple):
    """A sentence and the place of the word that its pair is about."""

    words: Words
    at: int

    @property
    def target(self) -> str:
        return self.words[self.at]

    def with_target(self, word: str) -> Words:
        return (*self.words[: self.at], word, *self.words[self.at + 1 :])


Twins = tuple[Marked, Marked]


def gender(composer: Composer) -> Twins:
    """लड़की मेज़ पर सोती है; लड़का मेज़ पर सोता है."""
    verb = _distractible(composer, ("intransitive", "transitive"))
    # With ने, a perfective verb agrees with the object, so it wouldn't show the subject's gender.
    tense = composer.one(GENDERED if verb.ergative else (*GENDERED, "perfective"))
    return _genders_differ(composer, verb, tense, 0)


def progressive(composer: Composer) -> Twins:
    """लड़की मेज़ पर सो रही है; लड़का मेज़ पर सो रहा है."""
    verb = _distractible(composer, ("intransitive", "transitive"))
    return _genders_differ(composer, verb, "progressive_present", 1)


def number(composer: Composer) -> Twins:
    """लड़की मेज़ पर सोती है; लड़कियाँ मेज़ पर सोती हैं."""
    verb = _distractible(composer, ("intransitive", "transitive"))
    sex = composer.one("mf")
    tense, offset = composer.one(_number_tenses(sex, verb))
    predicate, distractor = _distracted(composer, verb, tense)
    noun = _overt(composer, verb, sex, (verb.lemma, distractor.lemma))
    modifiers = composer.modifiers(noun, 0.35)
    one, many = (_mark(predicate.of(Nominal(noun, each, modifiers)), offset) for each in ("sg", "pl"))
    return one, many


def _number_tenses(sex: str, verb: Verb) -> list[tuple[str, int]]:
    """Tenses in which one word alone shows the subject's number, with its place in the verb group."""
    tenses = [("future", 0)] if verb.ergative else [("future", 0), ("perfective", 0)]
    return [*tenses, ("habitual_present", 1), ("progressive_present", 2)] if sex == "f" else tenses


def person(composer: Composer) -> Twins:
    """मैं मेज़ पर सोता हूँ; वह मेज़ पर सोता है; तुम सोते हो; वे सोते हैं."""
    verb = _distractible(composer, ("intransitive", "transitive"))
    tense, offset = composer.one((("habitual_present", 1), ("progressive_present", 2), ("future", 0)))
    sex, distractor = composer.one("mf"), composer.noun((*NOUNS_OF_PLACE, *KINDS_OF_PEOPLE), new_to=(verb.lemma,))
    predicate, _ = _distracted(composer, verb, tense, distractor)
    speakers = composer.one(((0, 4), (2, 5)))
    first, second = (_mark(predicate.of(Personal(PRONOUNS[each], sex)), offset) for each in speakers)
    return first, second


def honorific(composer: Composer) -> Twins:
    """दादा जी मेज़ पर सोएँगे; लड़का मेज़ पर सोएगा."""
    verb = _distractible(composer, ("intransitive", "transitive"))
    sex = composer.one("mf")
    tense, offset = composer.one(_number_tenses(sex, verb))
    predicate, distractor = _distracted(composer, verb, tense)
    elder = composer.noun(("elder",), sex, (verb.lemma, distractor.lemma))
    noun = _overt(composer, verb, sex, (verb.lemma, distractor.lemma))
    return _mark(predicate.of(Nominal(elder)), offset), _mark(predicate.of(Nominal(noun)), offset)


def predicate_adjective(composer: Composer) -> Twins:
    """घड़ी कुर्ते से महँगी है; पंखा कुर्ते से महँगा है."""
    kind = composer.one(("human", "animal", "thing", "clothes", "reading", "food", "vehicle", "vessel"))
    # Only drawn to find an adjective that suits its class; the twins' nouns are drawn below.
    model = composer.noun((kind,))
    adjective = composer.adjective(model, ("quality", "state", "posture"), inflecting=True)
    if kind not in adjective.classes:
        raise NoChoiceError
    middle, distractor = setting(composer, model, adjective)
    nouns = [_certain(composer, (kind,), sex, (distractor.lemma,)) for sex in "mf"]
    countable = all(noun.inflection != "mass" for noun in nouns)
    many = composer.one(("sg", "pl")) if countable else "sg"
    found = []
    for noun in nouns:
        subject = Nominal(noun, many, composer.modifiers(noun, 0.35))
        state = adjective_form(adjective.lemma, *subject.features[:2])
        words = (*subject.words(), *middle)
        found.append(Marked((*words, state, copula(subject.features), "।"), len(words)))
    return found[0], found[1]


def ergative_object(composer: Composer) -> Twins:
    """राम ने किताब मेज़ पर रखी; राम ने पत्र मेज़ पर रखा."""
    verb = _distractible(composer, ("transitive",), lambda verb: verb.ergative and bool(verb.objects))
    tense = composer.one(("perfective", "perfective_present"))
    after, distractor = composer.adjunct(verb)
    subject, before = _subject(composer), _adverb(composer, tense)
    first, second = (_certain(composer, sorted(verb.objects), sex, (verb.lemma, distractor.lemma)) for sex in "mf")
    # Both twins in the same number, so that only gender differs; mass nouns have no plural.
    fixed = "mass" in (first.inflection, second.inflection)
    many = "pl" if not fixed and composer.chance(0.3) else "sg"
    one, two = (
        _mark(Predicate(verb, tense, before, Nominal(noun, many), after=after).of(subject)) for noun in (first, second)
    )
    return one, two


def blocked(composer: Composer) -> Twins:
    """राम ने सीता को मेले में देखा; राम ने घड़ी मेले में देखी."""
    verb = _distractible(
        composer, ("transitive",), lambda verb: verb.ergative and bool(verb.objects and verb.marked_objects)
    )
    tense = composer.one(("perfective", "perfective_present"))
    after, distractor = composer.adjunct(verb)
    subject, before = _subject(composer), _adverb(composer, tense)
    new_to = (verb.lemma, distractor.lemma)
    # Both objects are feminine, so that the masculine verb after को can only come from the block.
    animate = Nominal(_certain(composer, (*sorted(verb.marked_objects), "name"), "f", new_to))
    bare = Nominal(_certain(composer, sorted(verb.objects), "f", new_to))
    return (
        _mark(Predicate(verb, tense, before, animate, True, after).of(subject)),
        _mark(Predicate(verb, tense, before, bare, False, after).of(subject)),
    )


def split_ergativity(composer: Composer) -> Twins:
    """मैंने आज मेले में आम ख़रीदा; मैं आज मेले में आम ख़रीदूँगा."""
    verb = _distractible(composer, ("transitive",), lambda verb: verb.ergative and bool(verb.objects))
    before, distractor = composer.adjunct(verb)
    noun = composer.noun(sorted(verb.objects), new_to=(verb.lemma, distractor.lemma))
    adverb = composer.one((("आज",), ("सुबह",), ("शाम", "को"), ()))
    predicate = Predicate(verb, "perfective", adverb + before, Nominal(noun, composer.number(noun)))
    subject = composer.pronoun()
    other = replace(predicate, tense=composer.one(("future", "habitual_present", "progressive_present")))
    first, second = (Marked(each.of(subject).then("।").words, 0) for each in (predicate, other))
    return first, second


def relative(composer: Composer) -> Twins:
    """जिस लड़के ने मेले में आम ख़रीदा उसने दूध पिया; जिन लड़कों ने मेले में आम ख़रीदा उन्होंने दूध पिया."""
    verb = _distractible(composer, ("transitive",), lambda verb: verb.ergative and bool(verb.objects))
    before, distractor = composer.adjunct(verb)
    then = composer.verb(("transitive",))
    if not then.ergative or not then.objects:
        raise NoChoiceError
    tense = composer.one(TENSES["perfective"])
    told = Predicate(verb, tense, before, composer.object(verb, own=False))
    main = Predicate(then, tense, object=composer.object(then, own=False))
    noun = _certain(composer, ("junior",), None, (distractor.lemma, then.lemma))
    found = []
    for each in ("sg", "pl"):
        subject = Nominal(noun, each, (("जो",),))
        found.append(Marked(relative_sentence(subject, told, main), len(told.of(subject).words)))
    return found[0], found[1]


def imperatives(composer: Composer) -> Twins:
    """तुम किताब मेज़ पर रखो; आप किताब मेज़ पर रखिए."""
    verb = _distractible(composer, ("transitive",), lambda verb: bool(verb.objects))
    after, distractor = composer.adjunct(verb)
    thing = Nominal(composer.noun(sorted(verb.objects), new_to=(verb.lemma, distractor.lemma)))
    predicate = Predicate(verb, "future", _adverb(composer, "future"), thing, after=after)
    found = []
    for polite in (False, True):
        words, at = predicate.of(Personal(PRONOUNS[2 + polite], "m"))
        found.append(Marked((*words[:at], imperative(verb.lemma, polite), "।"), at))
    return found[0], found[1]


def genitive_distance(composer: Composer) -> Twins:
    """मोहन राम का सुंदर और भारी घड़ा देखता है; मोहन राम की सुंदर और भारी घड़ी देखता है."""

    def describe(kind: str) -> Words:
        model = composer.noun((kind,))
        pair = [composer.adjective(model, inflecting=False) for _ in range(2)]
        if pair[0] == pair[1] or not all(kind in adjective.classes for adjective in pair):
            raise NoChoiceError
        return pair[0].lemma, "और", pair[1].lemma

    return _possessed(composer, describe)


def genitive(composer: Composer) -> Twins:
    """मोहन राम का घड़ा देखता है; मोहन राम की घड़ी देखता है."""
    return _possessed(composer, lambda kind: ())


def attributive(composer: Composer) -> Twins:
    """मोहन नया घड़ा देखता है; मोहन नई घड़ी देखता है."""
    verb, kind, subject = _frame(composer, lambda kind: True)
    adjective = composer.adjective(composer.noun((kind,)), inflecting=True)
    if kind not in adjective.classes:
        raise NoChoiceError
    return _twin_objects(composer, verb, kind, subject, (adjective.lemma,), ())


def oblique(composer: Composer) -> Twins:
    """मोहन लड़के को बुलाता है; दुकान में लड़का है."""
    verb = composer.one([verb for verb in composer.lexicon.verbs if verb.marked_objects])
    noun = composer.noun(sorted(verb.marked_objects), "m", (verb.lemma,))
    place = composer.noun(NOUNS_OF_PLACE, new_to=(noun.lemma,))
    # The oblique must differ from the direct form, or the pair would show nothing.
    if noun_form(noun, "sg", True) == noun.lemma:
        raise NoChoiceError
    clause = Predicate(verb, composer.one(IMPERFECTIVE), object=Nominal(noun), marked=True).of(_subject(composer))
    # The noun is before को, which is before the verb.
    at = clause.verb_at - 2
    there = composer.place(place)
    return Marked(clause.then("।").words, at), Marked((*there, noun.lemma, "है", "।"), len(there))


def numeral(composer: Composer) -> Twins:
    """मोहन एक किताब पढ़ता है; मोहन दो किताबें पढ़ता है."""
    verb, kind, subject = _frame(composer, lambda kind: True)
    noun = composer.noun((kind,), new_to=(verb.lemma,))
    if noun.inflection == "mass" or noun_form(noun, "pl") == noun.lemma:
        raise NoChoiceError
    predicate = Predicate(verb, composer.one(IMPERFECTIVE), _adverb(composer, "future"))
    found = []
    for each, count in (("sg", ONE), ("pl", composer.numeral())):
        clause = replace(predicate, object=Nominal(noun, each, ((count,),))).of(subject)
        found.append(Marked(clause.then("।").words, clause.verb_at - 1))
    return found[0], found[1]


# What the contrasts share


def _mark(clause: Clause, offset: int = 0) -> Marked:
    """The clause as a sentence; its target is the verb's word number ``offset``."""
    return Marked(clause.then("।").words, clause.verb_at + offset)


def _distractible(
    composer: Composer, valencies: Collection[str], fitting: Callable[[Verb], bool] = lambda verb: True
) -> Verb:
    """A verb that takes a postpositional phrase, which will stand between controller and target."""
    verbs = [verb for verb in composer.lexicon.verbs if verb.valency in valencies and "human" in verb.subjects]
    return composer.one([verb for verb in verbs if verb.adjuncts and fitting(verb)])


def _distracted(composer: Composer, verb: Verb, tense: str, distractor: Noun | None = None) -> tuple[Predicate, Noun]:
    """A predicate with a postpositional phrase before the verb or its object, and the noun in that phrase."""
    if distractor is None:
        adjunct, distractor = composer.adjunct(verb)
    elif "with" in verb.adjuncts and distractor.classes & set(KINDS_OF_PEOPLE):
        adjunct = Nominal(distractor).words("के", "साथ")
    elif "place" in verb.adjuncts and distractor.classes & set(NOUNS_OF_PLACE):
        adjunct = composer.place(distractor)
    else:
        raise NoChoiceError
    before = _adverb(composer, tense) + adjunct
    if verb.valency == "intransitive":
        return Predicate(verb, tense, before), distractor
    if verb.objects and composer.chance(0.7):
        return Predicate(verb, tense, before, composer.object(verb)), distractor
    if not verb.marked_objects:
        raise NoChoiceError
    return Predicate(verb, tense, before, Nominal(composer.noun(sorted(verb.marked_objects))), True), distractor


def _genders_differ(composer: Composer, verb: Verb, tense: str, offset: int) -> Twins:
    predicate, distractor = _distracted(composer, verb, tense)
    many = composer.one(("sg", "sg", "pl"))
    found = []
    for sex in "mf":
        noun = _certain(composer, KINDS_OF_PEOPLE if many == "sg" else ("human",), sex, (verb.lemma, distractor.lemma))
        found.append(_mark(predicate.of(Nominal(noun, many, composer.modifiers(noun, 0.35))), offset))
    return found[0], found[1]


def _certain(
    composer: Composer, classes: Collection[str], sex: str | None = None, new_to: Collection[str] = ()
) -> Noun:
    """A noun whose gender nobody doubts (डॉक्टर may be a woman)."""
    noun = composer.noun(classes, sex, new_to)
    if "epicene" in noun.classes:
        raise NoChoiceError
    return noun


def _overt(composer: Composer, verb: Verb, sex: str, new_to: Collection[str]) -> Noun:
    """A subject whose plural has a distinct form (लड़का, लड़के, but not आदमी), and of whom a plural verb isn't polite:
    अध्यापिका सोती हैं is respectful, बकरी सोती हैं is wrong."""
    noun = _certain(composer, ("junior", "animal") if "animal" in verb.subjects else ("junior",), sex, new_to)
    if noun_form(noun, "pl") == noun.lemma:
        raise NoChoiceError
    return noun


def _subject(composer: Composer) -> Nominal:
    noun = composer.person()
    return Nominal(noun, "sg", composer.modifiers(noun, 0.25))


def _adverb(composer: Composer, tense: str) -> Words:
    return composer.adverb(tense) if composer.chance(0.4) else ()


def _frame(composer: Composer, fitting: Callable[[str], bool]) -> tuple[Verb, str, Nominal]:
    """A transitive verb, a class of its objects, and a subject."""
    verb = composer.verb(("transitive",))
    kind = composer.one(sorted(verb.objects))
    if not fitting(kind):
        raise NoChoiceError
    return verb, kind, _subject(composer)


def _possessed(composer: Composer, describe: Callable[[str], Words]) -> Twins:
    verb, kind, subject = _frame(composer, lambda kind: kind in OWNED)
    owner = ("अपना",) if composer.chance(0.2) else composer.possessor()
    return _twin_objects(composer, verb, kind, subject, owner, describe(kind))


def _twin_objects(
    composer: Composer, verb: Verb, kind: str, subject: Nominal, agreeing: Words, description: Words
) -> Twins:
    """Twins with objects of two genders; the target is the last word of ``agreeing``, and the verb shows no gender of
    theirs, for its tense is imperfective.

    The ``composer`` draws the rest: objects of this ``kind``, which ``agreeing`` and then ``description`` modify, of a
    ``verb`` with this ``subject``.
    """
    tense = composer.one(IMPERFECTIVE)
    found = []
    for sex in "mf":
        noun = _certain(composer, (kind,), sex, (verb.lemma,))
        modifiers = (agreeing, *((word,) for word in description))
        clause = Predicate(verb, tense, object=Nominal(noun, "sg", modifiers)).of(subject)
        found.append(Marked(clause.then("।").words, clause.verb_at - 2 - len(description)))
    return found[0], found[1]
