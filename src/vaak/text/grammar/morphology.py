"""The forms of words: inflection of Hindi nouns, adjectives and verbs, and their agreement in phrases and clauses.

Which words there are is decided elsewhere. Source: R. S. McGregor, Outline of Hindi Grammar (3rd ed., 1995); the
spelling follows the Central Hindi Directorate (गए, गई, खाएगा; a nasal vowel has ँ, or ं where a sign stands above the
line).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vaak.text.grammar.lexicon import Noun, Pronoun, Verb

TENSES = {
    "habitual": ("habitual_present", "habitual_past"),
    "progressive": ("progressive_present", "progressive_past"),
    "perfective": ("perfective", "perfective_present", "perfective_past"),
    "future": ("future",),
}
ASPECT_OF = {tense: aspect for aspect, tenses in TENSES.items() for tense in tenses}


class Features(NamedTuple):
    """A verb's person, number and gender. तुम and आप are plural; आप takes the third person's forms."""

    gender: str
    number: str
    person: int = 3


DEFAULT = Features("m", "sg")
_PERFECTIVE_STEMS = {"कर": "कि", "दे": "दि", "ले": "लि", "जा": "ग"}
_SHORT_FUTURES = {
    "दे": ("दूँ", "दो", "दे", "दें"),
    "ले": ("लूँ", "लो", "ले", "लें"),
    "हो": ("होऊँ", "हो", "हो", "हों"),
}
_VOWELS = "ािोुआ"
_POLITE_STEMS = {"कर": "कीज", "दे": "दीज", "ले": "लीज", "पी": "पीज"}


def noun_form(noun: Noun, number: str = "sg", oblique: bool = False) -> str:
    """The noun in a number and case: लड़का, लड़के, लड़कों; मेज़, मेज़ें, मेज़ों."""
    lemma = noun.lemma
    marked = noun.gender == "m" and noun.inflection != "unmarked" and lemma[-1] in "ाआ"
    if number == "sg":
        return _change_ending(lemma, "े", "ए") if marked and oblique else lemma
    if oblique:
        return _oblique_plural(lemma, marked)
    if marked:
        return _change_ending(lemma, "े", "ए")
    return lemma if noun.gender == "m" else _feminine_plural(lemma)


def _change_ending(lemma: str, sign: str, letter: str) -> str:
    """``lemma`` with its final ा replaced by a vowel sign, its final आ or या by a vowel letter (डाकिया, डाकिए)."""
    if lemma.endswith("िया"):
        return lemma[:-2] + letter
    return lemma[:-1] + (sign if lemma.endswith("ा") else letter)


def _oblique_plural(lemma: str, marked: bool) -> str:
    if lemma.endswith("िया"):
        return lemma[:-1] + "ों"
    if marked:
        return _change_ending(lemma, "ों", "ओं")
    if lemma[-1] in "ीि":
        return lemma[:-1] + "ियों"
    if lemma.endswith("ई"):
        return lemma[:-1] + "इयों"
    if lemma.endswith("ू"):
        return lemma[:-1] + "ुओं"
    if lemma.endswith("ऊ"):
        return lemma[:-1] + "उओं"
    # After a vowel, the ending is written with a letter; after a consonant, with a sign.
    return lemma + ("ओं" if lemma[-1] in "ाआुँ" else "ों")


def _feminine_plural(lemma: str) -> str:
    if lemma.endswith("िया"):
        return lemma + "ँ"
    if lemma[-1] in "ीि":
        return lemma[:-1] + "ियाँ"
    if lemma.endswith("ई"):
        return lemma[:-1] + "इयाँ"
    if lemma.endswith("ू"):
        return lemma[:-1] + "ुएँ"
    return lemma + ("एँ" if lemma[-1] in "ाआुँ" else "ें")


def adjective_form(lemma: str, gender: str, number: str = "sg", oblique: bool = False) -> str:
    """The adjective (or का, मेरा, a participle in -ा) with a noun: अच्छा, अच्छे, अच्छी; सुंदर never changes."""
    if not lemma.endswith("ा"):
        return lemma
    if lemma == "नया":
        return {"f": "नई"}.get(gender, "नए" if number == "pl" or oblique else lemma)
    if gender == "f":
        return lemma[:-1] + "ी"
    return lemma[:-1] + "े" if number == "pl" or oblique else lemma


def participle(lemma: str, features: Features) -> str:
    """The imperfective participle: करता, करते, करती."""
    return adjective_form(stem(lemma) + "ता", features.gender, features.number)


def stem(lemma: str) -> str:
    """The infinitive without ना."""
    return lemma.removesuffix("ना")


def perfective(lemma: str, features: Features, finite: bool = True) -> str:
    """The perfective participle: बोला, गया, किया, पी; ``finite`` nasalises the feminine plural (गईं, but गई हैं)."""
    root = _PERFECTIVE_STEMS.get(stem(lemma), _shorten(stem(lemma)))
    plural = features.number == "pl"
    vowel = root == "ग" or root[-1] in _VOWELS
    if features.gender == "f":
        nasal = "ं" if finite and plural else ""
        return (root[:-1] + "ी" if root[-1] == "ि" else root + ("ई" if vowel else "ी")) + nasal
    if vowel:
        return root + ("ए" if plural else "आ" if root[-1] == "ु" else "या")
    return root + ("े" if plural else "ा")


def _shorten(root: str) -> str:
    """``root`` with a final long ī or ū made short, as before a vowel: पी, पि; छू, छु."""
    return root[:-1] + {"ी": "ि", "ू": "ु"}.get(root[-1], root[-1])


def future(lemma: str, features: Features) -> str:
    """करूँगा, करोगे, करेगा, करेंगे; खाऊँगा, खाओगे, खाएगा, खाएँगे; दूँगा, देगा; होगा."""
    gender, number, person = features
    root = stem(lemma)
    ending = "गी" if gender == "f" else "गे" if number == "pl" else "गा"
    column = 0 if (person, number) == (1, "sg") else 1 if person == 2 else 2 if number == "sg" else 3
    if root in _SHORT_FUTURES:
        return _SHORT_FUTURES[root][column] + ending
    root = _shorten(root)
    if root[-1] in _VOWELS:
        return root + ("ऊँ", "यो" if root[-1] == "ि" else "ओ", "ए", "एँ")[column] + ending
    return root + ("ूँ", "ो", "े", "ें")[column] + ending


def imperative(lemma: str, polite: bool) -> str:
    """The order given to तुम (करो, खाओ, दो), or to आप where ``polite`` (कीजिए, खाइए, दीजिए)."""
    root = stem(lemma)
    if polite:
        root = _POLITE_STEMS.get(root, _shorten(root))
        return root + ("इए" if root[-1] in _VOWELS else "िए")
    return future(lemma, Features("m", "pl", 2)).removesuffix("गे")


def copula(features: Features) -> str:
    """हूँ, हो, है, हैं."""
    _, number, person = features
    if person == 2:
        return "हो"
    if number == "pl":
        return "हैं"
    return "हूँ" if person == 1 else "है"


def past_copula(features: Features) -> str:
    """था, थे, थी, थीं."""
    if features.gender == "f":
        return "थीं" if features.number == "pl" else "थी"
    return "थे" if features.number == "pl" else "था"


def verb_group(lemma: str, tense: str, features: Features) -> tuple[str, ...]:
    """The finite verb with its auxiliaries in one of ``TENSES``: (जा, रही, हैं)."""
    if tense == "future":
        return (future(lemma, features),)
    if tense == "perfective":
        return (perfective(lemma, features),)
    auxiliary = past_copula(features) if tense.endswith("past") else copula(features)
    if tense.startswith("habitual"):
        return participle(lemma, features), auxiliary
    if tense.startswith("progressive"):
        return stem(lemma), adjective_form("रहा", features.gender, features.number), auxiliary
    return perfective(lemma, features, finite=False), auxiliary


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
