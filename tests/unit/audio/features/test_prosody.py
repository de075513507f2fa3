"""Means of phonemes, and durations in frames that always add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.features.pitch import frame_durations, interpolate_pitch, phoneme_means
from vaak.audio.mel_config import MelConfig


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 2**31))
def test_means_are_those_of_the_frames_that_count(durations: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(sum(durations))
    counted = rng.random(sum(durations)) < 0.6
    found = phoneme_means(values, np.array(durations, np.int64), counted)
    start = 0
    for mean, length in zip(found, durations, strict=True):
        own = values[start : start + length][counted[start : start + length]]
        assert mean == pytest.approx(own.mean() if len(own) else 0.0, abs=1e-6)
        start += length
    everything = phoneme_means(values, np.array(durations, np.int64))
    assert (everything * durations).sum() == pytest.approx(values.sum(), abs=1e-4)


def test_durations_of_other_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="phonemes of 3 frames, values of 4"):
        phoneme_means(np.zeros(4), np.array([1, 2]))


@given(st.lists(st.tuples(st.sampled_from([0.0, 80.0, 100.0, 240.0]), st.integers(0, 4)), max_size=12))
def test_interpolated_pitch_is_voiced_where_phonemes_are_and_between_theirs(phonemes: list[tuple[float, int]]) -> None:
    pitch, durations = np.array([one for one, _ in phonemes]), np.array([length for _, length in phonemes], np.int64)
    found = interpolate_pitch(pitch, durations)
    np.testing.assert_array_equal(found > 0, np.repeat(pitch > 0, durations))
    voiced = pitch[(pitch > 0) & (durations > 0)]
    if len(voiced):
        assert found[found > 0].min() >= voiced.min() * 0.999
        assert found.max() <= voiced.max() * 1.001
    for start, one, length in zip(np.cumsum(durations) - durations, pitch, durations, strict=True):
        if length % 2:  # A phoneme of an even number of frames has its middle between two of them.
            assert found[start + length // 2] == pytest.approx(one)


@given(
    lengths=st.lists(st.floats(0, 2), min_size=1, max_size=20),
    hop=st.integers(50, 500),
    cut=st.floats(0.5, 1.2),
)
def test_durations_always_add_up_and_each_is_right_to_a_frame(lengths: list[float], hop: int, cut: float) -> None:
    mel = MelConfig(hop_length=hop)
    ends = np.cumsum(lengths)
    num_samples = max(1, int(ends[-1] * cut * mel.sampling_rate))
    found = frame_durations(ends.tolist(), mel, num_samples)
    assert found.dtype == np.int64
    assert (found >= 0).all()
    assert found.sum() == mel.num_frames(num_samples)
    if cut >= 1:
        assert (np.abs(found[:-1] * mel.frame_shift - lengths[:-1]) <= mel.frame_shift + 1e-6).all()


def test_a_frame_belongs_to_the_interval_of_its_centre() -> None:
    mel = MelConfig(sampling_rate=16000, hop_length=160)
    assert frame_durations([0.0301, 0.0399, 0.04, 1.0], mel, 16000).tolist() == [4, 0, 0, 97]
