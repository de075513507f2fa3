"""Every language of espeak-ng: there is a voice, and all that it says has symbols; words of English within others."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import espeakng_loader
import pytest

from quick_cases import mostly_slow
from vaak.config.base import SectionError
from vaak.core.errors import DataError
from vaak.text.speech.config import LANGUAGES, FrontEndConfig
from vaak.text.speech.languages import normalise
from vaak.text.speech.phonemes.alphabets import STRESS_MARKS, ipa_inventory
from vaak.text.speech.processor import PhonemeProcessor, Processed
from vaak.text.speech.ssml import Marks, parse_spans

WITHOUT_FIGURES = ("chr", "cv", "sjn")
"""Those in which espeak-ng has no words for numbers."""
LEFT_OUT = {"fo", "kaa", "kl", "xex"}
LINES = (
    "1 25 1947 3,5", "hello world", "मैं जा रहा हूँ।", "Привет, мир!", "مرحبا بالعالم؟", "שלום עולם", "你好，世界。",
    "こんにちは", "안녕하세요", "สวัสดี", "ሰላም።", "γειά σου κόσμε", "வணக்கம்", "నమస్కారం", "নমস্কার ২৫", "გამარჯობა", "բարեւ",
    "မင်္ဂလာပါ", "ᎣᏏᏲ", "žluťoučký kůň", "tiếng Việt", "gœð øre ß",
)  # fmt: skip


def test_the_languages_are_those_of_the_wheel() -> None:
    folder = Path(espeakng_loader.get_data_path()) / "lang"
    there = {path.name.lower() for path in folder.rglob("*") if path.is_file()}
    assert {*LANGUAGES} == {one for one in there if not one.startswith("en")} - LEFT_OUT


@pytest.mark.parametrize("part", mostly_slow(range(4), 0))
def test_whatever_a_language_says_has_symbols(part: int) -> None:
    """Of any script: letters that a language hasn't are read by their names."""
    for language in LANGUAGES[part::4]:
        processor = PhonemeProcessor(FrontEndConfig(language=language))
        for line, found in zip(LINES, spoken(processor), strict=True):
            if found is None:
                assert language in WITHOUT_FIGURES, (language, line)
                continue
            assert any(found.is_phoneme), (language, line)
            assert processor.decode(found.ids) == list(found.symbols)
            assert {*found.symbols} <= {*processor.symbols}


def spoken(processor: PhonemeProcessor) -> list[Processed | None]:
    """All lines; None for one that is refused because there is nothing to speak."""
    try:
        return [*processor.process_all(LINES)]
    except DataError:
        found: list[Processed | None] = []
        for line in LINES:
            try:
                found.append(processor.process(line))
            except DataError as error:
                found.append(None if "there is nothing to speak in it" in str(error) else pytest.fail(str(error)))
        return found


def test_words_of_english_in_hindi_are_said_as_english_says_them() -> None:
    hindi, english = PhonemeProcessor(FrontEndConfig(language="hi")), PhonemeProcessor(FrontEndConfig(language="en-gb"))
    found = hindi.process("मेरी meeting है। FBI ने कहा")
    said = "".join(found.symbols)
    assert f" {''.join(english.process('meeting').symbols)} " in said
    assert ".ˈɛf bˈiː ˈaɪ nˈeː" in said
    assert hindi.process("पच्चीस").ids == hindi.process("२५").ids == hindi.process("25").ids


def test_symbols_of_a_language_are_in_the_saved_processor_and_stress_is_optional(tmp_path: Path) -> None:
    processor = PhonemeProcessor(FrontEndConfig(language="hi", stress=False))
    processor.save(tmp_path / "processor.json")
    again = PhonemeProcessor.load(tmp_path / "processor.json")
    assert again.config.language == "hi"
    assert again.process("नमस्ते दुनिया!") == processor.process("नमस्ते दुनिया!")
    assert not {*STRESS_MARKS.values()} & {*processor.process("नमस्ते").symbols}
    assert set(ipa_inventory(False)) < set(ipa_inventory(True))
    assert processor.of_phone("tʰ") == ("t", "ʰ")
    with pytest.raises(DataError, match="Ж is not of IPA"):
        processor.symbols_of_phonemes("Ж")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "hindi"}, "espeak-ng has no language hindi here; did you mean"),
        ({"language": "kl"}, "espeak-ng has no language kl here"),
        ({"language": "hi", "alphabet": "arpabet"}, "language hi requires phonemizer: espeak and alphabet: ipa"),
        ({"language": "hi", "phonemizer": "characters"}, "language hi requires phonemizer: espeak"),
    ],
)
def test_what_is_not_there_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SectionError, match=message):
        FrontEndConfig(**options)


@pytest.mark.parametrize(
    ("language", "written", "said"),
    [
        ("de", "Es sind 21, nicht 3,5.", "Es sind einundzwanzig, nicht drei Komma fünf."),
        ("fr", "« 80 » ans", '" quatre-vingts " ans'),
        ("bn", "২৫ টাকা।", "পঁচিশ টাকা."),
        ("sw", "watu 25", "watu 25"),
        ("de", "007, 1.234, A4", "007, 1.234, A4"),
    ],
)
def test_figures_are_written_in_words_where_a_library_has_them(language: str, written: str, said: str) -> None:
    assert normalise(written, language) == said


@pytest.mark.parametrize("language", ["de", "fr", "es", "it", "pl", "ru", "fi", "uk", "he", "nl"])
def test_say_as_and_money_have_the_library_s_own_words(language: str) -> None:
    from num2words import num2words

    lang = language.partition("-")[0]

    def said(kind: str, text: str, form: str = "") -> str:
        tag = f'<say-as interpret-as="{kind}"{form}>{text}</say-as>'
        [span] = parse_spans(f"<speak>{tag}</speak>", Marks(language=language))
        return span.text

    assert said("cardinal", "21") == num2words(21, lang=lang)
    assert said("ordinal", "21") == num2words(21, lang=lang, to="ordinal")
    assert said("date", "1947", ' format="y"') == num2words(1947, lang=lang, to="year")
    euros = num2words(Decimal("2.50"), lang=lang, to="currency", currency="EUR")
    assert said("currency", "€2.50") == said("currency", "2,50 EUR") == euros
    assert normalise("€ 2,50", language) == euros
    whole = normalise("3 €", language)
    assert num2words(Decimal("3.00"), lang=lang, to="currency", currency="EUR").startswith(whole)
    assert "€" not in whole
    assert said("digits", "07") == f"{num2words(0, lang=lang)} {num2words(7, lang=lang)}"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ('"cardinal"', "46", "छियालीस"),
        ('"ordinal"', "२१", "इक्कीसवाँ"),
        ('"date" format="dmy"', "15/08/1947", "पंद्रह अगस्त उन्नीस सौ सैंतालीस"),
        ('"date" format="y"', "1857", "अठारह सौ सत्तावन"),
        ('"currency"', "₹2.50", "दो रुपये पचास पैसे"),
        ('"telephone"', "0-12", "शून्य एक दो"),
    ],
)
def test_say_as_in_hindi(kind: str, text: str, expected: str) -> None:
    [span] = parse_spans(f"<speak><say-as interpret-as={kind}>{text}</say-as></speak>", Marks(language="hi"))
    assert span.text == expected


@pytest.mark.parametrize(
    ("language", "kind", "text"),
    [
        ("cs", "ordinal", "3"),  # the library has none
        ("bn", "ordinal", "3"),  # it gives the cardinal
        ("sw", "cardinal", "3"),
        ("hu", "currency", "€3"),  # it has English words
        ("de", "currency", "¥3"),
        ("de", "date", "3.5.2024"),
        ("hi", "date", "31/13/2024"),
        ("de", "cardinal", "drei"),
    ],
)
def test_what_no_rule_reads_is_one_line(language: str, kind: str, text: str) -> None:
    with pytest.raises(DataError, match=f"{text}' can't be read as {kind} in {language}; write it in words"):
        parse_spans(f'<speak><say-as interpret-as="{kind}">{text}</say-as></speak>', Marks(language=language))


def test_given_phonemes_are_of_ipa() -> None:
    processor = PhonemeProcessor(FrontEndConfig(language="hi"))
    marks = Marks(language="hi")
    [span] = parse_spans("वह [[vaːk]] है।", marks)
    [found] = processor.process_all([span.text], marks.phonemes)
    assert "".join(found.symbols) == "ʋˌəh vaːk hɛː."
