"""Speaker encoders: unmodified files of onnxruntime and models of transformers, on the right samples; refusals."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from small_diarizers import FRAME_SHIFT, NUM_BINS, conversation, small_diarizer
from tiny_speaker_encoder import save_onnx, save_xvector
from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.core.errors import UserError
from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.speaker_encoder import RATE_HZ, SpeakerEncoder
from vaak.tasks.diarization.stitching import WindowOutput

CPU = torch.device("cpu")
MEL: dict[str, Any] = {
    "mel": {"sampling_rate": RATE_HZ, "n_fft": 400, "hop_length": 160, "win_length": 400, "n_mels": 40}
}


def encoder(path: Path, features: dict[str, Any] | None = None, rate: int = RATE_HZ) -> SpeakerEncoder:
    return SpeakerEncoder(str(path), features or {}, rate, CPU)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, round(seconds * RATE_HZ)).astype(np.float32)


def pooled(x: np.ndarray) -> np.ndarray:
    """Compute the pooling of ``save_onnx`` over the first axis in float64, normalised to unit length."""
    x = x.astype(np.float64)
    found = np.concatenate([np.atleast_1d(x.max(0)), np.atleast_1d((x**2).mean(0))])
    return found / np.linalg.norm(found)


@pytest.mark.parametrize("shape", [("row", "sample"), ("row", 1, "sample"), (1, "sample")])
def test_a_file_that_reads_waveforms_gets_the_samples(tmp_path: Path, shape: tuple[int | str, ...]):
    own = encoder(save_onnx(tmp_path / "e.onnx", shape, len(shape) - 1))
    np.testing.assert_allclose(own(noise(1.3)), pooled(noise(1.3)), atol=1e-6)
    short = noise(0.2)  # is repeated up to half a second
    np.testing.assert_allclose(own(short), pooled(np.resize(short, RATE_HZ // 2)), atol=1e-6)


@pytest.mark.parametrize("bins_last", [True, False])
def test_a_file_that_reads_frames_gets_kaldi_s_filterbank(tmp_path: Path, bins_last: bool):
    """By kaldi-native-fbank, as WeSpeaker makes it; at another rate, samples are resampled first."""
    knf, soxr = pytest.importorskip("kaldi_native_fbank"), pytest.importorskip("soxr")
    options = knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.window_type, options.mel_opts.num_bins = 0.0, "hamming", 80
    shape: tuple[int | str, ...] = ("row", "frame", 80) if bins_last else ("row", 80, "frame")
    path = save_onnx(tmp_path / "e.onnx", shape, 1 if bins_last else 2)

    def expected(samples: np.ndarray) -> np.ndarray:
        made = knf.OnlineFbank(options)
        made.accept_waveform(RATE_HZ, samples.tolist())
        frames = np.stack([made.get_frame(number) for number in range(made.num_frames_ready)])
        return pooled(frames - frames.mean(0))

    np.testing.assert_allclose(encoder(path)(noise(1.3)), expected(noise(1.3)), atol=1e-4)
    slow = soxr.resample(noise(1.3), RATE_HZ, 8000)
    np.testing.assert_allclose(encoder(path, rate=8000)(slow), expected(soxr.resample(slow, 8000, RATE_HZ)), atol=1e-4)


def test_of_a_fixed_number_of_frames_it_is_the_mean_over_pieces(tmp_path: Path):
    path = save_onnx(tmp_path / "e.onnx", ("row", 50, 40), 1)
    frames = Features(**MEL)(noise(1.3))
    pieces = [frames[first : first + 50] for first in (0, 25, 50, 75, len(frames) - 50)]
    single = [np.concatenate([piece.max(0), (piece.astype(np.float64) ** 2).mean(0)]) for piece in pieces]
    mean = np.mean(single, 0)
    np.testing.assert_allclose(encoder(path, MEL)(noise(1.3)), mean / np.linalg.norm(mean), atol=1e-6)


def test_a_model_of_transformers_says_what_it_says_there(tmp_path: Path):
    model, samples = save_xvector(tmp_path), 0.3 + noise(1.3)
    normalised = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model(torch.from_numpy(normalised)[None]).embeddings[0].numpy()
    found = encoder(tmp_path)(samples)
    assert found.shape == (10,)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)


def test_what_cannot_be_an_encoder_is_refused_in_one_line(tmp_path: Path):
    key = "data.inference.speaker_encoder"
    save_xvector(tmp_path / "headless", head=False)
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    two = save_onnx(tmp_path / "two.onnx", ("row", "sample"), 1, inputs=2)
    free = save_onnx(tmp_path / "free.onnx", ("row", "frame", "bin"), 1)
    frames = save_onnx(tmp_path / "frames.onnx", ("row", "frame", 80), 1)
    wave = save_onnx(tmp_path / "wave.onnx", ("row", "sample"), 1)
    torn = save_onnx(tmp_path / "torn.onnx", ("row", "sample"), 1, log=True)
    for source, features, reason in (
        (tmp_path / "none.onnx", {}, f"{key}: no file {tmp_path / 'none.onnx'}"),
        (tmp_path / "broken.onnx", {}, f"{key}: {tmp_path / 'broken.onnx'} can't be loaded: "),
        (tmp_path / "nowhere", {}, f"{key}: {tmp_path / 'nowhere'} can't be loaded: no such folder"),
        (tmp_path / "headless", {}, "give a model with an x-vector head"),
        (two, {}, "expected one input"),
        (free, {}, "a fixed number of bins"),
        (frames, {"num_mel_bins": 40}, "data.inference.speaker_features: 40 numbers a frame, at 16000 Hz; "),
        (frames, {"num_bins": 80}, "data.inference.speaker_features.num_bins"),
        (wave, {"num_mel_bins": 80}, "reads the waveform; leave it out"),
        (torn, {}, "gives NaN or infinity for two seconds of noise"),
    ):
        with pytest.raises(UserError) as error:
            encoder(source, features)
        assert reason in str(error.value)
        assert "\n" not in str(error.value)


def test_a_speaker_of_a_window_is_heard_alone_where_possible(tmp_path: Path):
    """In a window of 4 s, one speaker is alone for two seconds, one for half a second, one never, and one is silent."""
    own = encoder(save_onnx(tmp_path / "e.onnx", ("row", "sample"), 1))
    speaks, samples = np.zeros((200, 4), np.float32), noise(4.0)
    speaks[:150, 0] = speaks[125:175, 1] = speaks[50:75, 2] = 0.9
    speaks[:50, 3] = 0.4
    found, seconds = own.of_window(speaks, samples)
    np.testing.assert_allclose(seconds, [2.0, 0.5, 0.0, 0.0])
    second = RATE_HZ // 50
    alone = np.concatenate([samples[: 50 * second], samples[75 * second : 125 * second]])
    np.testing.assert_allclose(found[0], own(alone), atol=1e-12)
    np.testing.assert_allclose(found[1], own(samples[150 * second : 175 * second]), atol=1e-12)
    np.testing.assert_allclose(found[2], own(samples[50 * second : 75 * second]), atol=1e-12)
    assert not found[3].any()


def test_a_file_is_heard_as_it_is_in_memory(tmp_path: Path):
    """Windows of a file, a few at a time, give what a recording in memory gives; another encoder, something else."""
    audio = AudioConfig(num_mel_bins=NUM_BINS)
    path, samples = tmp_path / "talk.wav", noise(9.0)
    soundfile.write(path, samples, RATE_HZ, subtype="FLOAT")
    own = encoder(save_onnx(tmp_path / "e.onnx", ("row", "frame", 80), 1))
    inference = InferenceConfig(window=2.0, clustering_threshold=0.02)
    diarizer = Diarizer(small_diarizer(), inference, FRAME_SHIFT, own)
    example = replace(conversation(0, 900), features=Features(audio)(samples), audio=lambda: samples)
    outputs = diarizer.of_example(example)
    assert {output.embeddings.shape for output in outputs if output.embeddings is not None} == {(2, 160)}
    expected = diarizer.segments(diarizer.joined(outputs, 900))
    assert diarizer.diarize_file(path, audio).segments == expected
    assert replace(diarizer, encoder=None).diarize_file(path, audio).segments != expected


def test_by_default_voices_differ_from_the_distance_that_was_measured_for_the_encoder(tmp_path: Path):
    """Two people in turn, at a cosine distance of 0.35: two where 0.25 was measured, one where nothing was."""
    own = encoder(save_onnx(tmp_path / "e.onnx", ("row", "sample"), 1))
    voices = np.array([[1.0, 0.0], [0.65, np.sqrt(1 - 0.65**2)]])
    speech = np.ones((100, 1), np.float32)
    outputs = [WindowOutput(100 * turn, speech, voices[[turn % 2]], np.array([2.0])) for turn in range(4)]

    def count(same_below: float | None, **inference: Any) -> int:
        own.same_below = same_below
        diarizer = Diarizer(small_diarizer(), InferenceConfig(**inference), FRAME_SHIFT, own)
        return diarizer.joined(outputs, 400 * diarizer.model.config.output_subsampling).shape[1]

    assert (count(0.25), count(None)) == (2, 1)
    assert (count(0.25, clustering_threshold=0.5), count(None, clustering_threshold=0.3)) == (1, 2)


@pytest.mark.slow  # importing librosa takes seconds
def test_a_ge2e_encoder_is_that_of_resemblyzer(tmp_path: Path):
    """By librosa's mel powers and torch's LSTM, piece by piece as Resemblyzer cuts them."""
    librosa = pytest.importorskip("librosa")
    torch.manual_seed(0)
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    weights = {f"lstm.{name}": value for name, value in lstm.state_dict().items()}
    weights |= {f"linear.{name}": value for name, value in linear.state_dict().items()}
    weights |= {"similarity_weight": torch.ones(1), "similarity_bias": torch.ones(1)}
    torch.save({"step": 1, "model_state": weights}, tmp_path / "e.pt")
    for seconds in (0.9, 1.6, 3.1):
        samples = noise(seconds) * np.float32(0.05)
        louder = samples * 10 ** ((-30 - 10 * np.log10(np.mean(samples**2))) / 20)
        firsts = [first for first in range(0, 10_000, 77) if first == 0 or len(samples) >= (first + 120) * 160]
        padded = np.pad(louder, (0, max(0, (firsts[-1] + 160) * 160 - len(louder))))
        mels = librosa.feature.melspectrogram(y=padded, sr=RATE_HZ, n_fft=400, hop_length=160, n_mels=40).T
        rows = torch.stack([torch.from_numpy(mels[first : first + 160].astype(np.float32)) for first in firsts])
        with torch.inference_mode():
            found = linear(lstm(rows)[1][0][-1]).relu()
        mean = (found / found.norm(dim=1, keepdim=True)).mean(0).numpy()
        np.testing.assert_allclose(encoder(tmp_path / "e.pt")(samples), mean / np.linalg.norm(mean), atol=1e-5)


def test_a_file_that_isn_t_a_ge2e_encoder_is_refused(tmp_path: Path):
    torch.save({"model_state": {"lstm.weight_ih_l0": torch.zeros(2, 2)}}, tmp_path / "e.pt")
    with pytest.raises(UserError, match="isn't a GE2E encoder as Resemblyzer saves it"):
        encoder(tmp_path / "e.pt")
    with pytest.raises(UserError, match=r"no file .*nowhere.pt"):
        encoder(tmp_path / "nowhere.pt")
    with pytest.raises(UserError, match="makes its own features; leave it out"):
        encoder(tmp_path / "e.pt", MEL)
