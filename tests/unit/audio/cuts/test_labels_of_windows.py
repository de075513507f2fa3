"""Texts and alignments of windows: cropped and shifted with the audio, whole where the window is."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lhotse import Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem

from tiny_audio import write_audio
from vaak.audio.augmentation.pipeline import augmented
from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.cuts.sources import CutSource, CutSpan, WindowSource
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.features.extractors import Features
from vaak.audio.features.store import StoredSource, extract
from vaak.audio.segments import Interval, LabelledAudio, Segment, cut_window, words_within

AUDIO = AudioConfig(num_mel_bins=20)
WORDS = [Interval(float(second), second + 0.75, f"w{second}") for second in range(6)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CutStore:
    """A recording of six seconds with a word each, and one of a second whose words have no times."""
    folder = tmp_path_factory.mktemp("windows")
    cuts = []
    for name, seconds in (("a", 6.0), ("b", 1.0)):
        write_audio(folder / f"{name}.wav", seconds)
        cut = Recording.from_file(folder / f"{name}.wav").to_cut()
        cut.id = name
        label = SupervisionSegment(name, name, 0.0, seconds, speaker="A", text=f"all of {name}", language="hi")
        if name == "a":
            label.alignment = {"word": [AlignmentItem(w.text, w.start, w.end - w.start) for w in WORDS]}
        cut.supervisions = [label]
        cuts.append(cut)
    return write_cuts(folder / "store", cuts)


def test_windows_have_their_words(store: CutStore):
    source = WindowSource(store, AUDIO, 2.5, shift=False)
    first, second, third, whole = (source.load(index, np.random.default_rng()) for index in range(4))
    assert first.alignment == {"word": (WORDS[0], WORDS[1], Interval(2, 2.5, "w2"))}
    assert second.alignment == {"word": (Interval(0, 0.25, "w2"), Interval(0.5, 1.25, "w3"), Interval(1.5, 2.25, "w4"))}
    assert [one.text for one in (first, second, third)] == ["w0 w1 w2", "w3 w4", "w5"]
    assert {one.language for one in (first, second, third)} == {"hi"}
    assert (whole.text, whole.alignment) == ("all of b", None)


def test_a_window_of_all_has_the_text_of_all_and_one_without_words_has_none(store: CutStore):
    whole = WindowSource(store, AUDIO, 10.0, shift=False).load(0, np.random.default_rng())
    assert whole.text == "all of a"
    assert whole.alignment == {"word": tuple(WORDS)}
    halves = WindowSource(store, AUDIO, 0.5, shift=False)
    assert halves.load(12, np.random.default_rng()).text is None
    without = pickle.loads(pickle.dumps(WindowSource(store, AUDIO, 2.5, shift=False, alignments=False)))
    first = without.load(0, np.random.default_rng())
    assert (first.alignment, first.text, first.speaker) == (None, None, "A")


@given(first=st.integers(0, 95_000), length=st.integers(1, 60_000))
def test_every_word_is_where_it_is_said(store: CutStore, first: int, length: int):
    last = min(first + length, 96_000)
    found = WindowSource(store, AUDIO, 3.0, shift=True).spoken(CutSpan(0, first, last))
    assert found.alignment is not None
    start, end = first / 16000, last / 16000
    expected = [word for word in WORDS if word.start < end and word.end > start]
    assert [one.text for one in found.alignment["word"]] == [word.text for word in expected]
    for one, word in zip(found.alignment["word"], expected, strict=True):
        assert 0 <= one.start < one.end <= end - start + 1e-9
        assert one.start + start == pytest.approx(max(word.start, start), abs=1e-8)
        assert one.end + start == pytest.approx(min(word.end, end), abs=1e-8)


def test_stored_features_come_with_the_same_labels(store: CutStore, tmp_path):
    cuts = CutSource(store, AUDIO)
    windows = WindowSource(store, AUDIO, 2.5, shift=True)
    features = extract(cuts, AUDIO, tmp_path)
    for source in (cuts, windows):
        stored = StoredSource(source, features, Features(AUDIO))
        for index in range(len(source.durations)):
            with_features = stored.load_features(index, np.random.default_rng(index))
            audio = source.load(index, np.random.default_rng(index))
            for name in ("name", "segments", "text", "language", "alignment", "uem"):
                assert getattr(with_features, name) == getattr(audio, name)


def test_alignments_follow_the_speed():
    samples = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    audio = LabelledAudio("a", samples, 16000, (Segment(0, 1, "A"),), alignment={"word": (Interval(0.5, 1, "so"),)})
    faster = augmented(audio, AugmentationConfig(speed=(1.25,)), np.random.default_rng(0))
    assert faster.alignment == {"word": (Interval(0.4, 0.8, "so"),)}


intervals = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["a", "b", ""])), max_size=12)


@given(start=st.floats(0, 10_000), length=st.floats(0.01, 30))
def test_a_window_of_a_long_recording_is_found_as_by_looking_at_all(start: float, length: float):
    """Speakers overlap, so that an earlier word may end later."""
    words = tuple(
        sorted(Interval(number * 0.7, number * 0.7 + 0.2 + number % 5, f"w{number}") for number in range(9000))
    )
    end = start + length
    expected = [one.text for one in words if one.start < end and one.end > start]
    assert [one.text for one in cut_window({"word": words}, start, end)["word"]] == expected
    middles = [one.text for one in words if start <= (one.start + one.end) / 2 < end]
    assert words_within(words, start, end).split() == middles
