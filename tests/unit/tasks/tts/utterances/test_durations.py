"""The end of each symbol of a text, from an alignment that may pronounce it in another way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.features.prosody import frame_durations
from vaak.audio.labelled import Interval
from vaak.audio.mel_config import MelConfig
from vaak.core.errors import DataError
from vaak.tasks.tts.utterances.durations import symbol_ends
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.processor import PhonemeProcessor

ARPABET = PhonemeProcessor(FrontEndConfig(alphabet="arpabet"))


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
    return [round(end, 6) for end in symbol_ends(read, is_phoneme, aligned, ARPABET)]


def test_equal_phonemes_have_the_times_of_their_phones():
    assert ends("sil HH IY1 sil", phones("sil HH IY1 sil")) == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("symbols", "aligned", "expected"),
    [
        pytest.param("sil HH , | IY1 . sil", "sil HH sil IY1 sil", [0.1, 0.2, 0.3, 0.3, 0.4, 0.4, 0.5], id="comma"),
        pytest.param("sil HH | IY1 sil", "sil HH sil IY1 sil", [0.1, 0.2, 0.3, 0.4, 0.5], id="boundary"),
        pytest.param("sil HH IY1 sil", "sil HH sil IY1 sil", [0.1, 0.3, 0.4, 0.5], id="nothing between them"),
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


def test_a_phone_of_two_symbols_shares_its_time():
    processor = PhonemeProcessor(FrontEndConfig(alphabet="arpabet"))
    found = symbol_ends(["sil", "AH0", "L", "sil"], [False, True, True, False], phones("sil əl sil"), processor)
    assert [round(end, 6) for end in found] == [0.1, 0.15, 0.2, 0.3]


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
        times = symbol_ends(symbols, [symbol in ("HH", "IY1", "M", "S") for symbol in symbols], found, ARPABET)
    except DataError:
        return
    assert len(times) == len(symbols)
    assert all(before <= after for before, after in pairwise(times))
    mel = MelConfig()
    num_samples = round(float(steps[-1]) * mel.sampling_rate) + data.draw(st.integers(0, 500))
    durations = frame_durations(times, mel, num_samples)
    assert durations.sum() == mel.num_frames(num_samples)
    assert durations.min() >= 0
