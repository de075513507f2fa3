"""Sentences of the built-in grammar, in three splits that share no sentence and no set of lexemes.

A sentence is its words joined by single spaces, and its last word is the mark "।" or "?": the danda stands apart from
the word before it, as in much printed Hindi, so that every sign between two spaces is one word. Commas aren't used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

from vaak.core.random_keys import Purpose, draw_key
from vaak.core.splits import SPLITS
from vaak.text.grammar.composer import NOUNS_OF_PLACE, Composer, NoChoiceError, choose_split, meets_held_out, readings
from vaak.text.grammar.lexicon import PRONOUNS, Adjective, Noun, Pronoun
from vaak.text.grammar.morphology import (
    Clause,
    Nominal,
    Personal,
    Predicate,
    Words,
    adjective_form,
    copula,
    future,
    imperative,
    past_copula,
)

VALENCIES = ("intransitive", "transitive", "transitive", "ditransitive")
CORRELATIVES = {pronoun.number: pronoun for pronoun in PRONOUNS if pronoun.direct in ("वह", "वे")}
QUESTION = Pronoun("कौन", "किसने", "किसे", "किसका", 3, "sg")


def sentences(split: str, count: int, seed: int) -> Iterator[str]:
    """``count`` different sentences of "train", "valid" or "test".

    A pure function of its arguments; a smaller count gives the beginning of a larger one.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    composer = Composer(draw_key(Purpose.GRAMMAR_SENTENCES, split, seed))
    seen: set[Words] = set()
    while len(seen) < count:
        words = draw_sentence(composer)
        # Rejection sampling: draw from the whole grammar and keep what belongs to this split.
        if words in seen or not is_sound(words) or meets_held_out(words) or choose_split(words) != split:
            continue
        seen.add(words)
        yield " ".join(words)


def draw_sentence(composer: Composer) -> Words:
    """The words of one sentence of any kind, whatever its split."""
    place = int(composer.random.random() * _CUMULATIVE[-1])
    kind = next(index for index, weight in enumerate(_CUMULATIVE) if place < weight)
    while True:
        try:
            return _KINDS[kind][0](composer)
        except NoChoiceError:
            continue


def is_sound(words: Words) -> bool:
    """Return whether no noun or adjective comes twice (राम राम के साथ …) and no मेरा stands where अपना belongs."""
    table = readings()
    known = [table[word] for word in words if word in table]
    counts = Counter(lemma for reading in known for part in (reading.nouns, reading.others) for lemma in part)
    spoken = set(words)
    return all(count == 1 for count in counts.values()) and not any(
        spoken & subject and spoken & own for subject, own in _OWNERS
    )


def _owners(*pronouns: Pronoun) -> tuple[set[str], set[str]]:
    """The forms of pronouns as subjects, and those of what is theirs."""
    subjects = {form for pronoun in pronouns for form in (pronoun.direct, pronoun.ergative)}
    return subjects, {adjective_form(p.genitive, gender, number) for p in pronouns for gender, number in _CELLS}


_CELLS = (("m", "sg"), ("m", "pl"), ("f", "sg"))
# मैं, हम, and the person spoken to, who is तुम or आप all through a sentence.
_OWNERS = (_owners(PRONOUNS[0]), _owners(PRONOUNS[1]), _owners(*PRONOUNS[2:4]))


def simple_clause(composer: Composer) -> Clause:
    """A subject, a verb in some tense, and what goes with them."""
    valency = composer.one(VALENCIES)
    subjects = "thing" if valency == "intransitive" and composer.chance(0.12) else "human"
    verb = composer.verb(
        (valency,), composer.one(("thing", "clothes", "food", "lamp")) if subjects != "human" else "human"
    )
    subject = composer.subject(verb)
    return composer.predicate(verb, composer.tense(), not isinstance(subject, Personal) or composer.chance(0.5)).of(
        subject
    )


def _statement(composer: Composer) -> Words:
    return simple_clause(composer).then("।").words


def _negative(composer: Composer) -> Words:
    words, verb_at = simple_clause(composer)
    return (*words[:verb_at], "नहीं", *words[verb_at:], "।")


def _polar_question(composer: Composer) -> Words:
    return ("क्या", *simple_clause(composer).words, "?")


def _question(composer: Composer) -> Words:
    verb = composer.verb(("intransitive", "transitive"))
    predicate = replace(composer.predicate(verb, composer.tense()), before=())
    if composer.chance(0.3):
        return predicate.of(Personal(QUESTION, "m")).then("?").words
    asked = composer.one(("कहाँ", "कब", "क्यों", "कैसे"))
    return replace(predicate, before=(asked,)).of(composer.subject(verb)).then("?").words


def _imperative(composer: Composer) -> Words:
    """An order to तुम or आप."""
    verb = composer.verb(("transitive", "ditransitive"))
    polite = composer.chance(0.5)
    words, verb_at = composer.predicate(verb, "future").of(Personal(PRONOUNS[3 if polite else 2], "m"))
    forbidden = ("मत",) if not polite and composer.chance(0.15) else ()
    return (*words[:verb_at], *forbidden, imperative(verb.lemma, polite), "।")


def _copular(composer: Composer) -> Words:
    """घड़ी साड़ी से महँगी है; लड़की बाज़ार में अकेली थी; फूल लाल है."""
    noun = composer.noun(("human", "animal", "thing", "clothes", "reading", "food", "vehicle", "vessel", "inside"))
    subject = Nominal(noun, composer.number(noun), composer.modifiers(noun, 0.35))
    adjective = composer.adjective(noun, ("quality", "state", "posture"))
    middle = setting(composer, noun, adjective)[0] if adjective.kind == "posture" or composer.chance(0.7) else ()
    features = subject.features
    state = adjective_form(adjective.lemma, features.gender, features.number)
    auxiliary = (past_copula if composer.chance(0.3) else copula)(features)
    return (*subject.words(), *middle, state, auxiliary, "।")


def setting(composer: Composer, noun: Noun, adjective: Adjective) -> tuple[Words, Noun]:
    """Return a quality's standard of comparison (राम से) or a state's place (घर में), and its noun."""
    if adjective.kind == "quality":
        other = composer.noun(sorted(noun.classes - {"epicene"}))
        return Nominal(other).words("से"), other
    place = composer.noun(NOUNS_OF_PLACE)
    return composer.place(place), place


def _existential(composer: Composer) -> Words:
    """मेज़ पर एक पुरानी घड़ी है."""
    place = composer.place(composer.noun(NOUNS_OF_PLACE))
    what = composer.counted(composer.nominal(("human", "animal", "thing", "clothes", "reading", "food", "vessel")))
    if composer.chance(0.2):
        return (*place, *what.words(), future("होना", what.features), "।")
    return (*place, *what.words(), (past_copula if composer.chance(0.3) else copula)(what.features), "।")


def _coordinate(composer: Composer) -> Words:
    first, second = simple_clause(composer).words, simple_clause(composer).words
    return (*first, composer.one(("और", "लेकिन")), *second, "।")


def _relative(composer: Composer) -> Words:
    """जो लड़का घर में सोता है वह दूध पीता है; जिन लड़कों ने दूध पिया उन्होंने गीत गाया."""
    noun = composer.noun(("human",))
    number = composer.number(noun, 0.5)
    # Half of them with ने in both clauses (जिन … उन्होंने): only then does the pronoun alone show its number.
    ergative = composer.chance(0.5)
    valencies, aspects = (("transitive",), ("perfective",)) if ergative else (VALENCIES[:2], ())
    relative, main = (composer.predicate(composer.verb(valencies), composer.tense(*aspects)) for _ in range(2))
    return relative_sentence(Nominal(noun, number, (("जो",),)), relative, main)


def relative_sentence(subject: Nominal, relative: Predicate, main: Predicate) -> Words:
    """Return a relative clause on the subject (with जो), then the main clause on its correlative pronoun."""
    correlative = Personal(CORRELATIVES[subject.number], subject.noun.gender)
    return (*relative.of(subject).words, *main.of(correlative).words, "।")


_KINDS: tuple[tuple[Callable[[Composer], Words], int], ...] = (
    (_statement, 50),
    (_copular, 12),
    (_existential, 5),
    (_relative, 16),
    (_imperative, 7),
    (_negative, 5),
    (_polar_question, 3),
    (_question, 4),
    (_coordinate, 4),
)
_CUMULATIVE = tuple(accumulate(weight for _, weight in _KINDS))
