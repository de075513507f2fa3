"""Recordings of any length: windows that cover everything, files read like arrays in memory, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from small_diarizers import COLLATORS, FRAME_SHIFT, NUM_BINS, conversation, small_diarizer
from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.segments import cropped
from vaak.core.errors import DataError, UserError
from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.predict import WINDOWS_AT_ONCE, Diarized, Diarizer, Window
from vaak.tasks.diarization.stitching import WindowOutput

AUDIO = AudioConfig(num_mel_bins=NUM_BINS)


def diarizer(label_type: str = "multilabel", frame_shift: float = FRAME_SHIFT, **inference: Any) -> Diarizer:
    return Diarizer(small_diarizer(label_type), InferenceConfig(**inference), frame_shift)


@given(
    num_frames=st.integers(0, 3000),
    window=st.floats(0.01, 12.0),
    overlap=st.floats(0.0, 0.95),
    subsampling=st.sampled_from([1, 4, 10]),
)
def test_windows_cover_everything(num_frames: int, window: float, overlap: float, subsampling: int):
    model = small_diarizer(subsampling=subsampling, upsampling=1, num_layers=1)
    made = Diarizer(model, InferenceConfig(window=window, window_overlap=overlap), FRAME_SHIFT)
    windows = made.windows(num_frames)
    covered = np.zeros(num_frames, dtype=bool)
    longest = max(subsampling, round(window / FRAME_SHIFT / subsampling) * subsampling)
    for first, last in windows:
        assert first % subsampling == 0, "it begins within a frame of the encoder"
        assert 0 < last - first <= longest
        covered[first:last] = True
    assert covered.all()
    firsts = [first for first, _ in windows]
    assert firsts == sorted(set(firsts))
    if num_frames > longest:
        assert all(last - first > longest - subsampling for first, last in windows)


def test_a_short_recording_is_one_window():
    made, example = diarizer(), conversation(0, 300)
    assert made.windows(300) == [(0, 300)]
    found = made.probabilities(example.features)
    expected = made.model.infer(torch.from_numpy(example.features)[None], torch.ones(1, 300, dtype=torch.bool))
    np.testing.assert_allclose(found, expected.probabilities[0].detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("label_type", COLLATORS)
def test_a_long_recording_has_all_its_frames(label_type: str):
    made, example = diarizer(label_type, window=3.0), conversation(0, 1401)
    found = made.probabilities(example.features)
    assert len(found) == 701
    assert bool(np.isfinite(found).all())
    assert 0 <= found.min() <= found.max() <= 1 + 1e-6
    for start, end, speaker in made.segments(found):
        assert 0 <= start < end <= 14.02
        assert made.collator.names is None or speaker in made.collator.names


def test_windows_say_the_same_in_any_company():
    """How many windows go through the model at once, and how long the others are, changes nothing."""
    made, example = diarizer(window=2.0), conversation(1, 2037)
    windows = [Window(first, example.features[first:last]) for first, last in made.windows(2037)]
    assert len(windows) > WINDOWS_AT_ONCE
    together = list(made.compute_outputs(windows))
    for window, output in zip(windows, together, strict=True):
        [alone] = made.compute_outputs([window])
        assert output.first == window[0] // 2
        np.testing.assert_allclose(output.probabilities, alone.probabilities, atol=1e-5)
        assert output.embeddings is not None
        assert alone.embeddings is not None
        np.testing.assert_allclose(output.embeddings, alone.embeddings, atol=1e-4)


def noise(seconds: float, rate: int) -> np.ndarray:
    rng, num_samples = np.random.default_rng(0), round(seconds * rate)
    levels = np.repeat(rng.uniform(0.01, 0.1, 100), rate)[:num_samples]
    return (rng.standard_normal(num_samples) * levels).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampling_rate": 22050},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"snip_edges": True},
                {"frame_length": 0.2, "frame_shift": 0.005},
                {"feature_type": "mfcc", "num_ceps": NUM_BINS, "num_mel_bins": 20},
            )
        ),
    ],
    ids=str,
)
def test_a_file_is_read_as_it_is_in_memory(tmp_path: Path, options: dict[str, Any]):
    """Also where 10 ms aren't a whole number of samples: window after window would be later and later."""
    audio = AudioConfig(**{"num_mel_bins": NUM_BINS, **options})
    samples = noise(60.0, audio.sampling_rate)
    soundfile.write(tmp_path / "long.wav", samples, audio.sampling_rate, "FLOAT")
    features = Features(audio)
    whole = features(samples)
    made = Diarizer(small_diarizer(), InferenceConfig(window=4.0), features.frame_shift)
    pieces: list[np.ndarray] = []

    def watch(_: Any, arguments: tuple[torch.Tensor, torch.Tensor]) -> None:
        pieces.extend(row[real].numpy() for row, real in zip(*arguments, strict=True))

    watching = made.model.register_forward_pre_hook(watch)
    found = made.diarize_file(tmp_path / "long.wav", audio)
    watching.remove()
    assert len(pieces) > 20
    for (first, last), piece in zip(made.windows(len(whole)), pieces, strict=True):
        np.testing.assert_allclose(piece, whole[first:last], atol=2e-4)
    assert found.segments == cropped(made.segments(made.probabilities(whole)), 0.0, 60.0)
    assert (found.name, found.duration) == ("long", 60.0)
    assert found.real_time_factor == found.seconds_taken / 60.0


@pytest.mark.parametrize("seconds", [0.002, 0.05, 0.5])
@pytest.mark.parametrize("label_type", COLLATORS)
def test_the_shortest_recordings(tmp_path: Path, seconds: float, label_type: str):
    soundfile.write(tmp_path / "short.wav", noise(1.0, 16000)[: round(seconds * 16000)], 16000)
    found = diarizer(label_type).diarize_file(tmp_path / "short.wav", AUDIO)
    assert found.duration == pytest.approx(seconds)
    assert all(0 <= segment.start < segment.end <= found.duration for segment in found.segments)


def test_silence_is_a_recording_like_others(tmp_path: Path):
    soundfile.write(tmp_path / "mute.wav", np.zeros(16000 * 12), 16000)
    found = diarizer(window=4.0).diarize_file(tmp_path / "mute.wav", AUDIO)
    assert all(0 <= segment.start < segment.end <= 12.0 for segment in found.segments)


def test_a_file_that_cant_be_read_is_named(tmp_path: Path):
    (tmp_path / "empty.wav").touch()
    with pytest.raises(DataError, match=r"empty\.wav: the file is empty"):
        diarizer().diarize_file(tmp_path / "empty.wav", AUDIO)
    with pytest.raises(DataError, match=r"none\.wav: can't be read"):
        diarizer().diarize_file(tmp_path / "none.wav", AUDIO)


def test_no_more_than_a_few_windows_are_read_ahead(monkeypatch: pytest.MonkeyPatch):
    """Ten minutes, of which never more is held than the windows that go through the model together."""
    made = diarizer(window=20.0)
    unused: list[int] = []
    most = []

    def read(first: int, last: int) -> np.ndarray:
        unused.append(last - first)
        most.append(sum(unused))
        return np.random.default_rng(first).standard_normal((last - first, NUM_BINS)).astype(np.float32)

    made.model.register_forward_pre_hook(lambda *_: unused.clear())
    found = made.of_windows(read, 60_000)
    assert len(found) == 30_000
    assert max(most) == WINDOWS_AT_ONCE * 2000


def test_the_model_is_left_as_it_was():
    made = diarizer()
    for training in (True, False):
        made.model.train(training)
        made.probabilities(conversation(0, 200).features)
        assert made.model.training == made.model.encoder.training == training


def test_how_long_it_took_is_no_part_of_the_answer():
    assert Diarized("a", [], 1.0, 2.0) == Diarized("a", [], 1.0, 3.0)
    assert Diarized("a", [], 0.0, 2.0).real_time_factor == 0.0


def test_more_speakers_than_a_window_has_are_refused_in_one_line(tmp_path: Path):
    soundfile.write(tmp_path / "short.wav", noise(2.0, 16000), 16000)
    refusal = r"short\.wav: 3 speakers were asked for, but this model tells at most 2 apart in a recording of"
    refused = (diarizer(num_speakers=3), diarizer(min_speakers=3))
    for one in refused:
        with pytest.raises(UserError, match=refusal):
            one.diarize_file(tmp_path / "short.wav", AUDIO)
    diarizer(num_speakers=3, window=0.5).diarize_file(tmp_path / "short.wav", AUDIO)  # windows are joined


def test_as_many_as_the_model_can_tell_apart_are_noticed():
    def output(*columns: float) -> WindowOutput:
        return WindowOutput(0, np.tile(np.array(columns, np.float32), (5, 1)))

    assert diarizer().at_ceiling([output(0.9, 0.1), output(0.9, 0.9)])
    assert not diarizer().at_ceiling([output(0.9, 0.1), output(0.1, 0.9)])
    assert not diarizer(num_speakers=2).at_ceiling([output(0.9, 0.9)])  # the user knows
    assert not diarizer("binary").at_ceiling([output(0.9)])
