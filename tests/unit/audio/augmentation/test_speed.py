"""Speech at another speed: its pitch, its length, its times."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.augmentation.effects import at_speed
from vaak.core.errors import UserError

RATE = 16000


def sine(frequency: float, seconds: float = 2.0) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(round(seconds * RATE)) / RATE).astype(np.float32)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.1, 1.37, 2.0])
@pytest.mark.parametrize("frequency", [100.0, 1000.0, 3000.0])
def test_a_sine_becomes_the_sine_of_the_new_pitch_in_phase(factor: float, frequency: float) -> None:
    fast = at_speed(sine(frequency), factor)
    expected = sine(frequency * factor, 2 / factor + 0.001)[: len(fast)]
    inner = slice(RATE // 10, -RATE // 10)
    assert np.abs(fast[inner] - expected[inner]).max() < 1e-3


def test_what_passes_half_the_rate_is_lost_and_not_folded_back() -> None:
    assert np.abs(at_speed(sine(6000), 2.0)[RATE // 10 : -RATE // 10]).max() < 1e-3


@given(st.integers(0, 5000), st.floats(0.5, 2.0))
def test_the_length_is_exact(num_samples: int, factor: float) -> None:
    fast = at_speed(np.ones(num_samples, np.float32), factor)
    assert fast.shape == (round(num_samples / factor),)
    assert fast.dtype == np.float32
    assert np.isfinite(fast).all()


def test_an_impulse_lands_at_its_time() -> None:
    samples = np.zeros(RATE, np.float32)
    samples[9000] = 1
    for factor in (0.9, 1.1):
        assert abs(int(np.argmax(at_speed(samples, factor))) - 9000 / factor) <= 1


def test_the_same_bits_twice() -> None:
    samples = np.random.default_rng(0).standard_normal(RATE)
    assert np.array_equal(at_speed(samples, 0.9), at_speed(samples, 0.9))


def test_without_soxr_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(UserError, match=r"soxr.*pip install 'vaak\[audio\]'"):
        at_speed(sine(100), 0.9)
