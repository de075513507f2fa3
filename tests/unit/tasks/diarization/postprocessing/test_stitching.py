"""Windows become a recording: whatever the model calls its speakers, perfect windows give a perfect whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.segments import segments_of
from vaak.tasks.diarization.stitching import (
    NOBODY,
    WindowOutput,
    blend_windows,
    match_by_embeddings,
    stitch_windows,
)

INFERENCE = InferenceConfig()


def random_turns(rng: np.random.Generator, num_frames: int, num_speakers: int) -> np.ndarray:
    """Who speaks when, ``(frames, speakers)``: turns of 20 to 80 frames, sometimes two at once; everyone speaks."""
    truth, place, turn = np.zeros((num_frames, num_speakers), np.float32), 0, 0
    order = rng.permutation(num_speakers)
    while place < num_frames - 20 or turn < num_speakers:
        length = int(rng.integers(20, 80))
        speaker = order[turn] if turn < num_speakers else rng.integers(num_speakers)
        truth[place : place + length, speaker] = 1
        place += int(length * rng.choice([0.7, 1.0, 1.2]))
        turn += 1
    return truth


def windows_of(
    truth: np.ndarray, voices: np.ndarray | None, size: int, shift: int, rng: np.random.Generator, noise: float = 0.0
) -> list[WindowOutput]:
    """What a perfect model says: those who speak in the window, in any order, and slots of nobody."""
    outputs = []
    for first in range(0, max(len(truth) - size, 0) + shift, shift):
        part = truth[first : first + size]
        slots = max(2, int(truth[:, :].any(0).sum()))
        present = np.flatnonzero(part.any(0))
        places = rng.permutation(slots)[: len(present)]
        probabilities = np.zeros((len(part), slots), np.float32)
        probabilities[:, places] = part[:, present]
        embeddings = None
        if voices is not None:
            embeddings = rng.normal(size=(slots, voices.shape[1]))  # those of nobody say nothing
            embeddings[places] = voices[present] * rng.uniform(0.5, 2, (len(present), 1))
            embeddings[places] += noise * rng.normal(size=(len(present), voices.shape[1]))
        outputs.append(WindowOutput(first, probabilities, embeddings))
        if first + size >= len(truth):
            break
    return outputs


def distinct_voices(rng: np.random.Generator, number: int) -> np.ndarray:
    """Directions at right angles."""
    return np.linalg.qr(rng.normal(size=(32, number)))[0].T


def in_order(probabilities: np.ndarray) -> np.ndarray:
    """Columns in the order in which they begin."""
    return probabilities[:, np.argsort((probabilities >= 0.5).argmax(0), kind="stable")]


def shuffled(output: WindowOutput, rng: np.random.Generator) -> WindowOutput:
    order = rng.permutation(output.probabilities.shape[1])
    embeddings = None if output.embeddings is None else output.embeddings[order]
    return WindowOutput(output.first, output.probabilities[:, order], embeddings)


@given(
    seed=st.integers(0, 2**32 - 1),
    num_speakers=st.integers(1, 6),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 0.9]),
    given_number=st.booleans(),
)
def test_perfect_windows_give_the_truth(seed: int, num_speakers: int, overlap: float, given_number: bool):
    rng = np.random.default_rng(seed)
    truth = random_turns(rng, int(rng.integers(250, 1500)), num_speakers)
    truth = truth[:, truth.sum(0) >= 20]  # the last turn may be cut to a frame
    voices, size = distinct_voices(rng, truth.shape[1]), 200
    outputs = windows_of(truth, voices, size, int(size * (1 - overlap)), rng, noise=0.05)
    inference = InferenceConfig(num_speakers=truth.shape[1]) if given_number else INFERENCE
    found = stitch_windows(outputs, len(truth), inference)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(in_order(found), in_order(truth))


@given(seed=st.integers(0, 2**32 - 1), overlap=st.sampled_from([0.5, 0.75]))
def test_without_embeddings_two_who_are_heard_in_every_overlap_are_followed(seed: int, overlap: float):
    rng = np.random.default_rng(seed)
    truth = np.zeros((1200, 2), np.float32)
    for first in range(0, 1200, 50):
        truth[first : first + 30, 0] = 1
        truth[first + int(rng.integers(10, 45)) : first + 50, 1] = 1
    outputs = windows_of(truth, None, 200, int(200 * (1 - overlap)), rng)
    np.testing.assert_array_equal(in_order(stitch_windows(outputs, 1200, INFERENCE)), in_order(truth))


@given(seed=st.integers(0, 2**32 - 1), embedded=st.booleans())
def test_the_order_of_speakers_in_a_window_changes_nothing(seed: int, embedded: bool):
    rng = np.random.default_rng(seed)
    speakers = int(rng.integers(2, 5))
    outputs = [
        WindowOutput(50 * number, rng.random((100, speakers), np.float32), rng.normal(size=(speakers, 16)))
        for number in range(6)
    ]
    if not embedded:
        outputs = [output._replace(embeddings=None) for output in outputs]
    inference = InferenceConfig(max_speakers=int(rng.integers(2, 8)))
    first = stitch_windows(outputs, 350, inference)
    second = stitch_windows([shuffled(output, rng) for output in outputs], 350, inference)
    assert first.shape == second.shape
    same = np.square(first[:, :, None] - second[:, None, :]).sum(0).argmin(1)
    assert sorted(same) == list(range(first.shape[1]))
    np.testing.assert_allclose(first, second[:, same], rtol=0, atol=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1),
    bounds=st.sampled_from([(None, 1, None), (3, 1, None), (None, 4, 6), (None, 1, 3), (2, 1, None), (5, 1, None)]),
)
def test_bounds_are_kept_and_two_of_a_window_stay_two(seed: int, bounds: tuple[int | None, int, int | None]):
    """Embeddings without any sense, so that every way to go wrong is tried."""
    rng = np.random.default_rng(seed)
    number, least, most = bounds
    inference = InferenceConfig(num_speakers=number, min_speakers=least, max_speakers=most)
    outputs = [
        WindowOutput(50 * place, np.ones((100, count), np.float32), rng.normal(size=(count, 3)))
        for place, count in enumerate(rng.integers(1, 4, size=12))
    ]
    speech = [output.probabilities.sum(0) for output in outputs]
    columns = match_by_embeddings(outputs, speech, inference, number or most or 99)
    count = len({int(column) for window in columns for column in window})
    assert count <= (number or most or 99)
    assert count >= (number or least)
    for window in columns:
        assert NOBODY not in window
        if len(window) <= count:
            assert len(set(window)) == len(window)
        else:
            assert len(set(window)) == count, "as many of them as there are"


def test_more_speak_in_a_window_than_there_may_be():
    """Those who speak least are given to the nearest; nobody's speech is lost."""
    probabilities = np.zeros((100, 3), np.float32)
    probabilities[:50, 0] = probabilities[40:90, 1] = probabilities[90:, 2] = 1
    embeddings = np.array([[1.0, 0], [0, 1.0], [0.3, 0.9]])
    inference = InferenceConfig(num_speakers=2)
    found = stitch_windows([WindowOutput(0, probabilities, embeddings)], 100, inference)
    expected = np.stack([probabilities[:, 0], probabilities[:, 1] + probabilities[:, 2]], 1)
    np.testing.assert_array_equal(found, expected)
    found = stitch_windows([WindowOutput(0, probabilities, None)], 100, inference)
    expected = np.stack([probabilities[:, 0] + probabilities[:, 2], probabilities[:, 1]], 1)
    np.testing.assert_array_equal(found, expected, "without embeddings: the first it is never heard with")


def test_one_who_hardly_speaks_in_a_window_is_no_new_speaker():
    rng = np.random.default_rng(0)
    truth = np.zeros((400, 2), np.float32)
    truth[:150, 0] = truth[150:260, 1] = truth[260:, 0] = 1
    outputs = windows_of(truth, distinct_voices(rng, 2), 200, 200, rng)
    probabilities = np.concatenate([outputs[0].probabilities, np.zeros((200, 1), np.float32)], 1)
    probabilities[70, 2] = 1  # a click, which looks like nobody
    strange = rng.normal(size=(1, 32))
    outputs[0] = WindowOutput(0, probabilities, np.concatenate([outputs[0].embeddings, strange]))
    np.testing.assert_array_equal(in_order(stitch_windows(outputs, 400, INFERENCE))[150:], truth[150:])
    probabilities[70:73, 2] = 1
    assert stitch_windows(outputs, 400, INFERENCE).shape == (400, 3), "who speaks more than that is one"


def test_those_who_are_not_trusted_and_small_clusters_are_no_speakers():
    """Three voices: two in every window; a third in one window, whom only its trust and its share make a speaker."""
    voices, speaks = np.eye(3, 8), np.zeros((100, 3), np.float32)
    speaks[:40, 0] = speaks[50:80, 1] = 1
    outputs = [WindowOutput(first, speaks, voices, np.array([True, True, False])) for first in range(0, 1000, 100)]
    late = speaks.copy()
    late[85:95, 2] = 1
    for trust, share, number in ((False, 0.0, 2), (True, 0.0, 3), (True, 0.02, 2), (True, 0.01, 3)):
        there = [*outputs, WindowOutput(1000, late, voices, np.array([True, True, trust]))]
        found = stitch_windows(there, 1100, InferenceConfig(min_share=share))
        assert found.shape[1] == number
        assert (found[1085:1095].max(1) == 1).all(), "their speech is kept, as another's"
    assert stitch_windows(there, 1100, InferenceConfig(min_share=0.5, min_speakers=3)).shape[1] == 3


def test_all_who_hardly_speak_are_still_heard():
    output = WindowOutput(0, np.zeros((1000, 2), np.float32), np.eye(2))
    output.probabilities[500, 1] = 0.9
    found = stitch_windows([output, output._replace(first=500)], 1500, INFERENCE)
    assert found.shape[1] == 1
    assert segments_of(found, INFERENCE, 0.1), "one frame here and there is all there is"


def test_overlaps_are_averaged_with_weights_that_fall_towards_the_ends():
    left, right = (WindowOutput(first, np.full((4, 1), p, np.float32), None) for first, p in ((0, 0.9), (2, 0.6)))
    found = stitch_windows([left, right], 6, INFERENCE)
    expected = [0.9, 0.9, (0.9 * 2 + 0.6 * 1) / 3, (0.9 * 1 + 0.6 * 2) / 3, 0.6, 0.6]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("embeddings", [None, np.eye(3)])
def test_one_window_passes_unchanged(embeddings: np.ndarray | None):
    probabilities = np.random.default_rng(0).random((50, 3), np.float32)
    found = stitch_windows([WindowOutput(0, probabilities, embeddings)], 50, InferenceConfig(max_speakers=3))
    np.testing.assert_array_equal(found, probabilities)


@pytest.mark.parametrize("embeddings", [None, np.eye(2)])
@pytest.mark.parametrize("number", [None, 2])
def test_silence_has_no_speakers(embeddings: np.ndarray | None, number: int | None):
    inference = InferenceConfig(num_speakers=number)
    silence = [WindowOutput(first, np.full((100, 2), 0.1, np.float32), embeddings) for first in (0, 50)]
    found = stitch_windows(silence, 150, inference)
    assert found.shape == (150, 0)
    assert segments_of(found, inference, 0.02) == []
    assert stitch_windows([], 0, inference).shape == (0, 0)


def test_a_last_window_that_is_padded_is_cut():
    outputs = [WindowOutput(first, np.ones((100, 1), np.float32), None) for first in (0, 50)]
    np.testing.assert_array_equal(stitch_windows(outputs, 120, INFERENCE), np.ones((120, 1)))


def test_windows_whose_speakers_have_names_are_only_blended():
    outputs = [WindowOutput(first, np.eye(2, dtype=np.float32)[[1] * 4], None) for first in (0, 2)]
    np.testing.assert_array_equal(blend_windows(outputs, [np.arange(2)] * 2, 6), np.eye(2)[[1] * 6])


@pytest.mark.parametrize(
    ("embedded", "noise", "count"),
    [(True, 0.5, 4), pytest.param(True, 100.0, 64, marks=pytest.mark.slow), (False, 0.0, 4)],
)
def test_three_hours_take_little_memory(embedded: bool, noise: float, count: int):
    """Windows of 60 s, 50 frames a second, 4 speakers in each; even embeddings without sense don't fill it."""
    rng = np.random.default_rng(0)
    voices, speaking = rng.normal(size=(4, 64)), np.zeros((3000, 4), np.float32)
    for speaker in range(4):
        for begun in (0, 1500):  # what two windows say of the frames that they share agrees
            speaking[begun + 300 * speaker : begun + 300 * speaker + 450, speaker] = 1
    outputs = []
    for first in range(0, 540_000 - 1500, 1500):
        order = rng.permutation(4)
        if count == 64:  # nor do frames in common say who is who
            speaking = (rng.random((3000, 4)) < 0.3).astype(np.float32)
        embeddings = (voices + noise * rng.normal(size=voices.shape))[order] if embedded else None
        outputs.append(WindowOutput(first, speaking[:, order], embeddings))
    tracemalloc.start()
    found = stitch_windows(outputs, 540_000, INFERENCE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (540_000, count)
    assert peak < 500e6
