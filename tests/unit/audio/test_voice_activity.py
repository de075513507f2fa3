"""Speech and pauses in audio that is still coming: found within a tenth of a second, in noise, however loud."""

from __future__ import annotations

import numpy as np
import pytest

from vaak.audio.speech_regions import find_runs
from vaak.audio.voice_activity import VoiceActivity

RATE = 16_000
SPOKEN = [(1.0, 2.2), (3.0, 4.0), (6.5, 7.5)]


def talk(background: float, speech: float, seconds: float = 9.0) -> np.ndarray:
    """Noise at two levels, in decibels of full scale: that of SPOKEN has syllables."""
    rng = np.random.default_rng(0)
    time = np.arange(round(seconds * RATE)) / RATE
    samples = 10 ** (background / 20) * rng.standard_normal(len(time))
    loud = 10 ** (speech / 20) * rng.standard_normal(len(time)) * np.abs(np.sin(2 * np.pi * 4 * time))
    return samples + loud * sum(((time >= start) & (time < end)) for start, end in SPOKEN)


def regions(samples: np.ndarray, pause: float = 0.3) -> list[tuple[float, float]]:
    voice = VoiceActivity(pause)
    heard = np.array([voice.hear(frame) for frame in samples.reshape(-1, RATE // 100)])
    return [(first / 100, last / 100) for first, last in find_runs(heard)]


@pytest.mark.parametrize(("background", "speech"), [(-90.0, -20.0), (-60.0, -40.0), (-50.0, -15.0), (-35.0, -12.0)])
def test_utterances_are_found_at_any_level(background: float, speech: float):
    found, spoken = regions(talk(background, speech)), SPOKEN
    if background == -35.0:
        # At first, noise as loud as this may be speech.
        found, spoken = found[-1:], SPOKEN[-1:]
    assert len(found) == len(spoken)
    for (start, end), (begins, ends) in zip(found, spoken, strict=True):
        assert begins < start < begins + 0.35
        assert ends + 0.1 < end < ends + 0.45


def test_a_pause_that_is_short_enough_ends_nothing():
    samples = talk(-70.0, -20.0)
    assert len(regions(samples, 0.3)) == 3
    assert len(regions(samples, 1.0)) == 2


def test_silence_steady_noise_and_clicks_are_no_speech():
    assert regions(np.zeros(5 * RATE)) == []
    noise = 0.03 * np.random.default_rng(1).standard_normal(20 * RATE)
    assert [one for one in regions(noise) if one[1] > 4.0] == []
    clicks = 1e-4 * np.random.default_rng(2).standard_normal(5 * RATE)
    clicks[2 * RATE : 2 * RATE + 160] = 0.5
    assert regions(clicks) == []


def test_audio_that_begins_amid_speech():
    samples = talk(-65.0, -20.0)[round(1.3 * RATE) :]
    (start, end), *_ = regions(samples)
    assert start < 0.35
    assert 0.9 < end < 1.35
