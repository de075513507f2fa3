"""Inline phonemes, a lexicon and SSML change how a text is spoken; invalid input is refused in one line."""

from __future__ import annotations

import math

import pytest

from vaak.core.errors import DataError
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.phonemes.alphabets import from_either, phones
from vaak.text.speech.processor import PhonemeProcessor
from vaak.text.speech.ssml import Manner, Marks, parse_spans


def read(text: str, lexicon: dict[str, str] | None = None) -> list[tuple[str, Manner, float | None]]:
    """Return each span in its written form, with its manner and the silence before it."""
    marks = Marks(lexicon)
    return [(marks.written(span.text), span.manner, span.silence) for span in parse_spans(text, marks)]


def said(body: str) -> str:
    [(text, _, _)] = read(f"<speak>{body}</speak>")
    return text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('<say-as interpret-as="characters">aB1</say-as>', "A B one"),
        ('<say-as interpret-as="cardinal">1,308</say-as>', "one thousand three hundred eight"),
        ('<say-as interpret-as="cardinal">-2.5</say-as>', "minus two point five"),
        ('<say-as interpret-as="ordinal">22</say-as>', "twenty-second"),
        ('<say-as interpret-as="digits">007</say-as>', "zero zero seven"),
        ('<say-as interpret-as="date" format="dmy">5/3/2024</say-as>', "March fifth, twenty twenty-four"),
        ('<say-as interpret-as="date">3-5-2024</say-as>', "March fifth, twenty twenty-four"),
        ('<say-as interpret-as="date" format="ymd">2024-03-05</say-as>', "March fifth, twenty twenty-four"),
        ('The <sub alias="World Wide Web">W3</sub> &amp; you', "The World Wide Web & you"),
        ("<p>One</p><s>Two?</s>", " One.  Two? "),
    ],
)
def test_what_is_said_in_place_of_what_is_written(body: str, expected: str):
    assert said(body) == expected


def test_silence_and_manner_divide_a_text_into_spans():
    text = """<?xml version="1.0"?>
    <speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en-US">
      <break time="250ms"/>One.<break time="1.5s"/> Two <prosody rate="80%" pitch="+2st">three
      <prosody rate="+50%" volume="-6dB">four.</prosody></prosody> Five.<break strength="strong"/></speak>"""
    found = [(text.strip(), manner, silence) for text, manner, silence in read(text)]
    assert found == [
        ("One.", Manner(), 0.25),
        ("Two", Manner(), 1.5),
        ("three", Manner(0.8, 2.0, 0.0), 0.0),
        ("four.", Manner(0.8 * 1.5, 2.0, -6.0), 0.0),
        ("Five.", Manner(), None),
        ("", Manner(), 0.75),
    ]
    [(_, manner, _)] = read('<speak><prosody rate="fast" pitch="-50%" volume="silent">a</prosody></speak>')
    assert manner == Manner(1.25, -12.0, -math.inf)


BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><speak>&b;</speak>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'<?xml version="1.0"?>{BOMB}', "a document type (<!DOCTYPE …>) isn't read"),
        ("<speak>&b;</speak>", "SSML, line 1: undefined entity"),
        ('<speak><!DOCTYPE a SYSTEM "file:///etc/passwd"></speak>', "SSML, line 1:"),
        ("<speak>He <b>saw</b></speak>", "unknown tag <b>; expected one of speak, p, s, break"),
        ("<speak>He", "SSML, line 1: no element found"),
        ("<speak><audio src='/etc/passwd'/></speak>", "unknown tag <audio>"),
        ("<speak><break time='1h'/></speak>", "time '1h'; expected such as 500ms or 2s, up to 60s"),
        ("<speak><break time='99999s'/></speak>", "up to 60s"),
        ("<speak><break strength='huge'/></speak>", "strength 'huge'"),
        ("<speak><prosody rate='1e9%'>a</prosody></speak>", "rate '1e9%'; expected one of x-slow, slow"),
        ("<speak><prosody rate='0%'>a</prosody></speak>", "<prosody> is out of range"),
        ("<speak><prosody pitch='+20Hz'>a</prosody></speak>", "pitch '+20Hz'"),
        ("<speak><prosody range='high'>a</prosody></speak>", "<prosody> has no attribute range here"),
        ("<speak><say-as interpret-as='money'>a</say-as></speak>", "interpret-as 'money'; expected one of characters"),
        ("<speak><say-as interpret-as='date'>13/13/2024</say-as></speak>", "'13/13/2024' can't be read as date"),
        ("<speak><say-as interpret-as='cardinal'>two</say-as></speak>", "'two' can't be read as cardinal"),
        ("<speak><phoneme ph=''>a</phoneme></speak>", "are empty"),
        ("<speak><sub alias='a'><break/></sub></speak>", "<break> can't stand in <sub>"),
        ("<speak><speak>a</speak></speak>", "<speak> is the outermost tag"),
        ("<speak>" + "<s>" * 200 + "</s>" * 200 + "</speak>", "more than 100 tags"),
        ("He [[ ]].", "are empty"),
        ("He \ue000.", "private use"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, message: str):
    with pytest.raises(DataError) as error:
        parse_spans(text, Marks())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PhonemeProcessor:
    """By rules, which read each word alone: espeak-ng's stress depends on the words around."""
    file = tmp_path_factory.mktemp("lexicon") / "lexicon.txt"
    file.write_text("me  0.99 0.1 M IY1\nblick ɹiːd\n")  # with probabilities, and in IPA
    options = {"phonemizer": "lexicon", "lexicon": str(file), "unknown_words": "rules"}
    return PhonemeProcessor(FrontEndConfig(alphabet="arpabet", **options))


def symbols(processor: PhonemeProcessor, text: str, lexicon: dict[str, str] | None = None) -> list[str]:
    marks = Marks(lexicon)
    [span] = parse_spans(text, marks)
    [found] = processor.process_all([span.text], marks.phonemes)
    return list(found.symbols)


@pytest.mark.parametrize("phonemes", ["HH AH0 L OW1", "həˈloʊ", "h ə l ˈoʊ", "h ə ˈl oʊ"])
@pytest.mark.parametrize(
    "form", ["He saw [[{}]], on May 4.", '<speak>He saw <phoneme ph="{}">it</phoneme>, on May 4.</speak>']
)
def test_given_phonemes_are_spoken_and_the_rest_as_without_them(processor, phonemes: str, form: str):
    usual = symbols(processor, "He saw me, on May 4.")
    place = usual.index("M")
    assert usual[place : place + 2] == ["M", "IY1"]
    expected = [*usual[:place], "HH", "AH0", "L", "OW1", *usual[place + 2 :]]
    assert symbols(processor, form.format(phonemes)) == expected


def test_words_of_a_lexicon_are_spoken_as_it_says(processor):
    lexicon = {"sql": "S IY1 K W AH0 L", "maïs": "maɪs", "日": "N IY1 CH IY0"}
    found = " ".join(symbols(processor, "SQL's [[SQL]] ".replace("[[SQL]] ", "") + "maïs, 日.", lexicon))
    assert found == "S IY1 K W AH0 L Z   M AY0 S , N IY1 CH IY0 ."
    assert symbols(processor, "He read it.", {"it": "AH1 T"})[-3:] == ["AH1", "T", "."]
    assert symbols(processor, "Blick.")[:3] == ["R", "IY0", "D"]
    with pytest.raises(DataError, match="QQ is not a phoneme of ARPAbet"):
        symbols(processor, "[[QQ]]")
    with pytest.raises(DataError, match="a front end of characters can't read phonemes"):
        symbols(PhonemeProcessor(FrontEndConfig(phonemizer="characters")), "[[AH0]]")


def test_all_phonemes_of_espeak_are_read_alone_and_together():
    for unit, phone in phones().items():
        assert from_either(f"p {unit} t", "ipa", False) == ("p", *phone.ipa, "t"), unit
    assert from_either("ˌʌndɚˈstænd", "arpabet", True) == ("AH2", "N", "D", "ER0", "S", "T", "AE1", "N", "D")
