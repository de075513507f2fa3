"""Clauses in two languages: the Hindi one by ``phrases.Predicate``, the English one by the rules here.

English order: subject, auxiliary, not, mid adverb, verb, object, receiver, manner, adjunct, time; an adjunct without a
preposition (मिलना: meet someone) is an object in English and stands as one. Hindi: subject, time,
adjunct, receiver, object, question word, manner, नहीं, verb, auxiliary. Both orders are fixed, so that one English
sentence has one Hindi sentence; only a time may stand first, and then does in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bilingual_grammar.dictionary import BilingualAdverb, adjective_english, verb_english
from bilingual_grammar.english_morphology import Agreement, auxiliary_and_verb, be, comparative
from bilingual_grammar.phrases import HE, THEY, WHO, YOU, Adjunct, Participant, Phrase, Speaker
from vaak.text.grammar.lexicon import Adjective, Verb
from vaak.text.grammar.morphology import (
    Clause,
    Predicate,
    Words,
    adjective_form,
    copula,
    future,
    imperative,
    past_copula,
)

QUESTION_WORDS = {"कहाँ": "where", "कब": "when", "क्यों": "why", "कैसे": "how", "क्या": "what", "किसे": "whom"}


@dataclass(frozen=True)
class Event:
    """Someone does something: a verb with all that goes with it. ``asked``: a Hindi question word."""

    verb: Verb
    tense: str
    subject: Participant
    object: Participant | None = None
    receiver: Participant | None = None
    adjunct: Adjunct | None = None
    time: BilingualAdverb | None = None
    manner: BilingualAdverb | None = None
    asked: str = ""
    negative: bool = False
    time_first: bool = False

    def hindi_clause(self, subject: Phrase | None = None) -> Clause:
        """The Hindi words; ``subject`` stands in for the event's own (जो लड़का …)."""
        owner = self.subject.possessive
        time = self.time.hindi if self.time and not self.time_first else ()
        place = self.adjunct.hindi(owner) if self.adjunct else ()
        receiver = self.receiver.hindi("को", owner=owner) if self.receiver else ()
        after = (self.asked,) if self.asked else ()
        bare = self.object if isinstance(self.object, Phrase) else None
        if isinstance(self.object, Speaker):
            after = (*self.object.hindi("को"), *after)
        clause = Predicate(
            self.verb,
            self.tense,
            before=(*time, *place, *receiver),
            object=bare.nominal(owner) if bare else None,
            marked=is_animate(self.object) and "animal" not in self.verb.objects,
            after=(*after, *(self.manner.hindi if self.manner else ())),
        ).of((subject or self.subject).nominal())
        first = self.time.hindi if self.time and self.time_first else ()
        return Clause((*first, *clause.words), clause.verb_at + len(first))

    def hindi(self) -> Words:
        words, verb_at = self.hindi_clause()
        return (*words[:verb_at], "नहीं", *words[verb_at:]) if self.negative else words

    def hindi_order(self, polite: bool) -> Words:
        """Return the imperative to आप, or to तुम unless ``polite``, without the pronoun."""
        words, verb_at = self.hindi_clause()
        forbidden = (("न",) if polite else ("मत",)) if self.negative else ()
        start = len(YOU.hindi())
        return (*words[start:verb_at], *forbidden, imperative(self.verb.lemma, polite))

    def english(self) -> str:
        return self.english_clause(self.subject.subject)

    def english_clause(self, subject: str) -> str:
        """The English words with this subject, which may be none: … sleeps in the house."""
        auxiliary, verb, plain = self._verb(self.subject.agreement)
        if plain and not self.negative:
            return self._told(subject, self._mid, plain)
        return self._told(subject, auxiliary, "not" if self.negative else "", self._mid, verb)

    def english_question(self) -> str:
        """do you sing, where did he go; who sings."""
        if self.subject is WHO:
            return self.english()
        auxiliary, verb, _ = self._verb(self.subject.agreement)
        subject = self.subject.subject
        denied = "not" if self.negative else ""
        return self._told(QUESTION_WORDS.get(self.asked, ""), auxiliary, subject, denied, self._mid, verb)

    def english_order(self, polite: bool) -> str:
        base = verb_english(self.verb).base
        return self._told("please" if polite else "", "do not" if self.negative else "", base)

    def _verb(self, agreement: Agreement) -> tuple[str, str, str]:
        return auxiliary_and_verb(verb_english(self.verb).base, self.tense, agreement)

    @property
    def _mid(self) -> str:
        adverbs = (self.time, self.manner)
        return " ".join(each.english for each in adverbs if each and each.place == "mid")

    def _told(self, *start: str) -> str:
        """``start`` ends with the verb; the rest of the clause follows it."""
        verb = verb_english(self.verb)
        time = self.time.english if self.time and self.time.place != "mid" else ""
        adjunct = self.adjunct.english() if self.adjunct else ""
        is_object = self.adjunct is not None and not self.adjunct.english_preposition
        parts = (
            time if self.time_first else "",
            *start,
            verb.before,
            self.object.english() if self.object else "",
            verb.after,
            self.receiver.english() if self.receiver else "",
            adjunct if is_object else "",
            self.manner.english if self.manner and self.manner.place != "mid" else "",
            "" if is_object else adjunct,
            "" if self.time_first else time,
        )
        return " ".join(part for part in parts if part)


def is_animate(participant: Participant | None) -> bool:
    """Whether को stands after it as an object."""
    if isinstance(participant, Phrase):
        return bool(participant.noun.classes & {"human", "name", "elder", "animal"})
    return participant is not None


Time = Literal["present", "past", "future"]


@dataclass(frozen=True)
class State:
    """A clause that says what someone or something is, or where; its predicate is given in both languages."""

    subject: Participant
    time: Time
    hindi_words: Words
    english_words: str
    negative: bool = False

    def hindi(self) -> Words:
        denied = ("नहीं",) if self.negative else ()
        return (*self.subject.hindi(), *self.hindi_words, *denied, _being(self.subject, self.time))

    def english(self) -> str:
        return " ".join((self.subject.subject, *self._verb(), self.english_words))

    def english_question(self) -> str:
        verb, *rest = self._verb()
        return " ".join((verb, self.subject.subject, *rest, self.english_words))

    def _verb(self) -> tuple[str, ...]:
        verb, *rest = _be(self.subject.agreement, self.time)
        return (verb, *(["not"] if self.negative else []), *rest)


def quality(
    adjective: Adjective, subject: Participant, degree: str = "", than: Phrase | None = None
) -> tuple[Words, str]:
    """What is stated about the subject in both languages: old; very old; older than the sari."""
    features = subject.features
    noun = subject.noun if isinstance(subject, Phrase) else None
    hindi: Words = (adjective_form(adjective.lemma, features.gender, features.number),)
    english = adjective_english(adjective, noun)
    if than:
        compared = comparative(english)
        more = ("ज़्यादा",) if compared.startswith("more ") else ()
        return (*than.hindi("से"), *more, *hindi), f"{compared} than {than.english()}"
    return (("बहुत", *hindi), f"very {english}") if degree == "very" else (hindi, english)


def existence(what: Phrase, where: Adjunct, time: Time) -> tuple[str, Words]:
    """There is a watch on the table: मेज़ पर एक घड़ी है."""
    english = " ".join(("there", *_be(what.agreement, time), what.english(), where.english()))
    return english, (*where.hindi(), *_what_is(what, time))


def possession(owner: Participant, what: Phrase, time: Time) -> tuple[str, Words]:
    """Ram has a watch (राम के पास एक घड़ी है), but of his kin: I have two sons (मेरे दो बेटे हैं)."""
    verb = {"past": "had", "future": "will have"}.get(time, "has" if owner.agreement == "one" else "have")
    english = f"{owner.subject} {verb} {what.english()}"
    if "kin" not in what.noun.classes:
        return english, (*owner.hindi("के", "पास"), *_what_is(what, time))
    *before, genitive = owner.hindi("का")
    return english, (*before, adjective_form(genitive, what.noun.gender, what.number), *_what_is(what, time))


def _what_is(what: Phrase, time: Time) -> Words:
    """एक घड़ी है; कोई घड़ी नहीं है."""
    return (*what.hindi(), *(("नहीं",) if what.determiner == "कोई" else ()), _being(what, time))


def identity(near: bool, what: Phrase) -> tuple[str, Words]:
    """This is my book."""
    english, hindi = _pointing(near, what)
    return f"{english} {be(what.agreement)} {what.english()}", (hindi, *what.hindi(), _being(what, "present"))


def whose(near: bool, what: Phrase) -> tuple[str, Words]:
    """Whose book is this?"""
    english, hindi = _pointing(near, what)
    asked = adjective_form(WHO.pronoun.genitive, what.noun.gender, what.number)
    return f"whose {what.english_words} {be(what.agreement)} {english}", (
        hindi,
        asked,
        *what.hindi(),
        _being(what, "present"),
    )


def _pointing(near: bool, what: Phrase) -> tuple[str, str]:
    if what.number == "pl":
        return ("these", "ये") if near else ("those", "वे")
    return ("this", "यह") if near else ("that", "वह")


def relative(head: Phrase, told: Event, main: Event) -> tuple[str, Words]:
    """The boy who sleeps in the house drinks milk: जो लड़का घर में सोता है वह दूध पीता है. He is the subject of both."""
    pronoun = THEY if head.number == "pl" else HE
    taken_up = replace(main, subject=replace(pronoun, gender=head.noun.gender, possessive=head.possessive))
    hindi = (*told.hindi_clause(replace(head, determiner="जो")).words, *taken_up.hindi())
    return f"{head.english()} who {told.english_clause('')} {main.english_clause('')}", hindi


def _be(agreement: Agreement, time: Time) -> tuple[str, ...]:
    return ("will", "be") if time == "future" else (be(agreement, past=time == "past"),)


def _being(subject: Participant, time: Time) -> str:
    """है, था, होगा, as it agrees with the subject."""
    if time == "future":
        return future("होना", subject.features)
    return (past_copula if time == "past" else copula)(subject.features)
