"""Pauses in clean speech, found by energy: within a frame or two at every sampling rate, however long the utterance."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.formats.alignments import read_textgrid
from vaak.audio.speech_regions import (
    FRAME,
    MARGIN_AFTER,
    MARGIN_BEFORE,
    SHORTEST_PAUSE,
    find_runs,
    find_speech,
    frame_levels,
    joined_over_gaps,
)

SLACK = MARGIN_AFTER + 3 * FRAME


def utterance(regions: list[tuple[float, float]], seconds: float, rate: int, floor: float = 1e-4) -> np.ndarray:
    rng = np.random.default_rng(0)
    samples = floor * rng.standard_normal(round(seconds * rate))
    for start, end in regions:
        first, last = round(start * rate), round(end * rate)
        samples[first:last] += 0.1 * rng.standard_normal(last - first)
    return samples.astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100])
def test_speech_is_found_to_a_few_frames_and_never_cut(rate: int):
    truth = [(0.5, 1.7), (2.2, 2.8), (30.0, 30.9), (58.1, 59.4)]
    found = find_speech(utterance(truth, 60.0, rate), rate)
    assert len(found) == len(truth)
    for (start, end), (begins, ends) in zip(found, truth, strict=True):
        assert begins - SLACK <= start <= begins
        assert ends - FRAME <= end <= ends + SLACK


def test_short_pauses_are_none_and_clicks_are_no_speech():
    [found] = find_speech(utterance([(0.5, 1.0), (1.1, 1.6)], 3.0, 16000), 16000)
    assert found[0] < 0.5
    assert found[1] > 1.6
    [found] = find_speech(utterance([(0.5, 1.5), (2.2, 2.24)], 3.0, 16000), 16000)
    assert found[1] < 1.7


def test_regions_stay_apart_and_within_the_utterance():
    found = find_speech(
        utterance([(0.0, 0.6), (0.6 + MARGIN_AFTER + SHORTEST_PAUSE + MARGIN_BEFORE + 0.06, 2.0)], 2.0, 16000), 16000
    )
    assert len(found) == 2
    assert found[0][0] == 0.0
    assert found[0][1] < found[1][0]
    assert found[1][1] == 2.0


def test_silence_has_none_and_what_has_no_pause_is_all_speech():
    assert find_speech(np.zeros(16000, np.float32), 16000) == []
    assert find_speech(np.zeros(0, np.float32), 16000) == []
    assert find_speech(np.ones(100, np.float32), 16000) == [], "less than a frame"
    assert find_speech(utterance([(0.0, 1.5)], 1.5, 16000), 16000) == [(0.0, 1.5)]


@given(gain=st.sampled_from([0.05, 0.5, 8.0]), seed=st.integers(0, 1000))
def test_loudness_changes_nothing(gain: float, seed: int):
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.uniform(0.3, 1.0, 6))
    samples = utterance([(ends[0], ends[1]), (ends[2], ends[3]), (ends[4], ends[5])], float(ends[5]) + 0.4, 16000)
    assert find_speech(samples * np.float32(gain), 16000) == find_speech(samples, 16000)


def test_levels_are_decibels_of_full_scale():
    levels = frame_levels(np.full(16000, 0.1, np.float32), 16000)
    assert levels.shape == (100,)
    np.testing.assert_allclose(levels, -20.0, atol=1e-4)


@given(st.lists(st.booleans(), max_size=40))
def test_runs_say_the_same_as_the_flags(flags: list[bool]):
    active = np.array(flags, dtype=bool)
    runs = find_runs(active)
    painted = np.zeros(len(flags), dtype=bool)
    for first, last in runs:
        assert first < last
        painted[first:last] = True
    np.testing.assert_array_equal(painted, active)
    assert all(second[0] > first[1] for first, second in itertools.pairwise(runs))
    joined = joined_over_gaps(runs, 3)
    assert all(second[0] - first[1] >= 3 for first, second in itertools.pairwise(joined))


def test_speech_found_agrees_with_a_forced_alignment(vaak_data: Callable[[str], Path]):
    """LJ Speech with words by the Montreal Forced Aligner, in steps of 5 ms: the rest is soft ends of words."""
    folder, differs, words = vaak_data("ljspeech_mini"), 0, 0
    for grid in sorted(folder.glob("TextGrid/LJSpeech/*.TextGrid")):
        samples, rate = soundfile.read(folder / "wavs" / f"{grid.stem}.wav")
        aligned = [(round(word.start * 200), round(word.end * 200)) for word in read_textgrid(grid)["words"]]
        truth, found = np.zeros((2, 1 + len(samples) * 200 // rate), bool)
        for first, last in joined_over_gaps(aligned, round(SHORTEST_PAUSE * 200)):
            truth[first:last] = True
        for start, end in find_speech(samples, rate):
            found[round(start * 200) : round(end * 200)] = True
        differs, words = differs + int((truth ^ found).sum()), words + int(truth.sum())
    assert words > 20_000
    assert differs / words < 0.025
