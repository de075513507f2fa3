"""Mel-cepstral distortion against librosa and SciPy in float64; warping paths against all paths; pitch of tones."""

from __future__ import annotations

import math
from itertools import pairwise

import librosa
import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vaak.audio.corpora.voices import make_voices, utter
from vaak.audio.espeak import speak
from vaak.audio.features.mel import MelSpectrogram, reconstruct_waveform
from vaak.audio.mel_config import MelConfig
from vaak.scoring.speech_scores import distance, mel_cepstra, warping_path

RATE = 16_000


def spoken(text: str, rate: int = 170, pitch: int = 50) -> np.ndarray:
    found = speak(text, "en-us", rate=rate, pitch=pitch)
    return librosa.resample(found.samples, orig_sr=found.sampling_rate, target_sr=RATE)


def reference_cepstra(samples: np.ndarray) -> np.ndarray:
    mel = librosa.feature.melspectrogram(
        y=samples.astype(np.float64), sr=RATE, n_fft=1024, hop_length=160, win_length=400, power=1.0,
        n_mels=40, fmin=0.0, fmax=8000.0, norm=None, pad_mode="reflect",
    )  # fmt: skip
    return scipy.fft.dct(np.log(np.maximum(mel, 1e-2)), type=2, axis=0).T[:, 1:25] / 40


def reference_distortion(first: np.ndarray, second: np.ndarray) -> float:
    """In dB, the mean over the path that librosa finds."""
    ours, theirs = reference_cepstra(first), reference_cepstra(second)
    _, path = librosa.sequence.dtw(ours.T, theirs.T, metric="euclidean")
    differences = [ours[row] - theirs[column] for row, column in path]
    return float(np.mean([10 / math.log(10) * math.sqrt(2 * float(one @ one)) for one in differences]))


@pytest.mark.slow  # librosa compiles for half a minute where it was just installed
def test_cepstra_are_those_of_librosa_and_scipy():
    samples = spoken("The old man bought a red door.")
    np.testing.assert_allclose(mel_cepstra(samples), reference_cepstra(samples), atol=2e-4)


@pytest.mark.slow
def test_distortion_is_that_of_the_reference_implementation():
    first, second = spoken("The old man bought a red door.", 150), spoken("The old man bought a red door.", 200, 60)
    found = distance(first, second)
    assert found.distortion / found.frames == pytest.approx(reference_distortion(first, second), abs=1e-3)


@pytest.mark.slow
def test_tempo_counts_little_and_level_less():
    text = "Where did she find the key?"
    first = spoken(text)
    other = distance(first, spoken("It was raining so we stayed."))
    slower, quieter = distance(first, spoken(text, 140)), distance(first, 0.5 * first)
    assert distance(first, first).distortion < 1e-6 * other.distortion
    assert slower.distortion / slower.frames < 0.5 * other.distortion / other.frames
    assert quieter.distortion / quieter.frames < 0.1 * other.distortion / other.frames


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(0, 10)))
def test_the_path_is_the_cheapest_of_all(costs: np.ndarray):
    path = warping_path(costs)
    steps = {(later[0] - one[0], later[1] - one[1]) for one, later in pairwise(path.tolist())}
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert path[0].tolist() == [0, 0]
    assert path[-1].tolist() == [size - 1 for size in costs.shape]
    assert costs[path[:, 0], path[:, 1]].sum() == pytest.approx(cheapest(costs))


def cheapest(costs: np.ndarray, row: int = 0, column: int = 0) -> float:
    """By trying every path."""
    rows, columns = costs.shape
    later = [
        cheapest(costs, below, right)
        for below, right in ((row + 1, column), (row, column + 1), (row + 1, column + 1))
        if below < rows and right < columns
    ]
    return float(costs[row, column]) + min(later, default=0.0)


def tone(frequency: float, silent_from: float = 1.0) -> np.ndarray:
    """A second of harmonics, silent in its last part."""
    seconds = np.arange(RATE) / RATE
    sound = sum(np.sin(2 * np.pi * frequency * number * seconds) / number for number in range(1, 9))
    return np.where(seconds < silent_from, 0.1 * sound, 0.0).astype(np.float32)


def test_pitch_and_voicing_of_known_tones():
    found = distance(tone(200), tone(220))
    assert math.sqrt(found.squared_hz / found.voiced) == pytest.approx(20, abs=1)
    assert math.sqrt(found.squared_cents / found.voiced) == pytest.approx(1200 * math.log2(1.1), abs=5)
    assert found.other_voicing <= 0.05 * found.frames
    halves = distance(tone(200), tone(200, silent_from=0.02))
    assert halves.other_voicing > 0.4 * halves.frames  # warping holds the first frames against the silence


def test_pitch_of_audio_that_is_hardly_periodic_stays_in_the_range_of_its_speaker():
    """A low voice through Griffin-Lim had frames more than two octaves up, and an error of 667 cents."""
    recorded = utter(
        make_voices(2, 0)[1], "It was still early so the teacher turned back until twenty to nine."
    ).samples
    layer = MelSpectrogram(MelConfig(sampling_rate=RATE, win_length=800, hop_length=200))
    copied = reconstruct_waveform(layer(torch.from_numpy(recorded)[None])[0], layer, 32).numpy()
    found = distance(recorded, copied)
    assert found.voiced > 200
    assert math.sqrt(found.squared_cents / found.voiced) < 30
