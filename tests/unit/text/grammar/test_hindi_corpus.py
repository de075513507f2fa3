"""The generated sentences: deterministic, in disjoint splits, of known words, without held-out combinations."""

import time
import unicodedata

import pytest

from vaak.text.grammar import SPLITS, sentences
from vaak.text.grammar.composer import choose_split, held_out, meets_held_out, readings
from vaak.text.grammar.lexicon import NUMERALS, PRONOUNS, QUESTION_WORDS, lexicon

FUNCTION_WORDS = """
ने को का के की में पर से तक पास साथ सामने पीछे ऊपर जी और लेकिन नहीं मत बहुत जो जिस जिन यह वह ये वे इस उस इन उन एक
अपना अपने अपनी रहा रहे रही हूँ हो है हैं था थे थी थीं होगा होगी होंगे होंगी । ?
"""


@pytest.fixture(scope="module")
def splits() -> dict[str, list[str]]:
    return {split: list(sentences(split, 4000 if split == "train" else 800, seed=3)) for split in SPLITS}


def test_same_arguments_same_sentences(splits):
    assert list(sentences("train", 300, seed=3)) == splits["train"][:300]
    assert list(sentences("train", 300, seed=4)) != splits["train"][:300]


def test_sentences_differ_within_and_between_splits(splits):
    everything = [sentence for part in splits.values() for sentence in part]
    assert len(everything) == len(set(everything)) == 5600


def test_no_set_of_lexemes_is_in_two_splits(splits):
    for split, part in splits.items():
        assert {choose_split(sentence.split()) for sentence in part} == {split}


def test_split_ignores_inflection():
    forms = ("लड़का बाज़ार में सोता है ।", "लड़के बाज़ारों में सोए ।", "बाज़ार में लड़के सोएँगे ।")
    assert len({choose_split(unicodedata.normalize("NFC", form).split()) for form in forms}) == 1


def test_held_out_combinations_occur_in_no_split(splits):
    """Checked here from the forms alone, without ``meets_held_out``."""
    nouns = {form: reading.nouns for form, reading in readings().items()}
    verbs = {form: reading.verbs for form, reading in readings().items()}
    met = set()
    for sentence in splits["train"] + splits["valid"]:
        words = sentence.split()
        assert not meets_held_out(words)
        for place, word in enumerate(words):
            for other in words[place + 1 :]:
                met |= {(a, b) for a in nouns.get(word, ()) for b in nouns.get(other, ())}
            for other in words:
                met |= {(a, b) for a in nouns.get(word, ()) for b in verbs.get(other, ())}
    assert len(met) > 10_000
    assert not [pair for pair in met if held_out(*pair)]


def test_about_one_combination_in_ten_is_held_out():
    pairs = [(noun.lemma, verb.lemma) for noun in lexicon().nouns for verb in lexicon().verbs]
    assert sum(held_out(*pair) for pair in pairs) / len(pairs) == pytest.approx(0.1, abs=0.01)


def test_every_word_is_of_the_lexicon(splits):
    known = (
        set(readings())
        | set(NUMERALS)
        | set(QUESTION_WORDS)
        | set(unicodedata.normalize("NFC", FUNCTION_WORDS).split())
    )
    known |= {word for adverb in lexicon().adverbs for word in adverb.words}
    for pronoun in PRONOUNS:
        known |= {pronoun.direct, pronoun.ergative, pronoun.dative, "किसने"}
        known |= {pronoun.genitive[:-1] + sign for sign in "ाेी"}
    used = {word for part in splits.values() for sentence in part for word in sentence.split()}
    assert not used - known


def test_sentences_are_nfc_and_end_with_a_mark_of_their_own(splits):
    for sentence in splits["train"]:
        assert unicodedata.is_normalized("NFC", sentence)
        assert sentence.split(" ")[-1] in ("।", "?")
        assert sum(sentence.count(mark) for mark in "।?,") == 1
        assert 3 <= len(sentence.split(" ")) <= 32


def test_constructions_are_all_there(splits):
    words = [set(sentence.split()) for sentence in splits["train"]]
    for sign in ("ने", "को", "नहीं", "मत", "क्या", "कौन", "जो", "जिन", "रहा", "थीं", "हूँ", "हो", "जी", "अपनी", "और", "दो"):
        assert sum(sign in each for each in words) >= 10, sign


def test_unknown_split_is_named():
    with pytest.raises(ValueError, match="expected one of train, valid, test"):
        next(sentences("dev", 1, seed=0))


def test_generation_is_fast():
    begin = time.process_time()
    list(sentences("train", 3000, seed=0))
    assert time.process_time() - begin < 2.0
