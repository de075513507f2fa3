"""The end of each symbol of a text, from an alignment that may pronounce it in another way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.features.pitch import frame_durations
from vaak.audio.formats.alignments import read_alignment
from vaak.audio.mel_config import MelConfig
from vaak.audio.segments import Interval
from vaak.core.errors import DataError
from vaak.tasks.tts.recordings import aligned_symbols
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.processor import PhonemeProcessor

ARPABET = PhonemeProcessor(FrontEndConfig(alphabet="arpabet"))
PAUSES = PhonemeProcessor(FrontEndConfig(alphabet="arpabet", punctuation="pause"))


def phones(text: str, step: float = 0.1) -> list[Interval]:
    """Phones of equal length, one after another."""
    return [
        Interval(round(step * place, 6), round(step * (place + 1), 6), label)
        for place, label in enumerate(text.split())
    ]


def ends(symbols: str, aligned: list[Interval]) -> list[float]:
    """Symbols are separated by blanks, and | is a boundary of words."""
    read = [" " if symbol == "|" else symbol for symbol in symbols.split()]
    is_phoneme = [symbol[0].isalpha() and symbol != "sil" for symbol in read]
    found = aligned_symbols(read, is_phoneme, aligned, ARPABET)
    assert found.symbols == read
    return [round(end, 6) for end in found.ends]


def with_pauses(symbols: str, aligned: list[Interval], processor: PhonemeProcessor = PAUSES) -> dict[str, Any]:
    """The symbols that are trained, separated by blanks, and how long each lasts."""
    read = [" " if symbol == "|" else symbol for symbol in symbols.split()]
    found = aligned_symbols(read, [one[0].isalpha() and one != "sil" for one in read], aligned, processor)
    durations = np.diff([0.0, *found.ends]).round(6).tolist()
    return {"symbols": " ".join(one.replace(" ", "|") for one in found.symbols), "durations": durations}


def test_equal_phonemes_have_the_times_of_their_phones():
    assert ends("sil HH IY1 sil", phones("sil HH IY1 sil")) == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("symbols", "aligned", "expected"),
    [
        pytest.param("sil HH , | IY1 . sil", "sil HH sil IY1 sil", [0.1, 0.2, 0.3, 0.3, 0.4, 0.4, 0.5], id="comma"),
        pytest.param("sil HH | IY1 sil", "sil HH sil IY1 sil", [0.1, 0.2, 0.3, 0.4, 0.5], id="boundary"),
        pytest.param("sil HH | IY1 sil", "HH IY1", [0.0, 0.1, 0.1, 0.2, 0.2], id="no pause at all"),
        pytest.param('sil HH " , IY1 sil', "sil HH sil IY1 sil", [0.1, 0.2, 0.2, 0.3, 0.4, 0.5], id="quote"),
        pytest.param("sil HH IY2 M sil", "sil HH IY0 M sil", [0.1, 0.2, 0.3, 0.4, 0.5], id="other stress"),
        pytest.param("sil HH IY1 M sil", "sil HH EY1 M sil", [0.1, 0.2, 0.3, 0.4, 0.5], id="other vowel"),
        pytest.param("sil HH IY1 M sil", "sil HH M sil", [0.1, 0.2, 0.2, 0.3, 0.4], id="a phone less"),
        pytest.param("sil HH M sil", "sil HH IY1 M sil", [0.1, 0.3, 0.4, 0.5], id="a phone more"),
        pytest.param(
            "sil HH | S AO1 M | N sil", "sil HH spn N sil", [0.1, 0.2, 0.2, 0.233333, 0.266667, 0.3, 0.3, 0.4, 0.5],
            id="unknown word",
        ),
    ],
)  # fmt: skip
def test_pauses_and_differences(symbols: str, aligned: str, expected: list[float]):
    assert ends(symbols, phones(aligned)) == expected


HEARD = "sil HH sil IY1 sil"


@pytest.mark.parametrize("processor", [PAUSES, ARPABET], ids=["pause", "keep"])
def test_a_pause_that_was_heard_between_phonemes_is_trained_as_one(processor: PhonemeProcessor):
    """Of ``word_boundaries: false``: it lengthened the phoneme before it, which was then taught silence."""
    expected = {"symbols": "sil HH sil IY1 sil", "durations": [0.1] * 5}
    assert with_pauses("sil HH IY1 sil", phones(HEARD), processor) == expected


def test_a_pause_takes_the_place_of_a_boundary_where_punctuation_is_written_as_pauses():
    assert with_pauses("sil HH | IY1 sil", phones(HEARD)) == {"symbols": "sil HH sil IY1 sil", "durations": [0.1] * 5}
    silent = {"symbols": "sil HH | IY1 sil", "durations": [0.1, 0.1, 0.0, 0.1, 0.1]}
    assert with_pauses("sil HH | IY1 sil", phones("sil HH IY1 sil")) == silent


def test_a_pause_of_the_text_stays_whether_it_was_heard_or_not():
    assert with_pauses("sil HH sil IY1 sil", phones(HEARD))["durations"] == [0.1] * 5
    unheard = with_pauses("sil HH sil IY1 sil", phones("sil HH IY1 sil"))
    assert unheard == {"symbols": "sil HH sil IY1 sil", "durations": [0.1, 0.1, 0.0, 0.1, 0.1]}


def test_pauses_that_an_aligner_heard_in_recordings_are_trained_as_pauses(vaak_data: Callable[[str], Path]):
    folder = vaak_data("ljspeech_mini")
    options = FrontEndConfig(alphabet="arpabet", punctuation="pause", word_boundaries=False)
    processor, heard, kept = PhonemeProcessor(options), 0, 0
    for line in (folder / "metadata.csv").read_text().splitlines():
        aligned = read_alignment(folder / "TextGrid" / "LJSpeech" / f"{line.split('|')[0]}.TextGrid")["phone"]
        processed = processor.process(line.split("|")[-1])
        symbols, are_phonemes = ["sil", *processed.symbols, "sil"], [False, *processed.is_phoneme, False]
        found = aligned_symbols(symbols, are_phonemes, aligned, processor)
        pauses = {round(end, 2) for symbol, end in zip(*found, strict=True) if symbol == "sil"}
        inner = [phone.end for phone in aligned[1:-1] if not phone.text and phone.end - phone.start >= 0.1]
        heard, kept = heard + len(inner), kept + sum(round(end, 2) in pauses for end in inner)
    assert heard == 42
    assert kept >= 41


def test_less_than_a_pause_lengthens_the_phoneme_before_it():
    gap = [Interval(0.0, 0.1, "HH"), Interval(0.12, 0.2, "IY1")]
    assert with_pauses("sil HH IY1 sil", gap)["symbols"] == "sil HH IY1 sil"
    assert with_pauses("sil HH IY1 sil", gap)["durations"] == [0.0, 0.12, 0.08, 0.0]


def test_a_phone_of_two_symbols_shares_its_time():
    processor = PhonemeProcessor(FrontEndConfig(alphabet="arpabet"))
    found = aligned_symbols(["sil", "AH0", "L", "sil"], [False, True, True, False], phones("sil əl sil"), processor)
    assert [round(end, 6) for end in found.ends] == [0.1, 0.15, 0.2, 0.3]


def test_an_alignment_of_another_text_is_an_error():
    with pytest.raises(DataError, match="of another text: only 1 of 4 phonemes"):
        ends("sil HH IY1 S AO1 sil", phones("sil M EY1 G OW1 HH N AW1 sil"))


def test_an_alignment_of_pauses_is_an_error():
    with pytest.raises(DataError, match="no phonemes"):
        ends("sil HH sil", phones("sil sil"))


def test_an_unknown_label_is_an_error():
    with pytest.raises(DataError, match="XY"):
        ends("sil HH sil", phones("sil XY sil"))


@given(st.data())
def test_frames_always_add_up_to_the_spectrogram(data: Any):
    labels = st.sampled_from(["HH", "IY1", "M", "S", "sil", "spn"])
    aligned = data.draw(st.lists(labels, min_size=1, max_size=12))
    steps = np.cumsum(data.draw(st.lists(st.floats(0.001, 0.4), min_size=len(aligned), max_size=len(aligned))))
    found = [
        Interval(start, end, label)
        for label, start, end in zip(aligned, [0.0, *steps[:-1].tolist()], steps.tolist(), strict=True)
    ]
    symbols = data.draw(st.lists(st.sampled_from(["HH", "IY1", "M", "S", " ", ",", "."]), max_size=12))
    symbols = ["sil", *symbols, "sil"]
    try:
        are_phonemes = [symbol in ("HH", "IY1", "M", "S") for symbol in symbols]
        trained, times = aligned_symbols(symbols, are_phonemes, found, ARPABET)
    except DataError:
        return
    assert len(times) == len(trained)
    assert [symbol for symbol in trained if symbol != "sil"] == symbols[1:-1]
    assert all(before <= after for before, after in pairwise(times))
    mel = MelConfig()
    num_samples = round(float(steps[-1]) * mel.sampling_rate) + data.draw(st.integers(0, 500))
    durations = frame_durations(times, mel, num_samples)
    assert durations.sum() == mel.num_frames(num_samples)
    assert durations.min() >= 0
