"""Whole cuts and windows of them as audio sources: pure in (index, rng), within bounds, the same with any cache."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from lhotse import Recording, SupervisionSegment

from tiny_audio import cut_of, write_audio
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.reading import NO_TIMES
from vaak.audio.cuts.sources import CutSource, WindowSource, at_its_pauses, plan_windows
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.segments import LabelledAudio, Segment
from vaak.core.errors import DataError

AUDIO = AudioConfig()
NO_CACHE = AudioConfig(cache_gigabytes=0)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[CutStore, dict[str, np.ndarray]]:
    """Recordings of 7, 2 and 12 seconds; only 1-3 s and 5-11 s of the last count."""
    folder = tmp_path_factory.mktemp("recordings")
    cuts, samples = [], {}
    for seed, (name, seconds) in enumerate({"a": 7.0, "b": 2.0, "c": 12.0}.items()):
        samples[name] = write_audio(folder / f"{name}.wav", seconds, seed=seed)[:, 0]
        cut = Recording.from_file(folder / f"{name}.wav").to_cut()
        cut.supervisions = [
            SupervisionSegment(f"{name}{start}", name, start, 1.5, speaker="AB"[start % 2])
            for start in range(int(seconds))
        ]
        cut.custom = {"uem": [[1, 3], [5, 11]]} if name == "c" else None
        cuts.append(cut)
    return write_cuts(folder / "store", cuts), samples


def test_whole_cuts(recordings):
    store, samples = recordings
    source = CutSource(store, AUDIO)
    assert source.speakers == ("A", "B")
    assert source.durations.tolist() == [7, 2, 12]
    for index, name in enumerate("abc"):
        audio = source.load(index, generator())
        np.testing.assert_array_equal(audio.samples, samples[name])
        assert audio.name == name
        assert audio.uem == (((1, 3), (5, 11)) if name == "c" else None)
        assert source.describe(index).startswith(f"{name} (")
    assert audio.segments[:2] == (Segment(0, 1.5, "A"), Segment(1, 2.5, "B"))


def test_windows_in_order_cover_what_counts(recordings):
    store, samples = recordings
    source = WindowSource(store, AUDIO, 3.0, shift=False)
    places = [("a", 0, 3), ("a", 3, 6), ("a", 6, 7), ("b", 0, 2), ("c", 1, 3), ("c", 5, 8), ("c", 8, 11)]
    assert source.durations.tolist() == [end - start for _, start, end in places]
    for index, (name, start, end) in enumerate(places):
        audio = source.load(index, generator())
        np.testing.assert_array_equal(audio.samples, samples[name][start * 16000 : end * 16000])
        assert audio.name == f"{name}@{start:.3f}"
    assert source.load(1, generator()).segments[:2] == (Segment(0, 0.5, "A"), Segment(0, 1.5, "B"))
    assert "3.00 s" in source.describe(1)


@given(window=st.floats(0.3, 15), seed=st.integers(0, 2**31))
def test_shifted_windows_stay_in_what_counts_and_are_no_longer_than_said(recordings, window: float, seed: int):
    store, samples = recordings
    source = WindowSource(store, AUDIO, window, shift=True)
    for index in range(len(source.durations)):
        audio = source.load(index, generator(seed))
        assert len(audio.samples) <= round(source.durations[index] * 16000)
        name, _, start = audio.name.partition("@")
        part = source.parts[index]
        assert part[0] - 1e-3 <= float(start) <= float(start) + audio.duration <= part[1] + 1e-3
        first = round(float(start) * 16000)
        shifts = range(-8, 9)  # the name gives milliseconds
        found = [
            np.array_equal(samples[name][max(0, first + s) :][: len(audio.samples)], audio.samples) for s in shifts
        ]
        assert any(found)
        assert all(0 <= s.start < s.end <= audio.duration for s in audio.segments)


def test_a_shift_is_drawn_from_the_generator_alone(recordings):
    store, _ = recordings
    source = WindowSource(store, AUDIO, 3.0, shift=True)
    np.random.seed(1)
    first = source.load(1, generator(5))
    np.random.seed(2)
    source.load(0, generator(9))
    again = source.load(1, generator(5))
    np.testing.assert_array_equal(first.samples, again.samples)
    assert first.segments == again.segments
    assert len({source.load(1, generator(seed)).name for seed in range(20)}) > 10


@pytest.mark.parametrize("shift", [True, False])
def test_a_cache_changes_nothing_and_sources_can_be_sent_to_workers(recordings, shift: bool):
    store, _ = recordings
    cached, plain = (WindowSource(store, audio, 2.5, shift) for audio in (AUDIO, NO_CACHE))
    sent = pickle.loads(pickle.dumps(cached))
    assert cached.all_fit != plain.all_fit
    for seed in (1, 2):
        for index in range(len(cached.durations)):
            wanted = plain.load(index, generator(seed))
            for source in (cached, sent):
                found = source.load(index, generator(seed))
                np.testing.assert_array_equal(found.samples, wanted.samples)
                assert (found.name, found.segments) == (wanted.name, wanted.segments)
    assert len(pickle.dumps(cached)) < 3000


def test_the_fingerprint_follows_the_content_and_what_is_read_of_it(recordings, tmp_path: Path):
    store, _ = recordings
    other = write_cuts(tmp_path, list(store)[:2])
    marks = [
        WindowSource(store, AUDIO, 3.0, False).fingerprint,
        WindowSource(store, AUDIO, 4.0, False).fingerprint,
        WindowSource(store, AUDIO, 3.0, True).fingerprint,
        WindowSource(store, AudioConfig(sampling_rate=8000, high_freq=0), 3.0, False).fingerprint,
        WindowSource(other, AUDIO, 3.0, False).fingerprint,
        CutSource(store, AUDIO).fingerprint,
        CutSource(store, AUDIO, find_speech=True).fingerprint,
    ]
    assert len(set(marks)) == len(marks)
    assert WindowSource(store, NO_CACHE, 3.0, False).fingerprint == marks[0]


@given(st.lists(st.floats(0.05, 40), min_size=1, max_size=6), st.floats(0.5, 10))
def test_windows_lie_one_after_another(tmp_path_factory, durations: list[float], window: float):
    store = write_cuts(tmp_path_factory.mktemp("s"), [cut_of(str(n), d) for n, d in enumerate(durations)])
    cuts, parts, starts = plan_windows(store, window)
    lengths = np.minimum(parts[:, 1] - starts, window)
    assert (lengths > 0).all()
    for number, duration in enumerate(durations):
        assert lengths[cuts == number].sum() == pytest.approx(duration, abs=2e-3)


def test_a_whole_segment_is_cut_at_its_pauses():
    rng = generator()
    samples = np.concatenate([rng.normal(0, scale, 16000) for scale in (0.1, 1e-4, 0.1)]).astype(np.float32)
    audio = LabelledAudio("a", samples, 16000, (Segment(0, 3, "A"),), "text")
    found = at_its_pauses(audio)
    assert [segment.speaker for segment in found.segments] == ["A", "A"]
    np.testing.assert_allclose([s[:2] for s in found.segments], [(0, 1), (2, 3)], atol=0.1)
    assert found.text == "text"
    assert at_its_pauses(LabelledAudio("a", samples, 16000, ())).segments == ()


def a_turn_with_pauses(path: Path, custom: dict | None):
    """A recording of 30 s with pauses, labelled as one segment."""
    samples = write_audio(path, 30.0)[:, 0]
    samples.reshape(-1, 16000)[1::3] *= 1e-4
    soundfile.write(path, samples, 16000)
    cut = Recording.from_file(path).to_cut()
    cut.supervisions = [SupervisionSegment("s", "a", 0.0, 30.0, speaker="Ann", custom=custom)]
    return cut


def test_a_label_of_all_of_a_recording_is_kept_unless_it_says_that_it_has_no_times(tmp_path: Path):
    for number, (custom, expected) in enumerate(((None, 1), ({"source": "x"}, 1), ({NO_TIMES: True}, 11))):
        store = write_cuts(tmp_path / f"store{number}", [a_turn_with_pauses(tmp_path / "a.wav", custom)])
        for source in (
            CutSource(store, AUDIO, find_speech=True),
            WindowSource(store, AUDIO, 30.0, False, find_speech=True),
        ):
            assert len(source.load(0, generator()).segments) == expected
            assert source.hides_pauses(0) == (expected > 1)
        assert len(CutSource(store, AUDIO).load(0, generator()).segments) == 1


def test_a_store_that_does_not_say_which_labels_have_times_is_prepared_again(tmp_path: Path):
    folder = tmp_path / "prepared" / "train" / "0"
    write_cuts(folder, [a_turn_with_pauses(tmp_path / "a.wav", None)])
    about = json.loads((folder / "store.json").read_text())
    del about[NO_TIMES]
    (folder / "store.json").write_text(json.dumps(about))
    source = CutSource(CutStore(folder), AUDIO, find_speech=True)
    with pytest.raises(DataError, match=rf"an earlier version prepared this.*delete {tmp_path / 'prepared'}, and"):
        source.load(0, generator())


def test_a_window_within_a_long_segment_of_a_marked_cut_stays_as_it_is(tmp_path: Path):
    samples = np.concatenate([write_audio(tmp_path / "a.wav", 3.0)[:, 0], np.zeros(16000), np.ones(6 * 16000)])
    samples[4 * 16000 :] *= write_audio(tmp_path / "a.wav", 6.0, seed=1)[:, 0]  # a pause that nobody marked
    soundfile.write(tmp_path / "a.wav", samples, 16000)
    cut = Recording.from_file(tmp_path / "a.wav").to_cut()
    spoken = [(0.0, 8.0, "A"), (9.0, 1.0, "B")]
    cut.supervisions = [SupervisionSegment(name, "a", start, length, speaker=name) for start, length, name in spoken]
    source = WindowSource(write_cuts(tmp_path / "store", [cut]), AUDIO, 2.0, False, find_speech=True)
    assert source.load(1, generator()).segments == (Segment(0.0, 2.0, "A"),)
