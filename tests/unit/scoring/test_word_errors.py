"""Error rates are jiwer's; intervals are deterministic and hold the rate; files are read by name."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaak.core.errors import DataError, UserError
from vaak.core.matching import drop_ignorable
from vaak.scoring.normalisers import Normaliser, basic, normaliser
from vaak.scoring.word_errors import compute_rates, count_errors, read_transcripts, score_texts

words = st.lists(st.sampled_from(["so", "it", "is", "नमस्ते"]), max_size=6).map(" ".join)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_rates_are_those_of_jiwer_over_the_whole_set(pairs: list[tuple[str, str]]):
    references, hypotheses = map(list, zip(*pairs, strict=True))
    rates = compute_rates(count_errors(*pair) for pair in pairs)
    if not any(references):
        assert rates.wer is None
        return
    assert rates.wer == pytest.approx(jiwer.wer(references, hypotheses))
    assert rates.cer == pytest.approx(jiwer.cer(references, hypotheses))
    assert rates.wer_interval is not None
    assert rates.wer_interval == compute_rates(count_errors(*pair) for pair in pairs).wer_interval
    low, high = rates.wer_interval
    assert 0 <= low <= high


def test_the_interval_is_as_wide_as_chance_makes_it():
    """Of 400 words, each wrong with probability 0.1, the standard deviation of the rate is 1.5 %."""
    counts = [count_errors("a", "b" if number % 10 == 0 else "a") for number in range(400)]
    low, high = compute_rates(counts).wer_interval or (0, 0)
    assert low == pytest.approx(0.1 - 1.96 * 0.015, abs=0.006)
    assert high == pytest.approx(0.1 + 1.96 * 0.015, abs=0.006)


def test_groups_and_what_is_missing():
    references = {"1": "So it is.", "2": "no", "3": "never"}
    scores = score_texts(references, {"1": "so it was", "2": "no"}, {"1": "en", "2": "hi", "3": "hi"})
    assert scores.protocol == {"normaliser": "basic", "utterances": "3", "without hypothesis": "1"}
    assert scores.groups["en"].wer == pytest.approx(1 / 3)
    assert scores.groups["hi"].wer == pytest.approx(1 / 2)
    assert scores.total.wer == pytest.approx(2 / 5)
    with pytest.raises(DataError, match="no reference for '4'"):
        score_texts(references, {"4": ""})


def test_basic_is_whispers_own_but_keeps_vowel_signs():
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer

    whispers = BasicTextNormalizer()
    for text in ("It's [noise] 5 o'clock, <x>(laughs) OK?", "Straße & ﬁn"):
        assert basic(text) == " ".join(whispers(text).split())
    assert basic("क्या हाल है?") == "क्या हाल है"
    assert basic("क्या") != basic("का")
    assert " ".join(whispers("क्या हाल है?").split()) != basic("क्या हाल है?")


def test_whispers_english_normaliser_has_its_spelling():
    normalise = normaliser("whisper-english")
    assert normalise("Mr. Park's colour isn't twenty-five, um!") == "mister park is color is not 25"
    with pytest.raises(UserError, match="unknown normaliser english"):
        normaliser("english")


def test_transcripts_are_read_from_lines_tables_and_texts(tmp_path: Path):
    lines = [{"id": "a", "transcript": "so"}, {"id": 7, "transcript": "it", "accent": "hi"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "a.csv").write_text('id,text,accent\na,"so, it",\n7,it,hi\n')
    (tmp_path / "a.txt").write_text("a so\n7 it is\n")
    assert read_transcripts(tmp_path / "a.jsonl", "accent")[:2] == ({"a": "so", "7": "it"}, {"7": "hi"})
    assert read_transcripts(tmp_path / "a.csv", "accent")[:2] == ({"a": "so, it", "7": "it"}, {"7": "hi"})
    assert read_transcripts(tmp_path / "a.txt", named=True).texts == {"a": "so", "7": "it is"}
    assert read_transcripts(tmp_path / "a.txt").texts == {"1": "a so", "2": "7 it is"}
    (tmp_path / "b.csv").write_text("id,words\na,so\n")
    with pytest.raises(DataError, match=r"b\.csv:2: expected a text under text or .*; there are id, words"):
        read_transcripts(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("id,text\na,so\na,it\n")
    with pytest.raises(DataError, match=r"c\.csv:3: there are two texts of a"):
        read_transcripts(tmp_path / "c.csv")
    with pytest.raises(DataError, match=r"no\.txt: can't be read"):
        read_transcripts(tmp_path / "no.txt")


def test_intervals_over_speakers_are_those_of_whole_speakers():
    """Ten speakers, half of whom are never understood: utterances alone would promise far too much."""
    references = {f"{speaker}-{number}": "so it is" for speaker in range(10) for number in range(20)}
    hypotheses = {name: "so it is" if int(name[0]) % 2 else "no no no" for name in references}
    speakers = {name: name[0] for name in references}
    groups = {name: "odd" if int(name[0]) % 2 else "even" for name in references}
    alone = score_texts(references, hypotheses, groups).total
    found = score_texts(references, hypotheses, groups, speakers=speakers)
    assert (found.total.wer, found.protocol["intervals over"]) == (0.5, "10 speakers")
    assert found.groups["even"].wer_interval == (1.0, 1.0)
    drawn = np.random.default_rng(1).binomial(10, 0.5, 20_000) / 10  # of ten speakers, how many aren't understood
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert found.total.wer_interval == pytest.approx((low, high), abs=0.05)
    assert alone.wer_interval is not None
    assert high - low > 3 * (alone.wer_interval[1] - alone.wer_interval[0])


def test_an_utterance_without_a_speaker_is_one_of_its_own():
    references = {str(number): "so it is" for number in range(8)}
    hypotheses = {name: "so it is" if int(name) % 2 else "no" for name in references}
    own = score_texts(references, hypotheses, speakers={})
    assert own.total == score_texts(references, hypotheses).total
    assert own.protocol["intervals over"] == "8 speakers"


@pytest.mark.parametrize("name", ["basic", "none", "whisper-english"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("café", "cafe\u0301"),  # NFC and NFD
        ("क\u093c\u0932\u092e", "\u0958\u0932\u092e"),
        ("한글", unicodedata.normalize("NFD", "한글")),
        ("I love it \u2764\ufe0f", "I love it \u2764"),  # a variation selector
        ("co\u00adoperate", "cooperate"),  # a soft hyphen
        ("नमस्\u200dते", "नमस्ते"),
        ("\ufeffso", "so"),
    ],
)
def test_how_unicode_writes_a_text_decides_no_score(name: str, one: str, other: str):
    normalise = normaliser(name)
    assert not any(count_errors(normalise(one), normalise(other))[:3])
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I love it \u2764\ufe0f", "i love it"),  # the selector was a word
        ("İstanbul", "istanbul"),
        ("so \u093e it", "so it"),  # a vowel sign without a letter
        ("1\ufe0f\u20e3 go", "1 go"),  # a keycap
        ("\U0001f469\u200d\u2764\ufe0f\u200d\U0001f468 hi", "hi"),
        ("किताब", "किताब"),
    ],
)
def test_basic_counts_letters_alone(text: str, words: str):
    assert normaliser("basic")(text) == words


def test_names_that_differ_in_case_or_ending_are_one_utterance():
    scores = score_texts({"a": "so it is", "b": "no"}, {"A.wav": "so it is", "wavs/b.wav": "yes"})
    assert scores.total.counts.word_errors == 1
    assert "without hypothesis" not in scores.protocol


def test_texts_are_compared_by_a_normaliser_of_ones_own_which_the_protocol_names() -> None:
    """Only three names could be given, which were looked up."""
    vowelless = Normaliser("vowelless", lambda text: text.translate(dict.fromkeys(map(ord, "aeiou"))))
    scores = score_texts({"1": "red bed"}, {"1": "rod bad"}, normalise=vowelless)
    assert (scores.total.wer, scores.protocol["normaliser"]) == (0.0, "vowelless")
    assert score_texts({"1": "red bed"}, {"1": "rod bad"}).total.wer == 1.0


IGNORABLE = [
    "\u00ad",
    "\u034f",
    "\u061c",
    "\u115f",
    "\u17b4",
    "\u180b",
    "\u180e",
    "\u200b",
    "\u200c",
    "\u200d",
    "\u200e",
]
IGNORABLE += ["\u202a", "\u2060", "\u2065", "\u3164", "\ufe00", "\ufe0f", "\ufeff", "\uffa0", "\ufff0", "\U0001d173"]
IGNORABLE += ["\U000e0001", "\U000e0020", "\U000e0100", "\U000e0fff"]
SIGNS = [
    *"so it is 123",
    "कि",
    "ता",
    "é",
    "e\u0301",
    "İ",
    "i\u0307",
    "1\u20e3",
    "❤",
    "\U0001f469",
    "\u0301",
    "\u093f",
    "\u20e3",
    " ",
]


@pytest.mark.parametrize("name", ["basic", "none", "whisper-english"])
@given(pieces=st.lists(st.sampled_from(SIGNS), min_size=1, max_size=12), data=st.data())
def test_what_unicode_ignores_changes_no_rate_wherever_it_is(name: str, pieces: list[str], data: st.DataObject):
    normalise, text = normaliser(name), "".join(pieces)
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    marked = text
    for place in sorted(places, reverse=True):
        marked = marked[:place] + data.draw(st.sampled_from(IGNORABLE)) + marked[place:]
    for other in ("so it is 1", text):
        assert count_errors(normalise(text), normalise(other)) == count_errors(normalise(marked), normalise(other))
        assert count_errors(normalise(other), normalise(text)) == count_errors(normalise(other), normalise(marked))


@pytest.mark.parametrize("name", ["basic", "none", "whisper-english"])
@pytest.mark.parametrize("text", ["1\ufe0f\u20e3", "1\u20e3", "1 \u20e3", "1 \u0301", "\u20e3 1\ufe0f"])
def test_a_key_of_a_telephone_is_its_digit_and_a_mark_alone_is_no_word(name: str, text: str):
    """Under none, U+20E3 made another word of a digit, and was one where it stood alone."""
    normalise = normaliser(name)
    errors = count_errors(normalise("press 1 now"), normalise(f"press {text} now"))
    assert (errors.word_errors, errors.character_errors) == (0, 0)


def test_what_is_ignored_is_what_unicode_says():
    regex = pytest.importorskip("regex")
    every = "".join(chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000)
    assert drop_ignorable(every) == regex.sub(r"\p{Default_Ignorable_Code_Point}", "", every)
