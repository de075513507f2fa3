"""Noise has the power, the slope, the voices asked for; its level is measured against speech, not its pauses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.augmentation.effects import (
    ACTIVE_BLOCK,
    active_power,
    at_snr,
    babble,
    coloured_noise,
    drawn_noise,
    file_noise,
)
from vaak.audio.config import NoiseConfig
from vaak.core.errors import DataError, UserError

RATE = 16000


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def power(samples: np.ndarray) -> float:
    return float(np.mean(np.square(samples, dtype=np.float64)))


def decibels(ratio: float) -> float:
    return 10 * np.log10(ratio)


@given(st.integers(0, 3000), st.integers(0, 100))
def test_coloured_noise_has_power_one_at_any_length(num_samples: int, seed: int) -> None:
    noise = coloured_noise(num_samples, generator(seed))
    assert noise.shape == (num_samples,)
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()
    if num_samples > 1:
        assert power(noise) == pytest.approx(1, rel=1e-4)


def test_the_spectral_slope_is_the_one_drawn_between_white_and_brown() -> None:
    slopes = []
    for seed in range(20):
        noise = coloured_noise(2**17, generator(seed)).astype(np.float64)
        spectrum = np.abs(np.fft.rfft(noise)) ** 2
        edges = np.geomspace(100, 7000, 20) * len(noise) / RATE
        bands = np.array([spectrum[int(a) : int(b)].mean() for a, b in pairwise(edges)])
        centres = np.sqrt(edges[:-1] * edges[1:])
        slopes.append(-np.polyfit(np.log(centres), np.log(bands), 1)[0])
        drawn = generator(seed).uniform(0, 2)
        assert slopes[-1] == pytest.approx(drawn, abs=0.05)
    assert min(slopes) < 0.4
    assert max(slopes) > 1.6


@given(st.floats(-10, 40), st.integers(0, 20))
def test_the_noise_is_so_many_decibels_beneath_the_speech(snr_db: float, pauses: int) -> None:
    speech = 0.1 * generator(1).standard_normal(40 * ACTIVE_BLOCK)
    with_pauses = np.concatenate([speech, np.zeros(pauses * ACTIVE_BLOCK)])
    noisy = at_snr(with_pauses, coloured_noise(len(with_pauses), generator(2)), snr_db)
    assert noisy.dtype == np.float32
    added = noisy.astype(np.float64) - with_pauses
    assert decibels(power(speech) / power(added)) == pytest.approx(snr_db, abs=0.05)  # pauses change nothing


def test_active_power_counts_neither_pauses_nor_their_faint_noise() -> None:
    speech = generator(0).standard_normal(100 * ACTIVE_BLOCK)
    faint = 0.01 * generator(1).standard_normal(300 * ACTIVE_BLOCK + 17)
    assert active_power(np.concatenate([speech, faint])) == pytest.approx(power(speech), rel=1e-6)
    assert active_power(np.empty(0)) == 0
    assert active_power(np.ones(7)) == 1


@pytest.mark.parametrize("num_samples", [0, 1, 500])
def test_silence_stays_silence(num_samples: int) -> None:
    silence = np.zeros(num_samples, np.float32)
    assert not at_snr(silence, coloured_noise(num_samples, generator()), 10).any()
    assert np.array_equal(at_snr(silence + 0.5, silence, 10), silence + np.float32(0.5))


def test_babble_is_several_voices_equally_loud() -> None:
    tones = iter([(0.5, 300.0), (0.01, 700.0), (2.0, 1500.0)])

    def voice() -> np.ndarray:
        amplitude, frequency = next(tones)
        return amplitude * np.sin(2 * np.pi * frequency * np.arange(RATE) / RATE)  # a second: whole periods go round

    mixed = babble(voice, 3 * RATE, 3, generator())
    assert mixed.shape == (3 * RATE,)
    assert power(mixed) == pytest.approx(1, rel=1e-4)
    spectrum = np.abs(np.fft.rfft(mixed))
    peaks = [spectrum[3 * frequency] for frequency in (300, 700, 1500)]
    assert peaks == pytest.approx([peaks[0]] * 3, rel=0.01)


def test_babble_of_silent_voices_is_silence() -> None:
    assert not babble(lambda: np.zeros(10, np.float32), 50, 3, generator()).any()
    assert not babble(lambda: np.zeros(0, np.float32), 50, 3, generator()).any()


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    (tmp_path / "street").mkdir()
    ramp = np.linspace(0, 0.5, 4 * RATE)
    soundfile.write(tmp_path / "street" / "long.wav", ramp, RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "short.flac", np.stack([ramp[:800], -ramp[:800]], axis=1) + 0.25, RATE)
    (tmp_path / "notes.txt").write_text("not a recording")
    return tmp_path


def test_recordings_are_drawn_in_any_depth_at_any_place(recordings: Path) -> None:
    step = 0.5 / (4 * RATE - 1)
    starts: set[str | float] = set()
    for seed in range(12):
        noise = file_noise(recordings, RATE, RATE, generator(seed))
        assert noise.shape == (RATE,)
        assert noise.dtype == np.float32
        assert np.array_equal(noise, file_noise(recordings, RATE, RATE, generator(seed)))
        if np.allclose(noise, 0.25, atol=1e-4):  # the mean of the channels of the short one, which goes round
            starts.add("short")
        else:
            assert np.diff(noise) == pytest.approx(step, abs=1e-6)
            starts.add(round(float(noise[0]), 2))
    assert "short" in starts
    assert len(starts) > 4


def test_a_short_recording_goes_round_without_a_gap(tmp_path: Path) -> None:
    ramp = np.arange(100) / 100
    soundfile.write(tmp_path / "ramp.wav", ramp, RATE, subtype="FLOAT")
    noise = file_noise(tmp_path, 1000, RATE, generator(3))
    place = round(float(noise[0]) * 100)
    assert noise == pytest.approx(np.resize(np.roll(ramp, -place), 1000), abs=1e-6)


def test_recordings_of_another_rate_are_resampled(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(3 * 44100) / 44100)
    soundfile.write(tmp_path / "tone.wav", tone, 44100, subtype="FLOAT")
    spectrum = np.abs(np.fft.rfft(file_noise(tmp_path, RATE, RATE, generator())))
    assert int(np.argmax(spectrum)) == 440


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"RIFF", "not audio"), (np.empty(0), "no samples"), (np.full(100, np.nan), "not a number")],
)
def test_a_bad_recording_is_named(tmp_path: Path, content: bytes | np.ndarray, said: str) -> None:
    path = tmp_path / "bad.wav"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        soundfile.write(path, content, RATE, subtype="FLOAT")
    with pytest.raises(DataError, match=rf"bad\.wav: .*{said}"):
        file_noise(tmp_path, 50, RATE, generator())


def test_a_folder_without_recordings_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no recordings of noise"):
        file_noise(tmp_path / "missing", 50, RATE, generator())


def test_the_type_asked_for_is_drawn(recordings: Path) -> None:
    def drawn(**options: Any) -> np.ndarray:
        return drawn_noise(NoiseConfig(**options), 500, RATE, generator(), lambda: np.ones(100, np.float32))

    assert np.array_equal(drawn(type="coloured"), coloured_noise(500, generator()))
    assert np.array_equal(drawn(type="files", folder=str(recordings)), file_noise(recordings, 500, RATE, generator()))
    assert drawn(type="babble") == pytest.approx(1)
    with pytest.raises(UserError, match="babble requires utterances"):
        drawn_noise(NoiseConfig(type="babble"), 500, RATE, generator())
