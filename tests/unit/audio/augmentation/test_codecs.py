"""Codecs: the laws of G.711 as the standard writes them, and nothing moves in time."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from vaak.audio.augmentation.effects import RATES, coded, coloured_noise, resampled
from vaak.audio.espeak import speak
from vaak.core.errors import UserError

RATE = 16000
EVERY_SAMPLE = np.arange(-32768, 32768)
codecs = pytest.mark.parametrize("codec", sorted(RATES))


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def speechlike(rate: int, seconds: float = 2.0) -> np.ndarray:
    """Return bursts of noise below 2 kHz, which a speech codec keeps."""
    size = round(seconds * rate)
    spectrum = np.fft.rfft(generator(5).standard_normal(size))
    spectrum[np.fft.rfftfreq(size, 1 / rate) > 2000] = 0
    bursts = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * np.arange(size) / rate)
    return (0.3 * bursts * np.fft.irfft(spectrum, size) / np.sqrt(2000 / (rate / 2))).astype(np.float32)


def delay(samples: np.ndarray, later: np.ndarray) -> int:
    """By how many samples the second is later: the peak of the cross-correlation."""
    size = 2 * len(samples)
    correlation = np.fft.irfft(np.fft.rfft(later, size) * np.conj(np.fft.rfft(samples, size)), size)
    peak = int(np.argmax(correlation))
    return peak if peak < len(samples) else peak - size


def mu_law(sample: int) -> int:
    """G.711, table 2: sign and magnitude, 8 chords of 16 steps, each chord twice as coarse as the one before."""
    magnitude = min(abs(sample) // 4, 8158) + 33
    chord = magnitude.bit_length() - 6
    step = (magnitude >> (chord + 1)) & 15
    decoded = 4 * (((2 * step + 33) << chord) - 33)
    return -decoded if sample < 0 else decoded


def a_law(sample: int) -> int:
    """G.711, table 1: the first two chords have one step; decoded values are in the middle of theirs."""
    magnitude = min(abs(sample) // 16, 2047)
    width = 1 << max(magnitude.bit_length() - 5, 0)
    decoded = 8 * (2 * (magnitude // width) * width + width)
    return -decoded if sample < 0 else decoded


@pytest.mark.parametrize(("codec", "law"), [("mulaw", mu_law), ("alaw", a_law)])
def test_the_laws_are_those_of_the_standard_for_every_sample(codec: str, law) -> None:
    through = coded((EVERY_SAMPLE / 32768).astype(np.float32), 8000, codec, generator()) * 32768
    expected = np.array([law(int(sample)) for sample in EVERY_SAMPLE])
    assert np.array_equal(through, expected)
    assert len(np.unique(expected)) == {"mulaw": 255, "alaw": 256}[codec]


@codecs
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
def test_nothing_moves_and_most_stays(codec: str, rate: int) -> None:
    samples = speechlike(rate)
    for seed in range(3):
        through = coded(samples, rate, codec, generator(seed))
        assert abs(delay(samples, through)) <= rate / 1000  # a tenth of a frame
        assert np.corrcoef(samples, through)[0, 1] > 0.9
        assert 0.8 < np.std(through) / np.std(samples) < 1.1
        assert not np.array_equal(samples, through)


@codecs
def test_the_same_bits_twice(codec: str) -> None:
    samples = speechlike(RATE)
    assert np.array_equal(coded(samples, RATE, codec, generator(7)), coded(samples, RATE, codec, generator(7)))


@pytest.mark.parametrize("codec", ["opus", "opus_fast", "vorbis", "mp3"])
def test_the_quality_is_drawn(codec: str) -> None:
    samples = coloured_noise(RATE, generator()) * np.float32(0.1)
    assert not np.array_equal(coded(samples, RATE, codec, generator(1)), coded(samples, RATE, codec, generator(2)))


@codecs
@settings(max_examples=20)
@given(st.integers(0, 3000), st.sampled_from([8000, 11000, 16000, 22050, 96000]), st.floats(0, 3))
def test_length_and_type_are_kept_and_all_is_finite(codec: str, num_samples: int, rate: int, loudness: float) -> None:
    samples = coloured_noise(num_samples, generator()) * np.float32(loudness)
    through = coded(samples, rate, codec, generator())
    assert through.shape == samples.shape
    assert through.dtype == np.float32
    assert np.isfinite(through).all()


@codecs
def test_loud_audio_is_not_clipped(codec: str) -> None:
    loud = 5 * speechlike(RATE)
    assert np.abs(loud).max() > 2
    through = coded(loud, RATE, codec, generator())
    assert np.abs(through).max() > 0.8 * np.abs(loud).max()
    assert np.corrcoef(loud, through)[0, 1] > 0.9


@codecs
def test_silence_stays_almost_silent(codec: str) -> None:
    assert np.abs(coded(np.zeros(RATE, np.float32), RATE, codec, generator())).max() < 5e-4  # a-law has no 0


@pytest.mark.slow
@codecs
def test_three_minutes_at_once(codec: str) -> None:
    samples = np.resize(speechlike(RATE), RATE * 180)
    through = coded(samples, RATE, codec, generator())
    assert through.shape == samples.shape
    assert abs(delay(samples[-RATE * 60 :], through[-RATE * 60 :])) <= 16


def test_a_codec_that_libsndfile_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "check_format", lambda container, coding: container != "MP3")
    with pytest.raises(UserError, match="lacks the codec mp3: pip install -U soundfile"):
        coded(speechlike(RATE), RATE, "mp3", generator())


def test_without_soundfile_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match=r"pip install 'vaak\[audio\]'"):
        coded(speechlike(RATE), RATE, "opus", generator())


def test_without_pyav_opus_fast_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"opus_fast requires PyAV: pip install 'vaak\[m4a\]'"):
        coded(speechlike(RATE), RATE, "opus_fast", generator())


def distortion(codec: str, coarseness: float, samples: np.ndarray) -> float:
    """Decibels between the spectra of short stretches before and after, below 4 kHz."""
    drawn: Any = SimpleNamespace(uniform=lambda low, high: coarseness)
    spectra = [
        np.abs(np.fft.rfft(one[: len(one) // 640 * 640].reshape(-1, 640) * np.hanning(640)))[:, 1:161] ** 2
        for one in (samples, coded(samples, RATE, codec, drawn))
    ]
    levels = [10 * np.log10(one.reshape(len(one), 20, 8).mean(2) + 1e-6) for one in spectra]
    return float(np.sqrt(np.mean((levels[0] - levels[1]) ** 2)))


@pytest.mark.slow
def test_opus_fast_distorts_as_opus_does_in_less_time() -> None:
    """Over the bit rates that are drawn: libopus's other codings, below its complexity of 7, differ by a third."""
    spoken = speak("The quick brown fox jumps over the lazy dog, and then it sleeps for a while.", "en")
    samples, times = resampled(spoken.samples, spoken.sampling_rate, RATE), dict.fromkeys(("opus", "opus_fast"), 0.0)
    for coarseness in (0.84, 0.9, 0.97):
        apart = {}
        for codec in times:
            begin = time.process_time()
            apart[codec] = distortion(codec, coarseness, samples)
            times[codec] += time.process_time() - begin
        assert apart["opus_fast"] == pytest.approx(apart["opus"], rel=0.25)
    assert times["opus_fast"] < 0.75 * times["opus"]
