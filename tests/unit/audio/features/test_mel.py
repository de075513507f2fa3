"""Mel spectrograms for speech synthesis against librosa, by the same code in every place that computes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from toy_recordings import ToyRecordings
from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.features.mel import MelSpectrogram, mel_filters, reflected
from vaak.audio.features.store import WITHOUT_EFFECT, extract, feature_fingerprint
from vaak.audio.mel_config import REPLACED_BY_MEL, MelConfig
from vaak.core.errors import UserError

librosa = pytest.importorskip("librosa")


def voice(num_samples: int, seed: int = 0) -> np.ndarray:
    """A tone with overtones in noise that fades: loud and quiet frames."""
    rng = np.random.default_rng(seed)
    time = np.arange(num_samples) / 22050
    tone = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 40))
    return np.asarray((0.1 * tone + 0.01 * rng.standard_normal(num_samples)) * np.exp(-3 * time), np.float32)


def by_librosas_filters(config: MelConfig, samples: np.ndarray) -> np.ndarray:
    """The mel spectrogram ``(frame, mel)`` in float64."""
    spectrum = np.abs(stft(config, samples))
    mel = filters_of_librosa(config) @ spectrum ** (2 if config.spectrum == "power" else 1)
    if config.log == "none":
        return np.asarray(mel.T)
    mel = np.maximum(mel.T, config.floor)
    return np.asarray(np.log(mel) if config.log == "natural" else np.log10(mel))


def stft(config: MelConfig, samples: np.ndarray) -> np.ndarray:
    """Compute librosa's STFT, for which librosa compiles for half a minute; the slow tests compare the two."""
    window = np.zeros(config.n_fft)
    start = (config.n_fft - config.win_length) // 2
    window[start : start + config.win_length] = scipy.signal.get_window("hann", config.win_length)
    padded = np.pad(samples.astype(np.float64), config.n_fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, config.n_fft)[:: config.hop_length]
    return np.asarray(np.fft.rfft(frames * window).T)


@pytest.mark.slow
@pytest.mark.parametrize("win_length", [1024, 800, 801])
def test_the_transform_is_librosas(win_length: int) -> None:
    config, samples = MelConfig(win_length=win_length, hop_length=200), voice(22050).astype(np.float64)
    expected = librosa.stft(samples, n_fft=1024, hop_length=200, win_length=win_length, pad_mode="reflect")
    np.testing.assert_allclose(stft(config, samples), expected, atol=1e-12)


def filters_of_librosa(config: MelConfig) -> np.ndarray:
    return np.asarray(
        librosa.filters.mel(
            sr=config.sampling_rate,
            n_fft=config.n_fft,
            n_mels=config.n_mels,
            fmin=config.f_min,
            fmax=config.f_max,
            htk=config.scale == "htk",
            norm="slaney" if config.norm == "slaney" else None,
            dtype=np.float64,
        )
    )


CONFIGS: list[dict[str, Any]] = [
    {},
    {"scale": "htk"},
    {"norm": "none"},
    {"scale": "htk", "norm": "none", "spectrum": "power", "log": "base10"},
    {"f_min": 55.0, "f_max": 7600.0},
    {"f_max": None, "n_mels": 100},
    {"win_length": 800, "hop_length": 200},
    {"win_length": 801, "hop_length": 100},
    {"n_fft": 2048, "hop_length": 300, "win_length": 1200, "sampling_rate": 24000},
    {"sampling_rate": 16000, "n_fft": 512, "hop_length": 160, "win_length": 400, "n_mels": 40, "f_max": None},
    {"log": "none"},
    {"floor": 1e-2},
]


def _cases() -> list[Any]:
    """The configurations; without a norm, librosa compiles half a minute where it was just installed."""
    return [
        pytest.param(options, id=str(options), marks=[pytest.mark.slow] if "norm" in options else [])
        for options in CONFIGS
    ]


@pytest.mark.parametrize("options", _cases())
def test_as_librosa(options: dict[str, Any]) -> None:
    config = MelConfig(**options)
    np.testing.assert_allclose(mel_filters(config), filters_of_librosa(config), atol=1e-12)
    mel = MelSpectrogram(config)
    for num_samples in (22050, 22016, 2100):
        samples = voice(num_samples)
        expected = by_librosas_filters(config, samples)
        exact = mel.double()(torch.from_numpy(samples).double())
        np.testing.assert_allclose(exact, expected, atol=1e-5)
        assert len(expected) == config.num_frames(num_samples)
        single = mel.float()(torch.from_numpy(samples))
        assert single.dtype == torch.float32
        strengths = np.exp if config.log == "natural" else (lambda x: 10**x) if config.log == "base10" else np.asarray
        np.testing.assert_allclose(strengths(single.numpy()), strengths(expected), atol=1e-5, rtol=1e-5)


def test_in_single_precision_the_logarithm_magnifies_rounding_in_quiet_bins() -> None:
    """A loud low tone leaves the bins above it to rounding; before the logarithm these are as near as all others."""
    time = np.arange(22050) / 22050
    samples = np.asarray(0.9 * np.sin(2 * np.pi * 150 * time) + 1e-5 * voice(22050), np.float32)
    expected = by_librosas_filters(MelConfig(), samples)
    single = MelSpectrogram(MelConfig())(torch.from_numpy(samples)).numpy()
    np.testing.assert_allclose(np.exp(single), np.exp(expected), atol=1e-5, rtol=1e-5)
    assert 1e-5 < np.abs(single - expected).max() < 2e-2


@pytest.mark.slow
def test_as_librosas_own_function_with_its_defaults() -> None:
    samples = voice(30000)
    config = MelConfig(
        f_max=None, spectrum="power", n_fft=2048, win_length=2048, hop_length=512, n_mels=128, log="none"
    )
    expected = librosa.feature.melspectrogram(y=samples.astype(np.float64), sr=22050, pad_mode="reflect")
    np.testing.assert_allclose(MelSpectrogram(config)(torch.from_numpy(samples)), expected.T, rtol=1e-4, atol=1e-5)


@given(length=st.integers(1, 40), width=st.integers(0, 90))
def test_mirrored_as_numpy_does(length: int, width: int) -> None:
    samples = np.random.default_rng(length).standard_normal((2, 3, length))
    expected = np.pad(samples, [(0, 0), (0, 0), (width, width)], mode="reflect")
    np.testing.assert_array_equal(reflected(torch.from_numpy(samples), width), expected)


def test_rows_of_a_batch_are_as_alone_and_none_gives_no_frames() -> None:
    mel = MelSpectrogram(MelConfig())
    rows = torch.from_numpy(np.stack([voice(5000, seed) for seed in range(4)]))
    together = mel(rows)
    assert together.shape == (4, 20, 80)
    assert mel(rows.reshape(2, 2, -1)).shape == (2, 2, 20, 80)
    for row, alone in zip(together, map(mel, rows), strict=True):
        np.testing.assert_allclose(row, alone, atol=1e-5)
    assert mel(torch.zeros(0)).shape == (0, 80)
    assert mel(torch.zeros(3, 0)).shape == (3, 0, 80)
    assert torch.equal(mel(torch.zeros(1)), torch.full((1, 80), np.log(1e-5), dtype=torch.float32))


def test_gradients_are_right_and_finite_for_silence_and_under_autocast() -> None:
    config = MelConfig(n_fft=16, win_length=16, hop_length=4, n_mels=4, f_max=None, log="natural")
    mel = MelSpectrogram(config).double()
    samples = torch.randn(2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(mel, (samples,), fast_mode=True)
    silent = torch.zeros(2000, requires_grad=True)
    MelSpectrogram(MelConfig())(silent).sum().backward()
    assert silent.grad is not None
    assert torch.isfinite(silent.grad).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = MelSpectrogram(MelConfig())(torch.from_numpy(voice(5000)))
    assert torch.equal(mixed, MelSpectrogram(MelConfig())(torch.from_numpy(voice(5000))))


def test_a_checkpoint_holds_nothing_of_it() -> None:
    assert not MelSpectrogram(MelConfig()).state_dict()


@given(
    num_samples=st.integers(0, 6000), hop=st.sampled_from([50, 256, 300]), frames=st.integers(1, 20), seed=st.integers()
)
def test_features_of_type_mel_are_the_same_whole_in_pieces_and_stored(
    num_samples: int, hop: int, frames: int, seed: int
) -> None:
    """Groups of frames end anywhere, also one frame before the audio does."""
    config = AudioConfig(feature_type="mel", mel=MelConfig(hop_length=hop))
    features = Features(config)
    samples = voice(num_samples, abs(seed) % 2**31)
    expected = MelSpectrogram(MelConfig(hop_length=hop))(torch.from_numpy(samples)).numpy()
    features.frames_at_once = frames
    np.testing.assert_allclose(features(samples), expected, atol=2e-4)
    assert features.num_frames(num_samples) == len(expected)
    pieces = [*features.pieces(lambda first, last: samples[first:last], num_samples, 7), np.zeros((0, 80))]
    np.testing.assert_allclose(np.concatenate(pieces), expected, atol=2e-4)


def test_stored_mel_spectrograms(tmp_path: Path) -> None:
    config = AudioConfig(feature_type="mel", mel=MelConfig(sampling_rate=16000, n_mels=40, f_max=None))
    source = ToyRecordings([3000, 16000, 1])
    store = extract(source, config, tmp_path)
    assert store.dims == 40
    assert store.frame_shift == 256 / 16000
    assert store.lengths.tolist() == [12, 63, 1]
    mel = MelSpectrogram(config.mel or MelConfig())
    rng = np.random.default_rng()
    for index in range(3):
        samples = torch.from_numpy(source.load(index, rng).samples)
        np.testing.assert_allclose(store.frames(index), mel(samples), atol=2e-4)


def test_the_options_of_the_other_types_follow_or_are_refused() -> None:
    config = AudioConfig(feature_type="mel")
    assert config.mel == MelConfig()
    assert (config.sampling_rate, config.num_mel_bins, config.frame_shift) == (22050, 80, 256 / 22050)
    assert AudioConfig(mel=MelConfig(n_mels=100)).num_mel_bins == 100  # mel says that it is the type
    assert AudioConfig(**config.model_dump()) == config
    with pytest.raises(UserError, match=r"sampling_rate is 16000, but 22050 by the options of mel: leave"):
        AudioConfig(feature_type="mel", sampling_rate=16000)
    with pytest.raises(UserError, match="mel and pitch are options of feature_type mel, but it is mfcc"):
        AudioConfig(feature_type="mfcc", mel=MelConfig())
    with pytest.raises(UserError, match="dither is random each time"):
        AudioConfig(feature_type="mel", dither=0.1, storage_path="x")
    rest = set(AudioConfig.model_fields) - set(REPLACED_BY_MEL) - WITHOUT_EFFECT
    assert rest == {"feature_type", "mel", "pitch", "storage_type", "channels"}


def test_features_stored_before_there_was_a_mel_type_are_still_found() -> None:
    """The fingerprint of defaults, recorded before ``mel`` and ``pitch`` were options."""
    source = ToyRecordings([100], fingerprint="recorded")
    assert feature_fingerprint(source, AudioConfig()) == "c18bebabcdf6e9a4"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"win_length": 2048}, r"win_length \(2048\) is more than n_fft \(1024\)"),
        ({"hop_length": 1025}, r"hop_length \(1025\) is more than win_length \(1024\)"),
        ({"f_min": 9000.0}, "is not a valid frequency range"),
        ({"f_max": 12000.0}, "is not a valid frequency range up to half of sampling_rate"),
        ({"n_fft": 1023, "win_length": 1000}, "multiple of 2"),
        ({"n_mels": 400}, r"of 400 mel filters \(n_mels\) are too narrow.*n_fft \(1024\) must be greater"),
    ],
)
def test_sizes_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MelConfig(**options)


@given(
    n_mels=st.integers(1, 200),
    f_min=st.floats(0, 300),
    scale=st.sampled_from(["htk", "slaney"]),
    n_fft=st.sampled_from([256, 512, 1024]),
)
def test_filters_without_a_frequency_are_refused_and_no_others(n_mels: int, f_min: float, scale: Any, n_fft: int):
    options: dict[str, Any] = {"n_mels": n_mels, "f_min": f_min, "scale": scale, "n_fft": n_fft}
    options |= {"win_length": n_fft, "hop_length": 64}
    try:
        filters = mel_filters(MelConfig(**options))
    except UserError:
        filters = mel_filters(MelConfig.model_construct(**{**MelConfig().model_dump(), **options}))
        assert (filters.max(axis=1) <= 1e-9).any()
    else:
        assert (filters.max(axis=1) > 0).all()


def test_in_single_precision_recordings_are_a_thousandth_off_at_most(vaak_data: Callable[[str], Path]) -> None:
    wavs = sorted((vaak_data("ljspeech_mini") / "wavs").glob("*"))[:40:8]
    for path in wavs:
        samples, _ = soundfile.read(path, dtype="float32")
        expected = by_librosas_filters(MelConfig(), samples)
        single = MelSpectrogram(MelConfig())(torch.from_numpy(samples)).numpy()
        np.testing.assert_allclose(single, expected, atol=1e-3)
        np.testing.assert_allclose(np.exp(single), np.exp(expected), atol=1e-5)
