"""Conversations of utterances in memory: who speaks is known, the same seed gives the same ones."""

from typing import Any

import numpy as np
import pytest

import vaak
from vaak.audio.formats.annotation_lines import read_rttm
from vaak.core.errors import UserError

RATE = 8000
OPTIONS: dict[str, Any] = {"num_speakers": 2, "duration": 3, "beta": 0.5, "noise": None, "level_difference": 0.0}


def spoken():
    rng = np.random.default_rng(0)
    return {name: [0.1 * rng.standard_normal(RATE // 2) for _ in range(3)] for name in ("anna", "bela", "carl")}


def test_conversations_say_who_speaks():
    found = list(vaak.audio.simulate(spoken(), RATE, 4, seed=3, **OPTIONS))
    assert [one.duration for one in found] == [3.0] * 4
    for one in found:
        assert len({segment.speaker for segment in one.segments}) == 2
        silent = np.ones(len(one.samples), bool)
        for start, end, _ in one.segments:
            silent[round(start * RATE) : round(end * RATE)] = False
        assert not one.samples[silent].any()
        assert one.samples[~silent].any()
    again = list(vaak.audio.simulate(spoken(), RATE, 4, seed=3, **OPTIONS))
    assert all(np.array_equal(one.samples, other.samples) for one, other in zip(found, again, strict=True))
    other = next(vaak.audio.simulate(spoken(), RATE, 1, seed=4, **OPTIONS))
    assert not np.array_equal(other.samples, found[0].samples)


def test_they_are_written_to_a_folder(tmp_path):
    found = list(vaak.audio.simulate(spoken(), RATE, 2, folder=str(tmp_path / "made"), **OPTIONS))
    written = read_rttm(tmp_path / "made" / "reference.rttm")
    assert list(written) == [one.name for one in found]
    assert [len(one.segments) for one in found] == [len(segments) for segments in written.values()]


def test_mistakes_are_said():
    with pytest.raises(UserError, match=r"conversations.bta: Extra inputs"):
        vaak.audio.simulate(spoken(), RATE, 1, bta=1)
    with pytest.raises(UserError, match=r"an utterance of a has the shape \(2, 3\)"):
        vaak.audio.simulate({"a": [np.zeros((2, 3))]}, RATE, 1)
    with pytest.raises(UserError, match="utterances of 1 speakers, too few"):
        vaak.audio.simulate({"a": [np.zeros(9)]}, RATE, 1)


def test_features_by_the_names_of_their_options():
    features = vaak.audio.Features(sampling_rate=RATE, num_mel_bins=23)
    assert features(spoken()["anna"][0].astype(np.float32)).shape == (50, 23)
    with pytest.raises(UserError, match=r"features.mels: Extra inputs"):
        vaak.audio.Features(mels=23)
    with pytest.raises(UserError, match="not both"):
        vaak.audio.Features(vaak.audio.AudioConfig(), num_mel_bins=23)
