"""Reverberation: images against a triple sum, the reverberation time measured, voices at their time and level."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.augmentation.effects import SPEED_OF_SOUND, Placement, images, reflection, reverberated, room_responses

RATE = 16000


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def decay(response: np.ndarray) -> np.ndarray:
    """Energy yet to come, in decibels. Source: Schroeder 1965, "New method of measuring reverberation time"."""
    energy = np.cumsum(np.square(response[::-1], dtype=np.float64))[::-1]
    return 10 * np.log10(energy / energy[0] + 1e-30)


def measured_t60(response: np.ndarray, rate: int) -> float:
    """From a line through the decay from -5 to -35 dB (ISO 3382, T30)."""
    levels = decay(response)
    inside = (levels <= -5) & (levels >= -35)
    slope, _ = np.polyfit(np.arange(len(levels))[inside] / rate, levels[inside], 1)
    return -60 / slope


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize(
    ("t60", "tolerance"), [(0.1, 0.2), (0.15, 0.1), (0.2, 0.1), (0.3, 0.1), (0.6, 0.1), (1.0, 0.1), (2.0, 0.1)]
)
def test_the_reverberation_time_is_the_one_asked_for(t60: float, tolerance: float, rate: int) -> None:
    for seed in range(10):
        for response in room_responses(2, rate, t60, generator(seed)):
            assert measured_t60(response, rate) == pytest.approx(t60, rel=tolerance)


def test_images_are_those_of_allen_and_berkley() -> None:
    size, microphone, voice = np.array([3.1, 4.2, 2.5]), np.array([0.7, 3.0, 1.2]), np.array([2.2, 0.8, 1.7])
    reach, expected = 14.0, []
    for m, sides in product(product(range(-4, 5), repeat=3), product((0, 1), repeat=3)):  # their formula 10
        axes = zip(sides, voice, microphone, m, size, strict=True)
        image = [(1 - 2 * q) * x - ear + 2 * r * side for q, x, ear, r, side in axes]
        number = sum(abs(r - q) + abs(r) for q, r in zip(sides, m, strict=True))
        if np.linalg.norm(image) <= reach:
            expected.append((round(float(np.linalg.norm(image)), 9), number))
    distances, walls = images(Placement(size, microphone, voice), reach)
    assert len(expected) > 100
    assert sorted(zip(distances.round(9).tolist(), walls.tolist(), strict=True)) == sorted(expected)


def test_the_tail_goes_on_where_the_images_end_as_loud_as_they_are() -> None:
    steps = []
    for seed in range(100):
        [response] = room_responses(1, RATE, 0.6, generator(seed))
        join, side = round(0.05 * RATE), round(0.01 * RATE)
        around = np.square(response[join - side : join + side], dtype=float)
        steps.append(10 * np.log10(around[:side].sum() / around[side:].sum()) - 60 * 0.01 / 0.6)
    assert abs(np.mean(steps)) < 0.6  # decibels


def test_images_bring_the_energy_of_the_diffuse_field_that_the_tail_stands_for() -> None:
    size = np.array([6.0, 5.0, 3.0])
    placement = Placement(size, np.array([1.0, 1.5, 1.2]), np.array([4.5, 3.0, 1.6]))
    distances, walls = images(placement, placement.distance + 0.4 * SPEED_OF_SOUND)
    energies = reflection(size, 0.4) ** (2 * walls) * (placement.distance / distances) ** 2
    times = (distances - placement.distance) / SPEED_OF_SOUND
    by_time = [energies[(times >= first) & (times < first + 0.02)].sum() for first in (0.02, 0.06, 0.1)]
    diffuse = [
        (placement.distance**2 * 4 * np.pi * SPEED_OF_SOUND / np.prod(size))
        * sum(10 ** (-6 * (t + placement.distance / SPEED_OF_SOUND) / 0.4) for t in first + np.arange(0, 0.02, 1e-4))
        * 1e-4
        for first in (0.02, 0.06, 0.1)
    ]
    assert 10 * np.log10(np.divide(by_time, diffuse)) == pytest.approx([0, 0, 0], abs=1.5)


def test_reflections_add_up_to_no_rumble() -> None:
    responses = [room_responses(1, RATE, 0.6, generator(seed))[0] for seed in range(100)]
    at_zero_hertz = np.mean([response.sum(dtype=float) ** 2 for response in responses])
    at_all = np.mean([np.sum(np.square(response, dtype=float)) for response in responses])
    assert at_zero_hertz / at_all < 1.5  # 179 where walls keep the sign


def test_the_direct_sound_comes_first_with_amplitude_one() -> None:
    for seed in range(20):
        for response in room_responses(3, RATE, 0.3, generator(seed)):
            assert response.shape == (round(0.3 * RATE),)
            assert response.dtype == np.float32
            assert response[0] == pytest.approx(1, abs=0.15)  # the first reflections reach into it


@given(st.floats(0.05, 2.0), st.sampled_from([8000, 16000, 44100]), st.integers(0, 1000))
def test_responses_are_finite_and_the_same_twice(t60: float, rate: int, seed: int) -> None:
    responses = room_responses(2, rate, t60, generator(seed))
    for response, again in zip(responses, room_responses(2, rate, t60, generator(seed)), strict=True):
        assert np.isfinite(response).all()
        assert np.array_equal(response, again)
    assert not np.array_equal(responses[0], responses[1])  # another place for each voice


@given(st.integers(1, 400), st.integers(1, 100))
def test_reverberation_is_the_convolution_with_energy_one(num_samples: int, taps: int) -> None:
    samples, response = generator(1).standard_normal(num_samples), generator(2).standard_normal(taps)
    wet = reverberated(samples.astype(np.float32), response.astype(np.float32))
    expected = np.convolve(samples, response / np.linalg.norm(response))[:num_samples]
    assert wet.dtype == np.float32
    assert wet == pytest.approx(expected, abs=1e-4)


def test_no_audio_stays_no_audio() -> None:
    assert not len(reverberated(np.empty(0, np.float32), np.ones(3, np.float32)))


def test_near_and_far_voices_stay_as_loud_as_they_were() -> None:
    voice = generator(3).standard_normal(4 * RATE).astype(np.float32)
    for seed in range(10):
        for response in room_responses(3, RATE, 0.6, generator(seed)):
            assert 10 * np.log10(np.mean(reverberated(voice, response) ** 2)) == pytest.approx(0, abs=1)


def test_what_a_voice_says_stays_at_its_time() -> None:
    voice = np.zeros(RATE, np.float32)
    voice[5000:9000] = generator(4).standard_normal(4000)
    for seed in range(10):
        [response] = room_responses(1, RATE, 0.4, generator(seed))
        wet = reverberated(voice, response)
        assert np.abs(wet[:4999]).max() < 1e-4
        assert np.argmax(np.correlate(wet, voice[5000:9000], "valid")) == pytest.approx(5000, abs=1)
