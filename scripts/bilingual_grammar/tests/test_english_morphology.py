"""English forms against what one finds in a dictionary."""

import re

import pytest

from bilingual_grammar.dictionary import adjective_english, bilingual_lexicon, noun_english, verb_english
from bilingual_grammar.english_morphology import article, auxiliary_and_verb, comparative, plural, verb_forms
from vaak.text.grammar.morphology import ASPECT_OF

PLURALS = """
boy:boys story:stories lady:ladies box:boxes watch:watches bus:buses brush:brushes child:children woman:women
fisherman:fishermen washerwoman:washerwomen wife:wives thief:thieves knife:knives calf:calves scarf:scarves ox:oxen
mouse:mice mango:mangoes potato:potatoes hero:heroes piano:pianos sheep:sheep son-in-law:sons-in-law key:keys roof:roofs
sister-in-law:sisters-in-law lotus:lotuses actress:actresses holy_man:holy_men young_woman:young_women
"""
COMPARATIVES = "big:bigger good:better heavy:heavier shy:shyer brave:braver old:older red:redder useful:more_useful"


@pytest.mark.parametrize("pair", PLURALS.split())
def test_plural(pair):
    singular, expected = pair.replace("_", " ").split(":")
    assert plural(singular) == expected


@pytest.mark.parametrize(
    "forms",
    [
        "go goes went gone going",
        "do does did done doing",
        "cry cries cried cried crying",
        "play plays played played playing",
        "stop stops stopped stopped stopping",
        "quarrel quarrels quarrelled quarrelled quarrelling",
        "open opens opened opened opening",
        "lie lies lay lain lying",
        "flee flees fled fled fleeing",
        "write writes wrote written writing",
        "put puts put put putting",
        "swim swims swam swum swimming",
        "search searches searched searched searching",
        "rot rots rotted rotted rotting",
        "return returns returned returned returning",
    ],
)
def test_verb_forms(forms):
    assert list(verb_forms(forms.split()[0])) == forms.split()


@pytest.mark.parametrize(
    ("tense", "expected"),
    [
        ("habitual_present", "does take|takes"),
        ("habitual_past", "did use to take|used to take"),
        ("progressive_present", "is taking|"),
        ("progressive_past", "was taking|"),
        ("perfective", "did take|took"),
        ("perfective_present", "has taken|"),
        ("perfective_past", "had taken|"),
        ("future", "will take|"),
    ],
)
def test_tenses_of_the_third_person(tense, expected):
    auxiliary, verb, plain = auxiliary_and_verb("take", tense, "one")
    assert f"{auxiliary} {verb}|{plain}" == expected


def test_agreement_of_auxiliaries():
    first = {
        who: [auxiliary_and_verb("go", tense, who)[0] for tense in ASPECT_OF if "p" in tense]
        for who in ("I", "one", "many")
    }
    assert first["I"] == ["do", "did", "am", "was", "did", "have", "had"]
    assert first["one"] == ["does", "did", "is", "was", "did", "has", "had"]
    assert first["many"] == ["do", "did", "are", "were", "did", "have", "had"]


@pytest.mark.parametrize("pair", COMPARATIVES.split())
def test_comparative(pair):
    adjective, expected = pair.replace("_", " ").split(":")
    assert comparative(adjective) == expected


@pytest.mark.parametrize(
    "words", ["an umbrella", "a useful pen", "an honest man", "a boy", "an old box", "a house", "an unusual song"]
)
def test_article(words):
    assert f"{article(words.split(' ', 1)[1])} {words.split(' ', 1)[1]}" == words


def test_every_word_used_has_english_letters():
    lexicon = bilingual_lexicon()
    words = [noun_english(noun) for noun in lexicon.nouns]
    words += [adjective_english(adjective, noun) for adjective in lexicon.adjectives for noun in lexicon.nouns]
    for verb in lexicon.verbs:
        english = verb_english(verb)
        words += [english.base, *verb_forms(english.base)]
        assert (verb.valency != "ditransitive") or english.after, verb.lemma
    for word in words:
        assert re.fullmatch(r"[A-Za-z]+([ -][A-Za-z]+)*", word), word


def test_one_english_word_is_one_hindi_word_unless_the_company_tells():
    """Two nouns never; two adjectives only of different classes; two verbs only with different kinds of objects."""
    lexicon = bilingual_lexicon()
    nouns = [noun_english(noun) for noun in lexicon.nouns]
    assert len(set(nouns)) == len(nouns) == 479
    for noun in lexicon.nouns:
        adjectives = [each for each in lexicon.adjectives if each.classes & noun.classes]
        english = [adjective_english(each, noun) for each in adjectives]
        assert len(set(english)) == len(english), noun.lemma
    verbs = [(verb_english(verb).base, verb_english(verb).before, verb_english(verb).after) for verb in lexicon.verbs]
    twice = {words for words in verbs if verbs.count(words) > 1}
    for words in twice:
        alike = [verb.valency for verb, each in zip(lexicon.verbs, verbs, strict=True) if each == words]
        assert sorted(alike) == ["intransitive", "transitive"], words
