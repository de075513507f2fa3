"""Recordings as utterances: trimmed, with the times of their alignments from the new start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tiny_voice import RATE, cut, utterance
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.recordings import LeftOut
from vaak.audio.mel_config import MelConfig
from vaak.core.errors import DataError
from vaak.tasks.tts.recordings import get_phones, utterances

AUDIO = AudioConfig(feature_type="mel", mel=MelConfig(f_max=RATE / 2))


@pytest.fixture
def spoken(tmp_path: Path):
    text, samples, phones = utterance(np.random.default_rng(0), 4)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    return cut("a", tmp_path / "a.wav", text, phones), phones


def read(cuts, silence: float | None = 0.05, longest: float = 20.0, *, skip_bad: bool = False):
    left_out = LeftOut(skip_bad)
    return list(utterances(cuts, AUDIO, silence, longest, left_out)), left_out.counts


def test_the_ends_keep_the_silence_that_is_asked_for(spoken):
    whole, phones = spoken
    (one,), _ = read([whole])
    assert one.id == "a"
    assert one.start == pytest.approx(phones[1][1] - 0.05)
    assert one.duration == pytest.approx(phones[-2][2] - phones[1][1] + 0.1)


def test_alignments_move_with_the_start(spoken):
    whole, phones = spoken
    (one,), _ = read([whole])
    moved = get_phones(one)
    assert [phone.text for phone in moved] == [label for label, _, _ in phones]
    assert [phone.start for phone in moved[1:]] == pytest.approx([start - one.start for _, start, _ in phones[1:]])


def test_null_keeps_everything(spoken):
    whole, _ = spoken
    (one,), _ = read([whole], silence=None)
    assert one == whole


def test_without_an_alignment_speech_is_found_by_its_energy(spoken):
    whole, phones = spoken
    whole.supervisions[0].alignment = None
    (one,), _ = read([whole])
    assert one.start == pytest.approx(phones[1][1] - 0.05, abs=0.08)
    assert one.end == pytest.approx(phones[-2][2] + 0.11, abs=0.08)


def test_several_labels_are_several_utterances(spoken):
    whole, phones = spoken
    first, second = phones[1][1], phones[4][1]
    label = whole.supervisions[0]
    whole.supervisions = [
        type(label)("1", "a", first, 0.1, text="he", speaker="ann"),
        type(label)("2", "a", second, 0.15, text="saw", speaker="ben"),
    ]
    found, _ = read([whole], silence=None)
    assert [(one.id, one.supervisions[0].text) for one in found] == [("a-0000", "he"), ("a-0001", "saw")]
    assert [one.start for one in found] == pytest.approx([first, second])
    assert [one.duration for one in found] == pytest.approx([0.1, 0.15])


def test_what_has_no_text_or_is_too_long_is_counted(spoken):
    whole, _ = spoken
    found, counts = read([whole], longest=0.2)
    assert (found, list(counts.values())) == ([], [1])
    whole.supervisions[0].text = None
    found, counts = read([whole])
    assert (found, dict(counts)) == ([], {"utterances without a text": 1})


def test_silence_is_an_error_that_names_the_file_or_is_skipped(tmp_path: Path):
    soundfile.write(tmp_path / "quiet.wav", np.zeros(RATE), RATE)
    quiet = cut("quiet", tmp_path / "quiet.wav", "he", [], custom={"no_times": True})
    with pytest.raises(DataError, match=r"quiet .*quiet\.wav\): it is silent"):
        read([quiet])
    found, counts = read([quiet], skip_bad=True)
    assert (found, sum(counts.values())) == ([], 1)


@pytest.mark.parametrize("silence", [0.05, None])
def test_aligned_recordings_are_listened_to_too(spoken, tmp_path: Path, silence: float | None):
    whole, _ = spoken
    samples, _ = soundfile.read(tmp_path / "a.wav")
    soundfile.write(tmp_path / "a.wav", samples * 1e-3, RATE)
    with pytest.raises(DataError, match=r"a .*a\.wav\): it is silent; remove it"):
        read([whole], silence)
    found, counts = read([whole], silence, skip_bad=True)
    assert (found, sum(counts.values())) == ([], 1)
