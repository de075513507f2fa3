"""The English of the built-in lexicon: the glosses, corrected by ``english.tsv``.

A word's English is its gloss, unless the table says otherwise; "-" leaves the word out. What is left is so chosen that
one English word is one Hindi word: of two words for *letter* one stays. Where two stay (old: पुराना, बूढ़ा; play: खेलना,
बजाना), what they go with tells them apart.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vaak.text.grammar.lexicon import Adjective, Lexicon, Noun, Verb, lexicon

NUMERALS = {
    "दो": "two",
    "तीन": "three",
    "चार": "four",
    "पाँच": "five",
    "छह": "six",
    "सात": "seven",
    "आठ": "eight",
    "नौ": "nine",
    "दस": "ten",
    "बीस": "twenty",
}
PREPOSITIONS = {
    ("",): "to",
    ("में",): "in",
    ("पर",): "on",
    ("के", "पास"): "near",
    ("के", "सामने"): "in front of",
    ("के", "पीछे"): "behind",
    ("के", "ऊपर"): "above",
    ("के", "साथ"): "with",
    ("से",): "from",
    ("तक",): "to",
}


@dataclass(frozen=True)
class EnglishVerb:
    """A verb's words: ``before`` its object and ``after`` it (put … to sleep, give … to).

    ``prepositions``: its own ones, by the kind of adjunct.
    """

    base: str
    before: str
    after: str
    prepositions: dict[str, str]


@dataclass(frozen=True)
class BilingualAdverb:
    """An adverb in both languages, and the tenses it goes with in both.

    ``place``: mid (before the verb), end, or free (at the end or at the beginning).
    """

    hindi: tuple[str, ...]
    english: str
    kind: str
    place: str
    tenses: frozenset[str]


@cache
def _rows() -> tuple[list[str], ...]:
    """The cells of each line of the table, without its head, in NFC."""
    text = unicodedata.normalize("NFC", Path(__file__).with_name("english.tsv").read_text(encoding="utf-8"))
    return tuple(line.split("\t") for line in text.splitlines()[1:])


@cache
def _table() -> dict[tuple[str, str], tuple[str, str]]:
    """English and note of each word that the table corrects, by part of speech and lemma."""
    return {(part, lemma): (english, note) for lemma, part, english, note in _rows()}


@cache
def _english(part: str, lemma: str, gloss: str) -> tuple[str, str]:
    return _table().get((part, lemma), (gloss, "-"))


def noun_english(noun: Noun) -> str:
    """The noun in the singular; "-" where it is left out."""
    return _english("noun", noun.lemma, noun.gloss)[0]


def adjective_english(adjective: Adjective, noun: Noun | None = None) -> str:
    """The adjective of this noun, or of a person: a tall man, a long sari."""
    english = _english("adjective", adjective.lemma, adjective.gloss)[0]
    living, _, other = english.partition("/")
    return other if other and noun and not noun.classes & {"human", "name", "animal"} else living


@cache
def verb_english(verb: Verb) -> EnglishVerb:
    """The verb's English words. Raises KeyError for one that is left out."""
    english, note = _english("verb", verb.lemma, verb.gloss)
    if english == "-":
        raise KeyError(verb.lemma)
    words, _, after = english.partition("~")
    base, _, before = words.strip().partition(" ")
    return EnglishVerb(base, before, after.strip(), dict(_split_pair(each) for each in note.split(",") if each != "-"))


def _split_pair(text: str) -> tuple[str, str]:
    kind, _, preposition = text.partition(":")
    return kind, preposition


@cache
def bilingual_adverbs(kind: str, tense: str, places: tuple[str, ...]) -> tuple[BilingualAdverb, ...]:
    """The adverbs of a kind ("time", "manner") that go with a tense and may stand in one of the places."""
    return tuple(each for each in _adverbs() if each.kind == kind and tense in each.tenses and each.place in places)


@cache
def _adverbs() -> tuple[BilingualAdverb, ...]:
    found = []
    for lemma, part, english, note in _rows():
        if part in ("time", "manner"):
            place, tenses = note.split(" ")
            found.append(BilingualAdverb(tuple(lemma.split()), english, part, place, frozenset(tenses.split(","))))
    return tuple(found)


@cache
def bilingual_lexicon() -> Lexicon:
    """The part of the lexicon that has English words."""
    everything = lexicon()
    return Lexicon(
        tuple(noun for noun in everything.nouns if noun_english(noun) != "-"),
        tuple(verb for verb in everything.verbs if _english("verb", verb.lemma, verb.gloss)[0] != "-"),
        tuple(
            adjective
            for adjective in everything.adjectives
            if _english("adjective", adjective.lemma, adjective.gloss)[0] != "-"
        ),
        everything.adverbs,
    )
