"""The words of the built-in grammar: open classes in ``data/*.tsv``, closed classes here.

A noun has semantic classes (``human``, ``food``, ``inside`` …); verbs and adjectives name the classes they go with, so
that the sentences make sense. All text is NFC, and the nukta is written (ख़रीदना, मेज़).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun or a name. ``inflection``: regular, unmarked (राजा keeps its ending) or mass (no plural).

    Two classes say what pairs must know: ``epicene``, the gender isn't fixed (डॉक्टर of a woman; क़लम by region), and
    ``junior``, one of whom nobody speaks in the plural of respect.
    """

    lemma: str
    gender: str
    inflection: str
    classes: frozenset[str]
    gloss: str


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb with the classes of its subjects, bare objects (किताब पढ़ना) and को-marked objects (लड़के को बुलाना).

    ``ergative``: its subject takes ने in perfective tenses (लाना is transitive and doesn't).
    """

    lemma: str
    valency: str
    ergative: bool
    subjects: frozenset[str]
    objects: frozenset[str]
    marked_objects: frozenset[str]
    adjuncts: frozenset[str]
    gloss: str


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective. ``kind``: quality (is compared), state (of a while) or posture (only of a subject: खड़ा)."""

    lemma: str
    kind: str
    classes: frozenset[str]
    gloss: str

    @property
    def inflects(self) -> bool:
        return self.lemma.endswith("ा")


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb of time or manner, with the aspects it goes with."""

    lemma: str
    kind: str
    aspects: frozenset[str]
    gloss: str

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.lemma.split())


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun and its case forms; ``genitive`` inflects like an adjective."""

    direct: str
    ergative: str
    dative: str
    genitive: str
    person: int
    number: str


PRONOUNS = (
    Pronoun("मैं", "मैंने", "मुझे", "मेरा", 1, "sg"),
    Pronoun("हम", "हमने", "हमें", "हमारा", 1, "pl"),
    Pronoun("तुम", "तुमने", "तुम्हें", "तुम्हारा", 2, "pl"),
    Pronoun("आप", "आपने", "आपको", "आपका", 3, "pl"),
    Pronoun("वह", "उसने", "उसे", "उसका", 3, "sg"),
    Pronoun("वे", "उन्होंने", "उन्हें", "उनका", 3, "pl"),
)
POSTPOSITIONS = ("ने", "को", "का", "में", "पर", "से", "तक", "के")
RELATIONS = ("पास", "साथ", "सामने", "पीछे", "ऊपर", "नीचे")
ONE = "एक"
NUMERALS = ("दो", "तीन", "चार", "पाँच", "छह", "सात", "आठ", "नौ", "दस", "बीस")
QUESTION_WORDS = ("क्या", "कौन", "कहाँ", "कब", "क्यों", "कैसे")
PARTICLES = ("और", "लेकिन", "नहीं", "जी", "जो", "अपना", "बहुत", "यह", "ये", "होना", "मत")


@dataclass(frozen=True)
class Lexicon:
    """All open-class words; ``counts()`` and ``len()`` include the closed classes."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    adverbs: tuple[Adverb, ...]

    def counts(self) -> dict[str, int]:
        """Return how many lexemes each part of speech has."""
        names = sum("name" in noun.classes for noun in self.nouns)
        return {
            "nouns": len(self.nouns) - names,
            "names": names,
            "verbs": len(self.verbs),
            "adjectives": len(self.adjectives),
            "adverbs": len(self.adverbs),
            "pronouns": len(PRONOUNS),
            "postpositions": len(POSTPOSITIONS) + len(RELATIONS),
            "numerals": 1 + len(NUMERALS),
            "question words": len(QUESTION_WORDS),
            "particles": len(PARTICLES),
        }

    def __len__(self) -> int:
        return sum(self.counts().values())

    @cached_property
    def _noun_table(self) -> dict[tuple[str, str | None], tuple[Noun, ...]]:
        table: dict[tuple[str, str | None], list[Noun]] = {}
        for noun in self.nouns:
            for name in noun.classes:
                table.setdefault((name, noun.gender), []).append(noun)
                table.setdefault((name, None), []).append(noun)
        return {key: tuple(nouns) for key, nouns in table.items()}

    @cached_property
    def _union_cache(self) -> dict[tuple[frozenset[str], str | None], tuple[Noun, ...]]:
        return {}

    def find_nouns(self, classes: Collection[str], gender: str | None = None) -> tuple[Noun, ...]:
        """The nouns in any of the classes, in the lexicon's order, each once."""
        key = (frozenset(classes), gender)
        if key not in self._union_cache:
            found = {noun for name in key[0] for noun in self._noun_table.get((name, gender), ())}
            self._union_cache[key] = tuple(noun for noun in self.nouns if noun in found)
        return self._union_cache[key]


@cache
def lexicon() -> Lexicon:
    """The built-in lexicon, read once."""
    return Lexicon(
        tuple(
            Noun(lemma, gender, inflection, _classes(classes), gloss)
            for lemma, gender, inflection, classes, gloss in table_rows("nouns.tsv")
        ),
        tuple(_verb(row) for row in table_rows("verbs.tsv")),
        tuple(
            Adjective(lemma, kind, _classes(classes), gloss)
            for lemma, kind, classes, gloss in table_rows("adjectives.tsv")
        ),
        tuple(
            Adverb(lemma, kind, _classes(aspects), gloss) for lemma, kind, aspects, gloss in table_rows("adverbs.tsv")
        ),
    )


def _verb(row: list[str]) -> Verb:
    lemma, valency, ergative, *lists, gloss = row
    subjects, objects, marked_objects, adjuncts = map(_classes, lists)
    return Verb(lemma, valency, ergative == "yes", subjects, objects, marked_objects, adjuncts, gloss)


def _classes(cell: str) -> frozenset[str]:
    return frozenset() if cell == "-" else frozenset(cell.split(","))


def table_rows(name: str) -> Iterator[list[str]]:
    """The cells of each line of a table in ``data``, without its head, in NFC."""
    text = (files(__package__) / "data" / name).read_text(encoding="utf-8")
    for line in unicodedata.normalize("NFC", text).splitlines()[1:]:
        yield line.split("\t")
