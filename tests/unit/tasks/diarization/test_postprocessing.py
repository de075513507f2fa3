"""Segments have the boundaries that the frames have; tuned settings are the best by the exact score."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import median_filter

from vaak.audio.segments import Segment
from vaak.scoring.diarization_errors import diarization_error
from vaak.tasks.diarization import segments as postprocessing
from vaak.tasks.diarization.config import InferenceConfig, ScoringConfig
from vaak.tasks.diarization.segments import FrameErrors, decide_frames, filter_median, make_segments, tune_segments

FRAME = 0.1


def heard(*columns: str) -> np.ndarray:
    """Probabilities of columns written as text: ``x`` speaks."""
    return np.array([[0.9 if sign == "x" else 0.1 for sign in column] for column in columns], np.float32).T


def written(segments: list[Segment]) -> list[tuple[int, int, str]]:
    """Segments in frames."""
    return [(round(start / FRAME), round(end / FRAME), speaker) for start, end, speaker in segments]


def random_segments(rng: np.random.Generator, duration: float, speakers: int, number: int) -> list[Segment]:
    starts = rng.uniform(-0.2, duration, number)
    return [
        Segment(max(0.0, float(start)), float(start + rng.uniform(0.3, 4)), f"voice{rng.integers(speakers)}")
        for start in starts
    ]


def test_segments_begin_and_end_with_their_frames():
    segments = make_segments(heard("..xx.", "xx..x"), InferenceConfig(), 0.25)
    assert segments == [(0.0, 0.5, "speaker_1"), (0.5, 1.0, "speaker_2"), (1.0, 1.25, "speaker_1")]


def test_names_are_of_columns():
    segments = make_segments(heard(".xx", "...", "x.."), InferenceConfig(), 1.0, ["Anu", "Bo", "Chi"])
    assert segments == [(0.0, 1.0, "Chi"), (1.0, 3.0, "Anu")]


def test_a_probability_that_is_the_threshold_speaks():
    probabilities = np.array([[0.3], [0.7], [0.69]])
    assert make_segments(probabilities, InferenceConfig(threshold=0.7), 1.0) == [(1.0, 2.0, "speaker_1")]


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (5, 0)])
def test_no_frames_or_no_speakers_have_no_segments(shape: tuple[int, int]):
    inference = InferenceConfig(median_filter=0.3, min_duration_on=0.2, min_duration_off=0.2)
    assert make_segments(np.ones(shape), inference, FRAME) == []
    assert decide_frames(np.ones(shape), inference, FRAME).shape == shape


@pytest.mark.parametrize(
    ("option", "seconds", "expected"),
    [
        ("min_duration_off", 0.2, [(1, 5), (7, 10), (14, 15)]),
        ("min_duration_off", 0.3, [(1, 10), (14, 15)]),
        ("min_duration_off", 5.0, [(1, 15)]),
        ("min_duration_on", 0.1, [(1, 3), (4, 5), (7, 10), (14, 15)]),
        ("min_duration_on", 0.2, [(1, 3), (7, 10)]),
        ("min_duration_on", 0.21, [(7, 10)]),
        ("min_duration_on", 0.31, []),
        ("median_filter", 0.3, [(1, 4), (7, 10)]),
    ],
)
def test_what_is_shorter_goes_and_what_is_as_long_stays(option: str, seconds: float, expected: list[tuple[int, int]]):
    inference = InferenceConfig.model_validate({option: seconds})
    found = written(make_segments(heard(".xx.x..xxx....x."), inference, FRAME))
    assert [part[:2] for part in found] == expected


def test_pauses_are_filled_before_short_speech_is_dropped():
    inference = InferenceConfig(min_duration_on=0.3, min_duration_off=0.2)
    assert written(make_segments(heard("x.x..x."), inference, FRAME)) == [(0, 3, "speaker_1")]


@given(
    signs=st.lists(st.booleans(), min_size=1, max_size=40),
    frames=st.sampled_from([0.5, 1, 1.9, 2, 2.9, 3, 4.9, 5, 10.9, 99]),
)
def test_the_median_is_that_of_scipy_over_the_nearest_odd_number(signs: list[bool], frames: float):
    odd = {0.5: 1, 1: 1, 1.9: 1, 2: 3, 2.9: 3, 3: 3, 4.9: 5, 5: 5, 10.9: 11, 99: 99}[frames]
    speaks = np.array(signs)
    np.testing.assert_array_equal(filter_median(speaks, frames), median_filter(speaks, odd, mode="nearest"))


def test_seconds_that_are_a_whole_number_of_frames_are_not_lost_to_rounding():
    for frames, frame_seconds in product((1, 3, 5, 7, 55), (0.01, 0.02, 0.1, 0.016, 256 / 22050)):
        probabilities = np.zeros((200, 1))
        probabilities[10 : 10 + frames] = 1
        kept = InferenceConfig(min_duration_on=frames * frame_seconds)
        assert len(make_segments(probabilities, kept, frame_seconds)) == 1
        half = InferenceConfig(median_filter=(2 * frames - 1) * frame_seconds)
        assert len(make_segments(probabilities, half, frame_seconds)) == 1, "more than half of the filter"
        beyond = InferenceConfig(median_filter=(2 * frames + 1) * frame_seconds)
        assert make_segments(probabilities, beyond, frame_seconds) == [], "less than half of it"


@given(seed=st.integers(0, 2**32 - 1))
def test_decisions_are_the_segments(seed: int):
    rng = np.random.default_rng(seed)
    values = {"median_filter": 0.5, "min_duration_on": 0.3, "min_duration_off": 0.4}
    inference = InferenceConfig.model_validate({name: value * rng.integers(2) for name, value in values.items()})
    probabilities = rng.random((80, 3))
    decisions = np.zeros((80, 3), bool)
    for start, end, name in written(make_segments(probabilities, inference, FRAME, ["0", "1", "2"])):
        decisions[start:end, int(name)] = True
    np.testing.assert_array_equal(decide_frames(probabilities, inference, FRAME), decisions)


@given(
    seed=st.integers(0, 2**32 - 1),
    collar=st.sampled_from([0.0, 0.25]),
    skip_overlap=st.booleans(),
    has_uem=st.booleans(),
)
def test_frame_errors_are_the_exact_score(seed: int, collar: float, skip_overlap: bool, has_uem: bool):
    """Reference times that no frame has, beyond the last frame too; UEMs of several parts."""
    rng = np.random.default_rng(seed)
    reference = random_segments(rng, 12.0, int(rng.integers(1, 4)), int(rng.integers(0, 9)))
    uem = [(0.5, 3.33), (4.1, 11.0), (10.5, 20.0)][: rng.integers(1, 4)] if has_uem else None
    speakers = int(rng.integers(0, 4))
    decisions = median_filter(rng.random((110, speakers)) > 0.5, (5, 1)) if speakers else np.zeros((110, 0), bool)
    scoring = ScoringConfig(collar=collar, skip_overlap=skip_overlap)
    hypothesis = make_segments(decisions.astype(float), InferenceConfig(), FRAME)
    expected = diarization_error(reference, hypothesis, uem=uem, collar=collar, skip_overlap=skip_overlap)
    found = FrameErrors(reference, uem, scoring, FRAME, len(decisions)).seconds(decisions)
    np.testing.assert_allclose(found, expected.errors, rtol=0, atol=1e-4)


def noisy(rng: np.random.Generator, reference: list[Segment], num_frames: int) -> np.ndarray:
    """Probabilities of a model that is too shy, and jitters."""
    names = sorted({segment.speaker for segment in reference})
    truth = np.zeros((num_frames, len(names)))
    for start, end, speaker in reference:
        truth[round(start / FRAME) : round(end / FRAME), names.index(speaker)] = 1
    return np.clip(0.1 + 0.25 * truth + 0.12 * rng.normal(size=truth.shape), 0, 1)


def test_tuned_settings_are_the_best_and_the_score_says_so(monkeypatch: pytest.MonkeyPatch):
    """On a small grid, the chosen threshold and filter have the least error of all pairs by scoring.py."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(3):
        reference = random_segments(rng, 40.0, 2, 10)
        examples.append((noisy(rng, reference, 450), reference, [(0.0, 45.0)]))
    monkeypatch.setattr(postprocessing, "THRESHOLDS", (0.2, 0.25, 0.3, 0.5))
    monkeypatch.setattr(postprocessing, "MEDIAN_FILTERS", (0.0, 0.5, 1.1))
    monkeypatch.setattr(postprocessing, "MIN_DURATIONS_ON", (0.0,))
    monkeypatch.setattr(postprocessing, "MIN_DURATIONS_OFF", (0.0,))

    def score(inference: InferenceConfig) -> float:
        return sum(
            diarization_error(
                reference, make_segments(found, inference, FRAME), uem=uem, collar=0.0, skip_overlap=False
            ).errors
            for found, reference, uem in examples
        )

    candidates = [
        InferenceConfig(threshold=threshold, median_filter=seconds)
        for threshold, seconds in product((0.2, 0.25, 0.3, 0.5), (0.0, 0.5, 1.1))
    ]
    best = tune_segments(examples, InferenceConfig(), FRAME, ScoringConfig())
    assert best == min(candidates, key=score)
    assert best.median_filter > 0
    assert score(best) < 0.5 * score(InferenceConfig())


@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 2**32 - 1), threshold=st.sampled_from([0.123, 0.5]))
def test_tuning_never_makes_it_worse_and_keeps_the_rest(seed: int, threshold: float):
    rng = np.random.default_rng(seed)
    reference = random_segments(rng, 4.0, 2, 4)
    examples = [(noisy(rng, reference, 60), reference, None)]
    inference = InferenceConfig(threshold=threshold, min_duration_off=0.17, num_speakers=2, window=7.0)
    best = tune_segments(examples, inference, FRAME, ScoringConfig())
    errors = FrameErrors(reference, None, ScoringConfig(), FRAME, 60)
    before, after = (errors.seconds(decide_frames(examples[0][0], chosen, FRAME)) for chosen in (inference, best))
    assert after <= before
    tried = {"threshold", "median_filter", "min_duration_on", "min_duration_off"}
    assert best.model_dump(exclude=tried) == inference.model_dump(exclude=tried)


def test_what_is_perfect_is_left_as_it_is():
    inference = InferenceConfig(threshold=0.42)
    reference = [Segment(0.0, 1.0, "a"), Segment(0.5, 2.0, "b")]
    probabilities = heard("xxxxxxxxxx..........", ".....xxxxxxxxxxxxxxx")
    assert tune_segments([(probabilities, reference, None)], inference, FRAME, ScoringConfig()) == inference
    assert tune_segments([], inference, FRAME, ScoringConfig()) == inference
