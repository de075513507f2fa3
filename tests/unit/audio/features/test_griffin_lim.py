"""Waveforms of spectrograms against librosa: as consistent, the same each time, with the mel spectrogram asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vaak.audio.corpora.voices import make_voices, utter
from vaak.audio.features.mel import (
    MelSpectrogram,
    excite,
    griffin_lim,
    invert_mel,
    reconstruct_voice,
    reconstruct_waveform,
)
from vaak.audio.features.pitch import fundamental_frequency
from vaak.audio.mel_config import MelConfig

librosa = pytest.importorskip("librosa")

RATE = 16000
CONFIG = MelConfig(sampling_rate=RATE, n_fft=800, win_length=800, hop_length=200)


@pytest.fixture(scope="module")
def speech() -> Tensor:
    return torch.from_numpy(utter(make_voices(2, 0)[0], "the birch canoe slid on the smooth planks").samples)


def distance(found: Tensor, wanted: Tensor) -> float:
    """Spectral convergence: the norm of the difference, relative to what is wanted."""
    return float(torch.linalg.norm(found - wanted) / torch.linalg.norm(wanted))


@given(num_samples=st.integers(1, 3000), sizes=st.sampled_from([(1024, 256), (1200, 300), (512, 256), (800, 7)]))
def test_the_inverse_gives_back_what_was_transformed(num_samples: int, sizes: tuple[int, int]) -> None:
    length, shift = sizes
    layer = MelSpectrogram(MelConfig(n_fft=1200, win_length=length, hop_length=shift, n_mels=20)).double()
    samples = torch.randn(2, num_samples, dtype=torch.float64, generator=torch.Generator().manual_seed(num_samples))
    found = layer.inverse(layer.stft(samples), num_samples)
    np.testing.assert_allclose(found, samples, atol=1e-6)


def test_the_inverse_can_be_differentiated() -> None:
    layer = MelSpectrogram(MelConfig(n_fft=16, win_length=16, hop_length=4, n_mels=4, f_max=None)).double()
    spectra = torch.randn(2, 6, 9, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(layer.inverse, (spectra.requires_grad_(),), fast_mode=True)


@pytest.mark.slow
def test_as_consistent_as_librosas(speech: Tensor) -> None:
    layer = MelSpectrogram(CONFIG)
    magnitudes = layer.linear(speech)
    found = {number: griffin_lim(magnitudes, layer, number, 0, len(speech)) for number in (0, 8, 32)}
    theirs = librosa.griffinlim(
        magnitudes.numpy().T, n_iter=32, hop_length=200, length=len(speech), random_state=0, pad_mode="reflect"
    )
    errors = {number: distance(layer.linear(samples), magnitudes) for number, samples in found.items()}
    assert errors[32] < errors[8] < errors[0]
    assert errors[32] < 1.1 * distance(layer.linear(torch.from_numpy(theirs)), magnitudes)


def test_the_same_seed_gives_the_same_samples(speech: Tensor) -> None:
    layer = MelSpectrogram(CONFIG)
    mel = layer(speech[:8000])
    first, again, other = (reconstruct_waveform(mel, layer, 4, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "options", [{}, {"spectrum": "power", "log": "base10", "floor": 1e-10}, {"log": "none", "norm": "none"}], ids=str
)
def test_a_mel_spectrogram_becomes_samples_that_have_it(speech: Tensor, options: dict) -> None:
    layer = MelSpectrogram(CONFIG.model_copy(update=options))
    mel = layer(speech)
    magnitudes = invert_mel(mel, layer)
    assert (magnitudes >= 0).all()
    linear = magnitudes.square() if options.get("spectrum") == "power" else magnitudes
    assert distance(linear @ layer.filters.T, layer.without_log(mel)) < 0.04
    found = reconstruct_waveform(mel, layer, num_samples=len(speech))
    assert found.shape == speech.shape
    log = MelSpectrogram(CONFIG)
    assert (log(found) - log(speech)).abs().mean() < 0.25


def test_magnitudes_fit_far_better_than_least_squares(speech: Tensor) -> None:
    """Made positive, from which librosa's search begins, too."""
    layer = MelSpectrogram(CONFIG)
    mel = layer(speech[5000:10000]).exp()
    begin = torch.linalg.lstsq(layer.filters, mel.T, driver="gelsd").solution.T.clamp(min=0)
    ours = distance(invert_mel(mel.log(), layer) @ layer.filters.T, mel)
    assert ours < 0.2 * distance(begin @ layer.filters.T, mel)


@pytest.mark.slow  # librosa.util compiles for 20 s where it was just installed
def test_magnitudes_fit_better_than_librosas(speech: Tensor) -> None:
    layer = MelSpectrogram(CONFIG)
    mel = layer(speech[5000:10000]).exp()  # librosa takes a minute for a sentence
    theirs = librosa.util.nnls(layer.filters.numpy(), mel.numpy().T)
    ours = distance(invert_mel(mel.log(), layer) @ layer.filters.T, mel)
    assert ours < distance(torch.from_numpy(theirs.T) @ layer.filters.T, mel)


def test_batches_lengths_and_next_to_nothing(speech: Tensor) -> None:
    layer = MelSpectrogram(CONFIG)
    rows = layer.linear(speech[:4100].reshape(2, 2050))
    assert griffin_lim(rows, layer, 2).shape == (2, 2000)
    assert griffin_lim(rows, layer, 2, num_samples=2199).shape == (2, 2199)
    for num_samples in (1999, 2200):
        with pytest.raises(ValueError, match=f"{num_samples} samples have 1[02] frames, not 11"):
            griffin_lim(rows, layer, 2, num_samples=num_samples)
    assert griffin_lim(rows[:, :1], layer).shape == (2, 0)
    assert griffin_lim(rows[:, :0], layer).shape == (2, 0)
    assert torch.isfinite(reconstruct_waveform(layer(torch.zeros(2000)), layer)).all()


@pytest.mark.parametrize("frequency", [70.0, 113.0, 431.0])
def test_an_excitation_has_its_pitch_and_one_level(frequency: float) -> None:
    f0 = np.full(100, frequency, np.float32)
    f0[60:] = 0
    found = excite(f0, CONFIG)
    assert found.shape == (99 * CONFIG.hop_length,)
    torch.testing.assert_close(found, excite(f0, CONFIG))
    # Frames at the ends and next to the change look at less than whole periods of one kind.
    pulses, noise = found[: 58 * CONFIG.hop_length], found[62 * CONFIG.hop_length :]
    for part in (pulses, noise):
        assert float(part.square().mean()) == pytest.approx(1, rel=0.06)
    tracked = fundamental_frequency(found.numpy(), CONFIG)
    np.testing.assert_allclose(tracked[5:55], frequency, rtol=0.01)
    assert not tracked[65:].any()


def test_an_excitation_glides_and_keeps_its_phase() -> None:
    """An octave up in a minute, at 22 kHz: each pulse comes a period after the last, to the sample."""
    config = MelConfig()
    f0 = np.exp(np.linspace(np.log(100), np.log(200), 60 * 86)).astype(np.float32)
    found = excite(f0, config).numpy()
    here = found[1:-1]
    # A pulse between two samples has two high ones; between pulses the sum is about -0.1.
    peaks = 1 + np.flatnonzero((here > found[:-2]) & (here >= found[2:]) & (here > 0.4 * found.max()))
    periods = config.sampling_rate / np.interp(peaks[1:] / config.hop_length, np.arange(len(f0)), f0)
    assert len(peaks) == pytest.approx(f0.mean() * len(found) / config.sampling_rate, abs=2)
    assert np.abs(np.diff(peaks) - periods).max() < 1.5


@pytest.mark.parametrize("num_frames", [0, 1, 2])
def test_short_spectrograms_have_the_audio_between_their_centres(num_frames: int) -> None:
    mel = torch.zeros(num_frames, CONFIG.n_mels)
    for f0 in (np.zeros(num_frames, np.float32), np.full(num_frames, 100, np.float32)):
        found = reconstruct_voice(mel, MelSpectrogram(CONFIG), f0)
        assert found.shape == (CONFIG.hop_length * max(num_frames - 1, 0),)
        assert found.isfinite().all()


def test_blurred_harmonics_keep_their_pitch_only_with_phases_of_it(speech: Tensor) -> None:
    """A model predicts means, so its harmonics are blurred: here over seven bins, which is more than two of them."""
    layer = MelSpectrogram(CONFIG)
    recorded = fundamental_frequency(speech.numpy(), CONFIG)
    mel = torch.nn.functional.avg_pool1d(layer(speech)[:, None], 7, 1, 3, count_include_pad=False)[:, 0]
    heard = {
        "pitch": reconstruct_voice(mel, layer, recorded),
        "random": reconstruct_waveform(mel, layer, 32),
    }
    wrong, cents = {}, {}
    for name, samples in heard.items():
        found = fundamental_frequency(samples.numpy(), CONFIG)[: len(recorded)]
        wrong[name] = np.mean((found > 0) != (recorded[: len(found)] > 0))
        both = (found > 0) & (recorded[: len(found)] > 0)
        cents[name] = np.abs(1200 * np.log2(found[both] / recorded[: len(found)][both]))
    assert wrong["pitch"] < 0.1 < 0.3 < wrong["random"]
    assert np.percentile(cents["pitch"], 95) < 50
