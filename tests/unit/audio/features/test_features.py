"""Features against an independent Kaldi (kaldi-native-fbank), a direct formula in float64, and Lhotse itself."""

from __future__ import annotations

import warnings
from typing import Any

import lhotse
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features, FeaturesOnDevice, dithered

kaldi = pytest.importorskip("kaldi_native_fbank")

TOLERANCE = {"fbank": 2e-4, "mfcc": 5e-4}
"""Of logarithms, and of cepstra, which liftering makes up to 12 times as large."""


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    """Noise that is off its zero line."""
    return (np.random.default_rng(seed).standard_normal(num_samples) * 0.1 + 0.05).astype(np.float32)


def copy_options(config: AudioConfig, options: Any, names: str) -> None:
    for name in names.split():
        setattr(options, name, getattr(config, name))


def by_kaldi(config: AudioConfig, samples: np.ndarray) -> np.ndarray:
    """Return Kaldi's features; for a spectrogram, the windows before the transform."""
    kinds = {"fbank": "Fbank", "mfcc": "Mfcc", "spectrogram": "RawAudioSamples"}
    options = getattr(kaldi, f"{kinds[config.feature_type]}Options")()
    frames = options.frame_opts
    copy_options(config, frames, "preemph_coeff remove_dc_offset window_type round_to_power_of_two snip_edges")
    frames.dither, frames.samp_freq = 0.0, config.sampling_rate
    frames.frame_shift_ms, frames.frame_length_ms = 1000 * config.frame_shift, 1000 * config.frame_length
    if config.feature_type != "spectrogram":
        copy_options(config, options.mel_opts, "low_freq high_freq")
        options.mel_opts.num_bins = config.num_mel_bins
        copy_options(config, options, "use_energy raw_energy energy_floor")
    if config.feature_type == "fbank":
        options.use_power = not config.use_fft_mag
    if config.feature_type == "mfcc":
        copy_options(config, options, "num_ceps cepstral_lifter")
    extractor = getattr(kaldi, f"Online{kinds[config.feature_type]}")(options)
    extractor.accept_waveform(config.sampling_rate, samples.tolist())
    extractor.input_finished()
    return np.array([extractor.get_frame(index) for index in range(extractor.num_frames_ready)], np.float32)


OPTIONS: list[dict[str, Any]] = [
    {},
    *({"window_type": name} for name in ("hanning", "hamming", "rectangular", "blackman")),
    {"snip_edges": True},
    {"preemph_coeff": 0.0},
    {"preemph_coeff": 0.5},
    {"remove_dc_offset": False},
    {"low_freq": 100.0, "high_freq": 3000.0},
    {"high_freq": 0.0},
    {"use_energy": True},
    {"use_energy": True, "raw_energy": False},
    {"use_energy": True, "energy_floor": 30.0},
    {"round_to_power_of_two": False},
    {"frame_length": 0.032, "frame_shift": 0.0125},
    {"num_mel_bins": 23},
    {"sampling_rate": 22050},
    {"sampling_rate": 44100},
]


@pytest.mark.parametrize("sampling_rate", [8000, 16000])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("feature_type", ["fbank", "mfcc"])
def test_as_kaldi(feature_type: Any, options: dict[str, Any], sampling_rate: int) -> None:
    config = AudioConfig(**{"feature_type": feature_type, "num_mel_bins": 40, "sampling_rate": sampling_rate} | options)
    samples = noise(config.sampling_rate)
    features = Features(config)
    found = features(samples)
    assert found.dtype == np.float32
    assert found.shape == (features.num_frames(len(samples)), features.dims)
    np.testing.assert_allclose(found, by_kaldi(config, samples), atol=TOLERANCE[feature_type], rtol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"feature_type": "fbank", "use_fft_mag": True},
        {"feature_type": "mfcc", "num_ceps": 20},
        {"feature_type": "mfcc", "cepstral_lifter": 0},
        {"feature_type": "mfcc", "num_ceps": 30, "cepstral_lifter": 10, "use_energy": True},
    ],
    ids=str,
)
def test_as_kaldi_with_options_of_one_type(options: dict[str, Any]) -> None:
    config = AudioConfig(num_mel_bins=40, **options)
    tolerance = TOLERANCE[config.feature_type]
    np.testing.assert_allclose(Features(config)(noise(16000)), by_kaldi(config, noise(16000)), atol=tolerance, rtol=0)


@given(
    st.integers(0, 4000),
    st.builds(
        AudioConfig,
        feature_type=st.sampled_from(["fbank", "mfcc"]),
        sampling_rate=st.sampled_from([8000, 11025, 16000]),
        num_mel_bins=st.sampled_from([13, 23, 40]),
        frame_length=st.sampled_from([0.02, 0.025, 0.03]),
        frame_shift=st.sampled_from([0.005, 0.01, 0.0125, 0.02]),
        window_type=st.sampled_from(["povey", "hanning", "hamming", "rectangular", "blackman"]),
        snip_edges=st.booleans(),
        preemph_coeff=st.floats(0, 1),
        remove_dc_offset=st.booleans(),
        raw_energy=st.booleans(),
        use_energy=st.booleans(),
        low_freq=st.floats(0, 500),
        high_freq=st.floats(-500, 0),
        cepstral_lifter=st.integers(0, 30),
    ),
)
def test_as_kaldi_whatever_the_options_and_the_length(num_samples: int, config: AudioConfig) -> None:
    found, expected = Features(config)(noise(num_samples)), by_kaldi(config, noise(num_samples))
    assert len(found) == len(expected)
    if len(found):
        np.testing.assert_allclose(found, expected, atol=2e-3, rtol=0)  # edges of little noise have little power


@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("energy", [False, True])
@pytest.mark.parametrize("snip_edges", [False, True])
@pytest.mark.parametrize("window_type", ["povey", "blackman"])
def test_spectrogram_is_the_transform_of_kaldis_windows(
    window_type: Any, snip_edges: bool, energy: bool, magnitude: bool
) -> None:
    options: dict[str, Any] = {"feature_type": "spectrogram", "window_type": window_type, "snip_edges": snip_edges}
    features = Features(AudioConfig(**options, use_energy=energy, raw_energy=False, use_fft_mag=magnitude))
    found = features(noise(16000)).astype(np.float64)
    windows = by_kaldi(AudioConfig(**options, round_to_power_of_two=False), noise(16000)).astype(np.float64)
    expected = np.abs(np.fft.rfft(windows, 512)) ** (1 if magnitude else 2)
    assert features.dims == 257 == found.shape[1]
    if energy:
        np.testing.assert_allclose(found[:, 0], np.log((windows**2).sum(1)), atol=2e-4)
        found, expected = found[:, 1:], expected[:, 1:]
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-4 * expected.mean())


def spectra(samples: np.ndarray, window_length: int = 400, shift: int = 160) -> np.ndarray:
    """Power spectra of whole windows without any preprocessing, ``(frame, 257)`` in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), window_length)[::shift]
    return np.abs(np.fft.rfft(windows, 512)) ** 2


def mel_filters(num_bins: int) -> np.ndarray:
    """Triangles on the mel scale from 20 to 7600 Hz, ``(257, bin)``."""
    mel = 1127 * np.log(1 + np.arange(257) * 16000 / 512 / 700)
    lowest, highest = 1127 * np.log(1 + np.array([20, 7600]) / 700)
    edges = np.linspace(lowest, highest, num_bins + 2)
    rising = (mel[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mel[:, None]) / (edges[2:] - edges[1:-1])
    return np.clip(np.minimum(rising, falling), 0, None)


PLAIN: dict[str, Any] = {
    "num_mel_bins": 40,
    "window_type": "rectangular",
    "preemph_coeff": 0.0,
    "remove_dc_offset": False,
    "snip_edges": True,
}


@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("equal_area", [False, True])
def test_against_a_direct_formula(equal_area: bool, magnitude: bool) -> None:
    options = PLAIN | {"norm_filters": equal_area, "use_fft_mag": magnitude}
    filters = mel_filters(40)
    if equal_area:
        filters = filters / filters.sum(0)
    log_mel = np.log(spectra(noise(16000)) ** (0.5 if magnitude else 1) @ filters)
    np.testing.assert_allclose(Features(AudioConfig(**options))(noise(16000)), log_mel, atol=2e-4)
    cosines = np.cos(np.pi / 40 * (np.arange(40)[:, None] + 0.5) * np.arange(13)) * np.sqrt(2 / 40)
    cosines[:, 0] /= np.sqrt(2)
    lifter = 1 + 11 * np.sin(np.pi * np.arange(13) / 22)
    found = Features(AudioConfig(feature_type="mfcc", **options))(noise(16000))
    np.testing.assert_allclose(found, log_mel @ cosines * lifter, atol=5e-4)


@pytest.mark.parametrize("feature_type", ["fbank", "mfcc", "spectrogram"])
def test_as_lhotse(feature_type: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about Lhotse's mel scale
        theirs = {
            "fbank": lambda: lhotse.Fbank(lhotse.FbankConfig()),
            "mfcc": lambda: lhotse.Mfcc(lhotse.MfccConfig(num_filters=80)),
            "spectrogram": lambda: lhotse.LogSpectrogram(lhotse.LogSpectrogramConfig()),
        }[feature_type]()
    expected = theirs.extract(noise(12345), 16000)
    np.testing.assert_allclose(Features(AudioConfig(feature_type=feature_type))(noise(12345)), expected, atol=1e-5)


@given(
    st.integers(0, 10**9),
    st.sampled_from([8000, 11025, 16000, 44100, 48000]),
    st.sampled_from([0.005, 0.01, 0.0125]),
)
def test_number_of_frames_rounds_half_up(num_samples: int, sampling_rate: int, frame_shift: float) -> None:
    features = Features(AudioConfig(sampling_rate=sampling_rate, frame_shift=frame_shift, num_mel_bins=23))
    shift = round(features.frame_shift * sampling_rate)
    assert abs(features.frame_shift - frame_shift) * sampling_rate < 1
    assert features.num_frames(num_samples) == (2 * num_samples + shift - shift % 2) // (2 * shift)


@pytest.mark.parametrize(("num_samples", "frames"), [(0, 0), (1, 0), (79, 0), (80, 1), (239, 1), (240, 2), (800, 5)])
def test_very_short_audio(num_samples: int, frames: int) -> None:
    found = Features(AudioConfig())(noise(num_samples))
    assert found.shape == (frames, 80)
    assert np.isfinite(found).all()
    snipping = Features(AudioConfig(snip_edges=True))
    assert snipping(noise(num_samples)).shape == (snipping.num_frames(num_samples), 80)


def test_silence_is_finite() -> None:
    for feature_type in ("fbank", "mfcc", "spectrogram"):
        config = AudioConfig(feature_type=feature_type, use_energy=True)
        assert np.isfinite(Features(config)(np.zeros(1600, np.float32))).all()


def test_a_frame_lies_around_its_time() -> None:
    features = Features(AudioConfig())
    samples = np.zeros(16000, np.float32)
    samples[int(0.505 * 16000)] = 1.0
    loudest = int(features(samples).mean(1).argmax())
    assert (loudest + 0.5) * features.frame_shift == pytest.approx(0.505)


LENGTHS = [16000, 0, 1, 799, 800, 48000, 31999, 80]


@pytest.mark.parametrize("feature_type", ["fbank", "mfcc", "spectrogram"])
@pytest.mark.parametrize("snip_edges", [False, True])
@pytest.mark.parametrize("at_once", [7, 100, 100_000])
def test_a_batch_gives_what_each_recording_gives_alone(feature_type: Any, snip_edges: bool, at_once: int) -> None:
    features = Features(AudioConfig(feature_type=feature_type, snip_edges=snip_edges, use_energy=True))
    recordings = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    alone = [features(samples) for samples in recordings]
    features.frames_at_once = at_once
    together = features.batch(recordings)
    assert [frames.shape for frames in together] == [(features.num_frames(length), features.dims) for length in LENGTHS]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 if feature_type == "mfcc" else 1e-4)
    assert features.batch([]) == []


@pytest.mark.parametrize("snip_edges", [False, True])
@pytest.mark.parametrize("num_samples", [0, 100, 16000, 50_001])
@pytest.mark.parametrize("frames_per_piece", [1, 33, 100, 100_000])
def test_pieces_are_those_of_the_whole(num_samples: int, frames_per_piece: int, snip_edges: bool) -> None:
    features = Features(AudioConfig(snip_edges=snip_edges))
    samples = noise(num_samples)
    read: list[int] = []

    def part(first: int, last: int) -> np.ndarray:
        assert 0 <= first <= last <= num_samples
        read.append(last - first)
        return samples[first:last]

    pieces = list(features.pieces(part, num_samples, frames_per_piece))
    assert all(len(piece) == frames_per_piece for piece in pieces[:-1])
    assert max(read, default=0) <= min(frames_per_piece, features.frames_at_once) * 160 + 400
    found = np.concatenate([np.empty((0, features.dims), np.float32), *pieces])
    np.testing.assert_allclose(found, features(samples), atol=1e-4)


def test_a_long_recording_takes_little_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features(AudioConfig())
    seen: list[int] = []
    make = features.frame_rows
    monkeypatch.setattr(features, "frame_rows", lambda padded: seen.append(sum(map(len, padded))) or make(padded))
    features.batch([noise(16000 * 60), noise(16000 * 30)])
    assert max(seen) <= 1000 * 160 + 2 * 400
    assert len(seen) == 9


def test_threads_and_autocast_change_no_bit() -> None:
    features = Features(AudioConfig())
    threads = torch.get_num_threads()
    try:
        found = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(features(noise(30_000)).tobytes())
    finally:
        torch.set_num_threads(threads)
    with torch.autocast("cpu", torch.bfloat16):
        found.append(features(noise(30_000)).tobytes())
    assert len(set(found)) == 1


def test_dither_comes_from_its_generator_alone() -> None:
    samples = noise(20_000)
    rng = np.random.default_rng(3)
    assert dithered(samples, 0.0, rng) is samples
    assert rng.bit_generator.state == np.random.default_rng(3).bit_generator.state
    with_noise = dithered(samples, 0.01, rng)
    assert with_noise.dtype == np.float32
    assert (with_noise - samples).std() == pytest.approx(0.01, rel=0.03)
    assert with_noise.tobytes() == dithered(samples, 0.01, np.random.default_rng(3)).tobytes()
    config = AudioConfig(dither=0.1)
    assert Features(config)(samples).tobytes() == Features(config)(samples).tobytes()  # the extractor adds none


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_mel_bins": 3, "num_ceps": 3}, "num_mel_bins"),
        ({"frame_shift": 0.00001}, "samples at sampling_rate"),
        ({"sampling_rate": 22050, "round_to_power_of_two": False}, "even number"),
        ({"storage_path": "kept", "dither": 0.1}, "dither"),
    ],
)
def test_options_that_no_extractor_takes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AudioConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"snip_edges": True, "use_energy": True},
        {"feature_type": "mfcc", "use_energy": True, "frame_length": 0.032, "frame_shift": 0.0125},
        {"feature_type": "spectrogram", "frame_length": 0.03, "frame_shift": 0.03},
        {
            "feature_type": "mel",
            "mel": {"sampling_rate": 8000, "n_fft": 512, "win_length": 400, "hop_length": 100, "f_max": None},
        },
    ],
    ids=str,
)
def test_features_of_a_padded_batch_are_those_of_each(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding, zero in padding, in however many parts; the shortest has no frame, or less than a window."""
    bins = {} if "mel" in options else {"num_mel_bins": 20}
    config = AudioConfig(**{"sampling_rate": 8000, **bins, **options})
    extract, recordings = Features(config), [noise(length, length) for length in (4000, 39, 1701, 260)]
    expected = extract.batch(recordings)
    sections = [extract.extract_section(one) for one in recordings]
    assert [extract.num_windows(len(one)) for one in sections] == [len(one) for one in expected]
    for one in sections:
        assert not len(one) or len(one) == extract.num_samples(extract.num_windows(len(one)))
    samples = torch.zeros(4, max(map(len, sections)))
    for row, one in zip(samples, sections, strict=True):
        row[: len(one)] = torch.from_numpy(one)
    tensors = {"samples": samples, "num_frames": torch.tensor([len(one) for one in expected])}
    on_device = FeaturesOnDevice(config)
    found = on_device(tensors)
    for row, one in zip(found, expected, strict=True):
        np.testing.assert_allclose(row[: len(one)], one, rtol=1e-5, atol=1e-5)
        assert not row[len(one) :].any()
    monkeypatch.setitem(vars(extract), "frames_at_once", 40)
    torch.testing.assert_close(extract.of_sections(samples, tensors["num_frames"]), found, rtol=1e-5, atol=1e-5)
    assert on_device.__reduce__() == (FeaturesOnDevice, (config,)), "a worker gets none of a device's tensors"
