"""The phoneme processor: text to symbols and ids and back, the same in every process, alone from its file."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.corpora.voices import sentences
from vaak.audio.espeak import speak
from vaak.audio.formats.alignments import read_textgrid
from vaak.core.errors import DataError, UserError
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.phonemes.alphabets import BOUNDARY, PAUSE, PUNCTUATION, SPECIAL
from vaak.text.speech.processor import PhonemeProcessor

TEXT = "Dr. Smith's café cost $3.50 in 1999 — the FBI knew!"
LEXICON = "the DH AH0\ncat K AE1 T\nsat S AE1 T\n"


@pytest.fixture
def lexicon(tmp_path: Path) -> str:
    path = tmp_path / "lexicon.dict"
    path.write_text(LEXICON, encoding="utf-8")
    return str(path)


def processor(**options: Any) -> PhonemeProcessor:
    return PhonemeProcessor(FrontEndConfig(**options))


def read(text: str, **options: Any) -> str:
    return " ".join("|" if one == " " else one for one in processor(**options).process(text).symbols)


def test_a_sentence_in_each_alphabet() -> None:
    assert read("The FBI, I know.") == "ð ə | ˌɛ f b ˌiː ˈaɪ , aɪ | n ˈoʊ ."
    assert read("The FBI, I know.", alphabet="arpabet") == "DH AH0 | EH2 F B IY2 AY1 , AY0 | N OW1 ."
    assert read("The FBI, I know.", alphabet="arpabet", stress=False) == "DH AH | EH F B IY AY , AY | N OW ."
    assert read("The FBI, I know.", phonemizer="characters") == "t h e | f | b | i , i | k n o w ."


def test_punctuation_becomes_pauses_and_boundaries_can_be_left_out() -> None:
    options = {"alphabet": "arpabet", "punctuation": "pause", "word_boundaries": False}
    assert read('"Go," he said... (now) go.', **options) == "G OW1 sil HH IY0 S EH1 D sil N AW1 sil G OW1 sil"


def test_a_lexicon_with_what_it_lacks_by_rules_or_espeak(lexicon: str) -> None:
    options = {"phonemizer": "lexicon", "lexicon": lexicon, "alphabet": "arpabet"}
    assert read("The cat's TV sat.", **options) == "DH AH0 | K AE1 T S | T IY2 V IY1 | S AE1 T ."
    assert read("the ship", **options, unknown_words="rules") == "DH AH0 | SH IH1 P"
    assert read("the ship", **options) == "DH AH0 | SH IH1 P"
    assert read("the cat", **options | {"alphabet": "ipa"}) == "ð ə | k ˈæ t"
    with pytest.raises(DataError, match="lacks ship, sank; add them"):
        processor(**options, unknown_words="error").process("the ship sank")


def test_a_lexicon_without_stress(tmp_path: Path) -> None:
    path = tmp_path / "plain.dict"
    path.write_text("cat K AE T\n", encoding="utf-8")
    with pytest.raises(UserError, match="marks no stress"):
        processor(phonemizer="lexicon", lexicon=str(path))
    found = read("cat", phonemizer="lexicon", lexicon=str(path), stress=False, alphabet="arpabet")
    assert found == "K AE T"


def test_ids_are_places_in_an_inventory_that_the_text_does_not_decide() -> None:
    one = processor()
    assert one.symbols[:4] == SPECIAL
    assert (one.pad_id, one.pause_id, one.symbols[:15]) == (0, 2, (*SPECIAL, *PUNCTUATION))
    assert len(one) == one.num_symbols == len(set(one.symbols)) == 218
    assert len(processor(alphabet="arpabet")) == 15 + 69
    assert len(processor(alphabet="arpabet", stress=False)) == 15 + 39
    assert len(processor(phonemizer="characters")) == 15 + 27
    found = one.process(TEXT)
    assert one.decode(found.ids) == list(found.symbols) == one.decode([*found.ids, 0, 0])
    assert list(found.ids) == one.encode(TEXT)
    assert found.text == TEXT
    assert found.normalised.startswith("Doctor Smith's cafe cost three dollars")
    phonemes = [symbol for symbol, spoken in zip(found.symbols, found.is_phoneme, strict=True) if spoken]
    assert not set(phonemes) & {*SPECIAL, *PUNCTUATION}
    assert len(phonemes) == len([one for one in found.symbols if one not in (*SPECIAL, *PUNCTUATION)])
    with pytest.raises(UserError, match="218 is not an id; ids go from 0 to 217"):
        one.decode([218])


@pytest.mark.parametrize("phonemizer", ["espeak", "lexicon", "characters"])
def test_its_file_is_all_it_needs(phonemizer: str, lexicon: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"phonemizer": phonemizer, "punctuation": "pause", "unknown_words": "rules"}
    one = processor(**options, lexicon=lexicon if phonemizer == "lexicon" else None)
    one.save(tmp_path / "phonemes.json")
    Path(lexicon).unlink()
    other = PhonemeProcessor.load(tmp_path / "phonemes.json")
    assert other.process_all([TEXT, "The cat sat."]) == one.process_all([TEXT, "The cat sat."])
    assert (other.fingerprint, other.config, other.symbols) == (one.fingerprint, one.config, one.symbols)
    assert pickle.loads(pickle.dumps(one)).process(TEXT) == one.process(TEXT)


def test_symbols_of_a_file_stay_even_if_those_of_a_later_version_differ(tmp_path: Path) -> None:
    content = json.loads(processor().to_json())
    content["symbols"].insert(40, "new")
    other = PhonemeProcessor.from_json(json.dumps(content))
    found = other.process(TEXT)
    assert other.decode(found.ids) == list(processor().process(TEXT).symbols)
    assert other.fingerprint != processor().fingerprint


def test_a_symbol_that_the_file_lacks_is_an_error_with_the_text() -> None:
    content = json.loads(processor().to_json())
    content["symbols"].remove("ˈæ")
    with pytest.raises(DataError, match="'the cat sat': ˈæ is not a symbol of this front end"):
        PhonemeProcessor.from_json(json.dumps(content)).process("the cat sat")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(format="another"),
        lambda content: content.update(version=2),
        lambda content: content.pop("symbols"),
        lambda content: content["options"].update(alphabet="klingon"),
        lambda content: content.update(symbols=["a"]),
    ],
)
def test_a_damaged_file_is_refused(change: Any, tmp_path: Path) -> None:
    content = json.loads(processor().to_json())
    change(content)
    path = tmp_path / "phonemes.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=r"phonemes\.json: this "):
        PhonemeProcessor.load(path)


@pytest.mark.parametrize("content", ["", "[]", "null", '{"format": 1', "\x80"])
def test_so_is_another_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "phonemes.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"phonemes\.json"):
        PhonemeProcessor.load(path)
    with pytest.raises(DataError, match="does not exist"):
        PhonemeProcessor.load(tmp_path / "nothing.json")


def test_the_fingerprint_follows_what_decides_ids(lexicon: str, tmp_path: Path) -> None:
    made = [
        processor(**options)
        for options in (
            {},
            {"alphabet": "arpabet"},
            {"stress": False},
            {"language": "en-gb"},
            {"normalise": False},
            {"punctuation": "pause"},
            {"word_boundaries": False},
            {"phonemizer": "characters"},
            {"phonemizer": "lexicon", "lexicon": lexicon},
        )
    ]
    assert len({one.fingerprint for one in made}) == len(made)
    copy = tmp_path / "copy.dict"
    copy.write_text(LEXICON, encoding="utf-8")
    assert processor(phonemizer="lexicon", lexicon=str(copy)).fingerprint == made[-1].fingerprint
    copy.write_text(f"{LEXICON}dog D AO1 G\n", encoding="utf-8")
    assert processor(phonemizer="lexicon", lexicon=str(copy)).fingerprint != made[-1].fingerprint


def test_another_process_gives_the_same_ids() -> None:
    code = (
        "from vaak.text.speech.processor import PhonemeProcessor; "
        f"p = PhonemeProcessor(); print(p.fingerprint, p.encode({TEXT!r}))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == f"{processor().fingerprint} {processor().encode(TEXT)}"


def test_it_imports_no_torch() -> None:
    code = "import sys, vaak.text.speech.processor; print('torch' in sys.modules, 'num2words' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_order_batches_threads_and_memory_change_nothing() -> None:
    texts = sentences(40, np.random.default_rng(3))
    alone = [processor().process(text) for text in texts[:5]]
    one = processor()
    together = one.process_all(texts)
    assert together[:5] == alone
    assert processor().process_all(texts[::-1])[::-1] == together == one.process_all(texts)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(one.process_all(texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [together] * 4


def test_thousands_of_sentences_a_minute() -> None:
    texts = sentences(500, np.random.default_rng(4))
    started = time.process_time()
    processor().process_all(texts)
    assert time.process_time() - started < 500 * 60 / 5000


@pytest.mark.parametrize("options", [{}, {"phonemizer": "characters"}], ids=["espeak", "characters"])
def test_a_text_of_two_thousand_words(options: dict[str, Any]) -> None:
    text = "On May 2, 1963, Dr. Roe paid five dollars for it. " * 200
    found = processor(**options).process(text)
    assert found.symbols.count(".") == 200
    assert found.symbols[: len(found.symbols) // 200] * 200 == found.symbols[: len(found.symbols) // 200 * 200]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        (" \n\t\x00", "the text is empty"),
        ("…!?", "there is nothing to speak"),
        ("hello नमस्ते", r"'hello नमस्ते': न म स ् त े \(Devanagari\)"),
        ("hi 🙂", "'hi 🙂': 🙂"),
    ],
)
def test_texts_that_cannot_be_spoken(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        processor().process(text)


def test_without_normalisation_figures_are_refused_and_accents_are_not() -> None:
    assert read("Café — “yes”", normalise=False, phonemizer="characters") == 'c a f e — " y e s "'
    with pytest.raises(DataError, match="'Room 5': 5 can't be pronounced"):
        processor(normalise=False).process("Room 5")


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_any_texts_are_spoken_or_refused(texts: list[str]) -> None:
    one = processor(alphabet="arpabet")
    for text in texts:
        try:
            found = one.process(text)
        except DataError:
            continue
        assert one.decode(found.ids) == list(found.symbols)
        assert any(found.is_phoneme)
        assert all(a != BOUNDARY or b not in (BOUNDARY, *PUNCTUATION) for a, b in pairwise(found.symbols))


@pytest.mark.parametrize("alphabet", ["ipa", "arpabet"])
def test_aligned_phones_of_the_montreal_forced_aligner(alphabet: str, vaak_data) -> None:
    one = processor(alphabet=alphabet)
    for file in sorted((vaak_data("ljspeech_mini") / "TextGrid" / "LJSpeech").glob("*.TextGrid"))[:5]:
        for phone in read_textgrid(file)["phones"]:
            (symbol,) = one.of_phone(phone.text)
            assert symbol in one.symbols, phone
    assert one.of_phone("") == one.of_phone("sp") == one.of_phone("sil") == (PAUSE,)
    assert one.of_phone("spn") == ("spn",)


@pytest.mark.parametrize("alphabet", ["ipa", "arpabet"])
def test_phones_of_the_built_in_voices(alphabet: str) -> None:
    one = processor(alphabet=alphabet)
    spoken = speak("the little car is over there", "en-us")
    symbols = [symbol for phoneme in spoken.phonemes for symbol in one.of_phone(phoneme.label)]
    text = [symbol for symbol in one.process("the little car is over there").symbols if symbol != BOUNDARY]
    assert symbols == text


def test_phones_that_are_not_known() -> None:
    for label in ("QQ", "ɣ", "AH7"):
        with pytest.raises(DataError, match="is not a phoneme"):
            processor().of_phone(label)
    with pytest.raises(DataError, match="characters"):
        processor(phonemizer="characters").of_phone("AH0")


def test_options_that_do_not_fit() -> None:
    for options in ({"phonemizer": "lexicon"}, {"lexicon": "x"}, {"language": "xx"}, {"alphabet": "x"}, {"unknown": 1}):
        with pytest.raises(ValueError, match=r"lexicon|language|alphabet|unknown"):
            FrontEndConfig.model_validate(options)


@pytest.mark.parametrize(
    ("text", "guessed"),
    [
        ("It is 3/5/2024, or 25/5/2024, or 5/5/2024.", {"3/5/2024 with the month first": 1}),
        ("Bake it 3-4 hours, pages 3-4, or 3–4.", {"3-4 as a range": 1}),
        ("Take 1/2, or 1/2 of it; 9/11 and 24/7.", {"1/2 as a fraction": 1, "9/11 as two numbers": 1}),
        ("She has 1984 pounds; in 1984.", {"1984 as a count": 1}),
        ("Ashoka II and George II met on Hill St. John.", {"Ashoka II as the second": 1, "Hill St. John as Saint": 1}),
        ("No. 5 is alive.", {"No. 5 as Number": 1}),
        ("Item No. 5 at the FBI.", {}),
        ("RELAX at WDSU.", {"STOP as a word": 1, "FPCC as letters": 1}),
    ],
)
def test_guesses_between_readings_are_counted(text: str, guessed: dict[str, int]) -> None:
    one, plain = PhonemeProcessor().process_all([text, "A plain text."])
    assert dict(one.guesses) == guessed
    assert plain.guesses == ()
