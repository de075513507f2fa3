"""Augmentation: each part by its probability, each with independent draws, labels where the speech is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.augmentation.pipeline import augmented, longest_factor, make_voices
from vaak.audio.config import AugmentationConfig
from vaak.audio.segments import LabelledAudio, Segment
from vaak.core.errors import UserError

RATE = 16000
EVERYTHING: dict[str, Any] = {
    "speed": (0.9, 1.0, 1.1),
    "volume": (-6, 6),
    "noise": {"snr": (5, 20), "probability": 0.7},
    "room": {"t60": (0.1, 0.4), "probability": 0.7},
    "codecs": ("mulaw", "alaw", "opus", "mp3", "vorbis"),
}


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def spoken(seconds: float = 1.0) -> LabelledAudio:
    """A second of which the middle half is speech."""
    samples = np.zeros(round(seconds * RATE), np.float32)
    middle = slice(len(samples) // 4, 3 * len(samples) // 4)
    samples[middle] = 0.1 * generator(9).standard_normal(len(samples[middle]))
    samples.flags.writeable = False  # as those of a cache
    return LabelledAudio("a", samples, RATE, (Segment(seconds / 4, 3 * seconds / 4, "Asha"),), "नमस्ते")


def of(**options: Any) -> AugmentationConfig:
    return AugmentationConfig(**options)


def test_nothing_asked_for_changes_nothing() -> None:
    audio = spoken()
    same = augmented(audio, of(), generator())
    assert np.array_equal(same.samples, audio.samples)
    assert (same.name, same.segments, same.text) == (audio.name, audio.segments, audio.text)


@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 1.0]))
def test_the_same_generator_gives_the_same_bits_all_finite(seed: int, seconds: float) -> None:
    audio, config = spoken(seconds), of(**EVERYTHING)
    once, twice = (augmented(audio, config, generator(seed)) for _ in range(2))
    assert np.array_equal(once.samples, twice.samples)
    assert once.segments == twice.segments
    assert once.samples.dtype == np.float32
    assert np.isfinite(once.samples).all()
    assert once.duration <= audio.duration * longest_factor(config) + 0.5 / RATE
    for segment in once.segments:
        assert 0 <= segment.start < segment.end <= once.duration


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_segments_follow_the_speed(factor: float) -> None:
    changed = augmented(spoken(), of(speed=(factor,)), generator())
    [segment] = changed.segments
    assert (segment.start, segment.end) == pytest.approx((0.25 / factor, 0.75 / factor))
    first, last = round(segment.start * RATE), round(segment.end * RATE)
    speech = np.abs(changed.samples[first + 200 : last - 200]).mean()
    assert np.abs(changed.samples[: first - 200]).max() < 0.01 * speech
    assert np.abs(changed.samples[last + 200 :]).max() < 0.01 * speech


def test_what_was_annotated_follows_the_speed() -> None:
    audio = replace(spoken(), uem=((0.1, 0.6), (0.7, 1.0)))
    changed = augmented(audio, of(speed=(2.0,)), generator())
    assert changed.uem == ((0.05, 0.3), (0.35, 0.5))
    assert augmented(audio, of(**EVERYTHING | {"speed": ()}), generator()).uem == audio.uem


def test_segments_stay_within_the_audio_where_its_length_is_rounded() -> None:
    samples = np.ones(10_005, np.float32)
    audio = LabelledAudio("a", samples, RATE, (Segment(0, len(samples) / RATE, "Asha"),))
    for factor in (0.9, 1.1, 0.7, 1.3):
        changed = augmented(audio, of(speed=(factor,)), generator())
        assert changed.segments[0].end <= changed.duration


def test_the_noise_has_the_ratio_asked_for_whatever_the_pauses() -> None:
    audio = spoken()
    for seed in range(5):
        noisy = augmented(audio, of(noise={"snr": 12}), generator(seed)).samples.astype(np.float64)
        speech = np.mean(np.square(audio.samples[RATE // 4 : 3 * RATE // 4], dtype=np.float64))
        assert 10 * np.log10(speech / np.mean((noisy - audio.samples) ** 2)) == pytest.approx(12, abs=0.3)


def test_volume_is_in_decibels() -> None:
    audio = spoken()
    assert augmented(audio, of(volume=-20), generator()).samples == pytest.approx(audio.samples / 10)
    gains = [np.abs(augmented(audio, of(volume=(-6, 6)), generator(seed)).samples).max() for seed in range(50)]
    levels = 20 * np.log10(np.array(gains) / np.abs(audio.samples).max())
    assert -6 <= levels.min() < -4
    assert 4 < levels.max() <= 6


def test_nothing_is_clipped() -> None:
    assert np.abs(augmented(spoken(), of(volume=40), generator()).samples).max() > 10


@pytest.mark.parametrize(
    ("options", "probability"),
    [
        ({"noise": {"probability": 0.3}}, 0.3),
        ({"room": {"probability": 0.3}}, 0.3),
        ({"codecs": ("mulaw", "alaw"), "codec_probability": 0.3}, 0.3),
        ({"codecs": ("mulaw",), "codec_probability": 0.0}, 0.0),
        ({"speed": (0.9, 1.0, 1.1)}, 2 / 3),
    ],
)
def test_each_part_has_its_probability(options: dict[str, Any], probability: float) -> None:
    audio = spoken(0.1)
    config = of(**options)
    changed = [
        not np.array_equal(augmented(audio, config, generator(seed)).samples, audio.samples) for seed in range(400)
    ]
    assert np.mean(changed) == pytest.approx(probability, abs=3 * np.sqrt(0.25 / 400))


def test_switching_one_part_off_leaves_the_draws_of_the_others() -> None:
    audio = spoken()
    only: dict[str, dict[str, Any]] = {"volume": {"volume": (-6, 6)}, "speed": {"speed": (0.8, 0.9, 1.1, 1.2)}}
    for seed in range(3):
        both = augmented(audio, of(**only["volume"], **only["speed"]), generator(seed))
        fast = augmented(audio, of(**only["speed"]), generator(seed))
        quiet = augmented(audio, of(**only["volume"]), generator(seed))
        gain = np.abs(quiet.samples).max() / np.abs(audio.samples).max()
        assert both.samples == pytest.approx(fast.samples * gain, rel=1e-5)
        assert both.segments == fast.segments
        noisy = augmented(audio, of(noise={"snr": (0, 20)}), generator(seed))
        louder = augmented(audio, of(noise={"snr": (0, 20)}, **only["volume"]), generator(seed))
        assert louder.samples == pytest.approx(noisy.samples * gain, rel=1e-5)


def test_whatever_is_asked_for_takes_one_draw_of_the_generator() -> None:
    left = []
    for config in (of(), of(**EVERYTHING)):
        rng = generator(3)
        augmented(spoken(0.1), config, rng)
        left.append(rng.random())
    assert left[0] == left[1]


def test_babble_is_made_of_the_voices_given() -> None:
    config = of(noise={"type": "babble", "snr": 0})
    calls: list[float] = []

    def voice(rng: np.random.Generator) -> np.ndarray:
        calls.append(rng.random())
        return np.ones(100, np.float32)

    noisy = [augmented(spoken(), config, generator(4), voice).samples for _ in range(2)]
    assert np.array_equal(noisy[0], noisy[1])
    assert 6 <= len(calls) <= 14
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]
    with pytest.raises(UserError, match="babble requires utterances"):
        augmented(spoken(), config, generator())


def test_voices_are_stretches_of_speech_of_other_examples() -> None:
    class Source:
        durations = np.ones(3)
        speakers: tuple[str, ...] = ("Asha", "Ravi")
        fingerprint = ""

        def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
            samples = np.repeat(np.arange(4) + 10 * index, RATE // 4).astype(np.float32)
            segments = (Segment(0.25, 0.5, "Asha"), Segment(0.5, 0.75, "Ravi"))
            return LabelledAudio("a", samples, RATE, segments if index else ())

        def describe(self, index: int) -> str:
            return str(index)

    heard = {tuple(np.unique(make_voices(Source())(generator(seed)))) for seed in range(40)}
    assert heard == {(), (11,), (12,), (21,), (22,)}
    noisy = augmented(spoken(), of(noise={"type": "babble"}), generator(2), make_voices(Source()))
    assert not np.array_equal(noisy.samples, spoken().samples)


@pytest.mark.parametrize(("speed", "longest"), [((), 1.0), ((0.9, 1.0, 1.1), 1 / 0.9), ((1.25,), 0.8), ((0.5,), 2.0)])
def test_the_longest_factor_bounds_the_duration(speed: tuple[float, ...], longest: float) -> None:
    assert longest_factor(of(speed=speed)) == pytest.approx(longest)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed": (0.1,)}, "between 0.5 and 2"),
        ({"volume": (3, -3)}, "is not a range"),
        ({"noise": {"snr": (20, 10)}}, "is not a range"),
        ({"noise": {"type": "files"}}, "requires folder"),
        ({"room": {"t60": 0}}, "is not a range of reverberation times"),
        ({"room": {"t60": (0.6, 0.2)}}, "is not a range of reverberation times"),
    ],
)
def test_options_that_can_not_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        of(**options)


def test_ranges_are_lists_or_one_number_in_yaml() -> None:
    text = '{"room": {"t60": [0.2, 0.6]}, "noise": {"snr": 10}, "volume": [-6, 6], "speed": [0.9, 1]}'
    config = AugmentationConfig.model_validate_json(text, strict=True)  # as vaak.config reads it
    assert config.room is not None
    assert config.noise is not None
    assert (config.room.t60, config.noise.snr) == ((0.2, 0.6), (10, 10))
    assert (config.volume, config.speed) == ((-6, 6), (0.9, 1))
