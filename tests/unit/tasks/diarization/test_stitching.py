"""Windows become a recording: whatever the model calls its speakers, perfect windows give a perfect whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.segments import make_segments
from vaak.tasks.diarization.stitching import (
    NOBODY,
    WindowOutput,
    average_neighbours,
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
    alone = None if output.alone is None else output.alone[order]
    return WindowOutput(output.first, output.probabilities[:, order], embeddings, alone)


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


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["no embeddings", "the model's", "an encoder's"]))
def test_the_order_of_speakers_in_a_window_changes_nothing(seed: int, kind: str):
    rng = np.random.default_rng(seed)
    speakers = int(rng.integers(2, 5))
    outputs = [
        WindowOutput(50 * number, rng.random((100, speakers), np.float32), rng.normal(size=(speakers, 16)))
        for number in range(6)
    ]
    if kind == "no embeddings":
        outputs = [output._replace(embeddings=None) for output in outputs]
    elif kind == "an encoder's":
        outputs = [output._replace(alone=rng.uniform(0, 2, speakers)) for output in outputs]
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
    """Three voices: two in every window; a third in one window, whom only its seconds and its share make a speaker."""
    voices, speaks = np.eye(3, 8), np.zeros((100, 3), np.float32)
    speaks[:40, 0] = speaks[50:80, 1] = 1
    outputs = [WindowOutput(first, speaks, voices, np.array([9.0, 9.0, 0.0])) for first in range(0, 1000, 100)]
    late = speaks.copy()
    late[85:95, 2] = 1
    for alone, share, number in ((1.4, 0.0, 2), (1.5, 0.0, 3), (1.5, 0.02, 2), (1.5, 0.01, 3)):
        there = [*outputs, WindowOutput(1000, late, voices, np.array([9.0, 9.0, alone]))]
        found = stitch_windows(there, 1100, InferenceConfig(min_share=share))
        assert found.shape[1] == number
        assert (found[1085:1095].max(1) == 1).all(), "their speech is kept, as another's"
    assert stitch_windows(there, 1100, InferenceConfig(min_share=0.5, min_speakers=3)).shape[1] == 3


def test_one_who_speaks_only_with_others_is_who_explains_what_is_heard():
    """A and C at once: the embedding is nearer to B, who sounds like A, than to C; but A and B together are not it."""
    a, c = np.eye(3)[0], np.eye(3)[1]
    b = np.array([0.85, 0.3, np.sqrt(1 - 0.85**2 - 0.3**2)])
    mixture = (a + c) / np.sqrt(2)
    assert mixture @ b > mixture @ c
    speaks = np.zeros((100, 3), np.float32)
    speaks[:33, 0] = speaks[33:66, 1] = speaks[66:, 2] = 1
    both = np.zeros((100, 2), np.float32)
    both[:, 0] = both[40:60, 1] = 1
    outputs = [
        *(WindowOutput(first, speaks, np.stack([a, b, c]), np.full(3, 9.0)) for first in (0, 100, 200)),
        WindowOutput(300, both, np.stack([a, mixture]), np.array([9.0, 0.0])),
    ]
    found = stitch_windows(outputs, 400, InferenceConfig(clustering_threshold=0.1))
    assert found[340:360].tolist() == [[1, 0, 1]] * 20


@pytest.mark.parametrize("turned", [False, True])
def test_one_who_speaks_only_with_others_is_who_speaks_then_in_the_next_window(turned: bool):
    """The embedding is B's; in the frames in common it is C, who speaks alone after (or, ``turned``, before) them."""
    speaks, voices = np.zeros((100, 3), np.float32), np.eye(3, 8)
    speaks[:33, 0] = speaks[33:66, 1] = speaks[66:, 2] = 1
    first, second = np.zeros((100, 2), np.float32), np.zeros((100, 2), np.float32)
    first[:95, 0] = first[60:95, 1] = 1
    second[:45, 0] = second[10:, 1] = 1
    outputs = [WindowOutput(place, speaks, voices, np.full(3, 9.0)) for place in (0, 100, 200)]
    outputs.append(WindowOutput(300, first, voices[[0, 1]], np.array([9.0, 0.0])))
    outputs.append(WindowOutput(350, second, voices[[0, 2]], np.array([9.0, 9.0])))
    if turned:
        outputs = [
            output._replace(first=350 - output.first, probabilities=output.probabilities[::-1])
            for output in reversed(outputs)
        ]
    found = stitch_windows(outputs, 450, INFERENCE)[:: -1 if turned else 1]
    b, c = found[50].argmax(), found[80].argmax()
    assert found[365:390, c].min() == 1
    assert found[365:390, b].max() == 0


def test_who_is_who_of_two_who_both_speak_throughout_is_not_known():
    """Two windows with all frames of one in common with half of the other's; alone, both speak elsewhere."""
    both = np.ones((100, 2), bool)
    firsts, vectors = [0, 50], np.eye(4)
    alone = np.array([9.0, 9.0, 0.0, 0.0])
    assert not average_neighbours(firsts, [both, both], vectors, alone)[2:].any()
    one_pauses = both.copy()
    one_pauses[60:90, 1] = False
    answers = both.copy()
    answers[10:40, 0] = False
    np.testing.assert_allclose(average_neighbours(firsts, [one_pauses, answers], vectors, alone)[2:], np.eye(4)[[1, 0]])


def make_outputs(
    truth: np.ndarray, voices: np.ndarray, rng: np.random.Generator, noise: float, frame: float
) -> list[WindowOutput]:
    """Perfect windows of 30 s, every 15 s; embeddings of speech alone or of all who speak, noisier of short speech."""
    outputs = []
    size = round(30 / frame)
    for first in range(0, len(truth) - size // 2, size // 2):
        part = truth[first : first + size]
        present = rng.permutation(np.flatnonzero(part.sum(0) >= 0.1 / frame))
        part = part[:, present]
        seconds = part[part.sum(1) == 1].sum(0) * frame
        together = part.T @ part / np.maximum(part.sum(0), 1)[:, None] @ voices[present]
        embeddings = np.where(seconds[:, None] >= 0.5, voices[present], together)
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
        length = np.where(seconds >= 0.5, seconds, part.sum(0) * frame)
        spread = noise / np.sqrt(np.maximum(length, 0.1) * voices.shape[1])
        embeddings = embeddings + spread[:, None] * rng.normal(size=embeddings.shape)
        outputs.append(WindowOutput(first, part, embeddings, seconds))
    return outputs


@pytest.mark.parametrize("clustering", ["agglomerative", "centred", "vbx"])
@pytest.mark.parametrize("number", [2, 3, 5, 7, 10])
def test_an_hour_is_joined_for_half_a_point(number: int, clustering: str):
    """Any number of voices with something in common, a third of the time several at once."""
    rng, frame = np.random.default_rng(number), 0.1
    voices = distinct_voices(rng, number) + 0.5 * np.ones(32) / np.sqrt(32)
    voices /= np.linalg.norm(voices, axis=1, keepdims=True)
    truth = random_turns(rng, 36_000, number)
    outputs = make_outputs(truth, voices, rng, 0.5, frame)
    found = stitch_windows(outputs, 36_000, InferenceConfig(clustering=clustering))
    assert found.shape[1] == number
    together = (found >= 0.5).T.astype(np.float64) @ truth
    columns = together.argmax(0)
    assert sorted(columns) == list(range(number))
    wrong = ((found[:, columns] >= 0.5) != truth).any(1)
    assert wrong.sum() / truth.sum() <= 0.005


@pytest.mark.parametrize(("number", "apart"), [(6, 6), (4, 4), (3, 2), (2, 1)])
def test_without_what_all_have_in_common_two_near_voices_are_told_apart(number: int, apart: int):
    """Two of the voices are nearer than the threshold, since most of an embedding is the same for all."""
    rng = np.random.default_rng(number)
    own = np.linalg.qr(rng.normal(size=(24, 24)))[0][: number + 1]
    own[1] = 0.15 * own[0] + np.sqrt(1 - 0.15**2) * own[1]
    voices = 1.5 * own[number] + own[:number]
    voices /= np.linalg.norm(voices, axis=1, keepdims=True)
    truth = np.kron(np.eye(number, dtype=np.float32)[rng.permutation(np.arange(4 * number) % number)], np.ones((50, 1)))
    outputs = windows_of(truth, voices, 50, 50, rng, noise=0.01)
    found = {
        name: stitch_windows(outputs, len(truth), InferenceConfig(clustering=name, clustering_threshold=0.28))
        for name in ("agglomerative", "centred")
    }
    assert found["agglomerative"].shape[1] == number - 1, "the two are one without it"
    assert found["centred"].shape[1] == apart


def test_all_who_hardly_speak_are_still_heard():
    output = WindowOutput(0, np.zeros((1000, 2), np.float32), np.eye(2))
    output.probabilities[500, 1] = 0.9
    found = stitch_windows([output, output._replace(first=500)], 1500, INFERENCE)
    assert found.shape[1] == 1
    assert make_segments(found, INFERENCE, 0.1), "one frame here and there is all there is"


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
    assert make_segments(found, inference, 0.02) == []
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
