"""The inverse transform against torch's; the vocoder's lengths, padding and formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.export import Dim, export
from torch.nn import functional as F

from vaak.nn.speech.masks import length_mask
from vaak.nn.speech.vocos import InverseSTFT, Vocos
from vaak.nn.speech.waveform_losses import Resolution, magnitudes, spectrogram_loss

SIZES = [(1024, 256, 1024), (512, 100, 400), (64, 16, 64), (30, 7, 22)]
sizes = pytest.mark.parametrize(("n_fft", "hop_length", "win_length"), SIZES)


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def spectrum(samples: Tensor, n_fft: int, hop_length: int, win_length: int) -> Tensor:
    """Of centred frames, ``(batch, frame, bin)``."""
    window = torch.hann_window(win_length, dtype=samples.dtype)
    return torch.stft(samples, n_fft, hop_length, win_length, window, return_complex=True).transpose(1, 2)


@sizes
def test_a_signal_comes_back_from_its_true_spectrum(n_fft: int, hop_length: int, win_length: int):
    samples = torch.rand(2, 40 * hop_length + 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    spectra = spectrum(samples, n_fft, hop_length, win_length)
    ours = InverseSTFT(n_fft, hop_length, win_length)(spectra.real, spectra.imag)
    assert ours.shape == (2, 41 * hop_length), "a hop for each frame"
    torch.testing.assert_close(ours[:, : 40 * hop_length], samples[:, : 40 * hop_length], rtol=0, atol=1e-5)


@sizes
@pytest.mark.usefixtures("in_float64")
def test_any_spectrum_gives_the_samples_that_torch_gives(n_fft: int, hop_length: int, win_length: int):
    bins = n_fft // 2 + 1
    spectra = torch.complex(torch.randn(2, 20, bins), torch.randn(2, 20, bins))
    expected = torch.istft(
        spectra.transpose(1, 2), n_fft, hop_length, win_length, torch.hann_window(win_length), length=19 * hop_length
    )
    ours = InverseSTFT(n_fft, hop_length, win_length)(spectra.real, spectra.imag)
    torch.testing.assert_close(ours[:, : 19 * hop_length], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("in_float64")
def test_the_last_hop_is_of_the_last_frames_alone():
    """After the centre of the last frame, samples are what the frames that reach them say, however little that is."""
    samples = torch.randn(1, 64 * 20)
    spectra = spectrum(samples, 256, 64, 256)[:, :-1]
    torch.testing.assert_close(InverseSTFT(256, 64, 256)(spectra.real, spectra.imag), samples, rtol=1e-11, atol=1e-11)
    with_hop_of_half = spectrum(samples, 256, 128, 256)[:, :-1]
    tail = InverseSTFT(256, 128, 256)(with_hop_of_half.real, with_hop_of_half.imag)
    assert (tail.abs() <= samples.abs() + 1e-11).all()


@pytest.mark.parametrize("wrong", [(1024, 600, 1024), (1023, 256, 1023), (512, 128, 1024)])
def test_frames_that_leave_gaps_are_refused(wrong: tuple[int, int, int]):
    with pytest.raises(ValueError, match="expected an even n_fft"):
        InverseSTFT(*wrong)


def vocoder() -> Vocos:
    torch.manual_seed(0)
    made = Vocos(6, InverseSTFT(32, 8, 32), width=10, num_layers=2, inner_width=12)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 3))
def test_neither_padding_nor_the_batch_changes_a_row(lengths: list[int], more: int):
    model, mask = vocoder(), length_mask(torch.tensor(lengths), max(lengths) + more)
    mel = torch.randn(*mask.shape, 6, dtype=torch.float64)
    together = model(mel.masked_fill(~mask[..., None], torch.nan), mask)
    assert together.shape == (len(lengths), 8 * mask.shape[1])
    for row, length in enumerate(lengths):
        alone = model(mel[row : row + 1, :length])
        torch.testing.assert_close(together[row, : 8 * length], alone[0], rtol=1e-11, atol=1e-11)
        assert not together[row, 8 * length :].any()


@pytest.mark.usefixtures("in_float64")
def test_equals_the_formula():
    model = vocoder()
    state, mel = model.state_dict(), torch.randn(2, 12, 6)
    x = F.conv1d(mel.transpose(1, 2), state["embedding.weight"], state["embedding.bias"], padding=3).transpose(1, 2)
    x = F.layer_norm(x, (10,), state["embedding_norm.weight"], state["embedding_norm.bias"], 1e-6)
    for block in (f"blocks.{number}." for number in range(2)):
        y = F.conv1d(
            x.transpose(1, 2), state[f"{block}over_time.weight"], state[f"{block}over_time.bias"], padding=3, groups=10
        )
        y = F.layer_norm(y.transpose(1, 2), (10,), state[f"{block}norm.weight"], state[f"{block}norm.bias"], 1e-6)
        y = F.gelu(F.linear(y, state[f"{block}pointwise.up.weight"], state[f"{block}pointwise.up.bias"]))
        y = F.linear(y, state[f"{block}pointwise.down.weight"], state[f"{block}pointwise.down.bias"])
        x = x + state[f"{block}layer_scale"] * y
    x = F.layer_norm(x, (10,), state["norm.weight"], state["norm.bias"], 1e-6)
    scores = F.linear(x, state["head.weight"], state["head.bias"]).transpose(1, 2)
    spectra = torch.polar(scores[:, :17].exp().clamp(max=100), scores[:, 17:])
    expected = torch.istft(spectra, 32, 8, 32, torch.hann_window(32), length=8 * 11)
    torch.testing.assert_close(model(mel)[:, : 8 * 11], expected, rtol=1e-10, atol=1e-10)


def test_begins_by_the_seed_and_finite():
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(Vocos(6, InverseSTFT(32, 8, 32), width=10, num_layers=2, inner_width=12)(100 * torch.ones(1, 5, 6)))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert made[0].isfinite().all()


def test_every_parameter_learns():
    model = vocoder()
    loss = model(torch.randn(1, 9, 6, dtype=torch.float64)).square().sum()
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, list(model.parameters())))


def test_samples_are_exact_under_autocast():
    model = vocoder().float()
    mel = torch.randn(1, 9, 6)
    with torch.autocast("cpu", torch.bfloat16):
        samples = model(mel)
    assert samples.dtype is torch.float32
    assert (samples - model(mel)).norm() < 0.1 * model(mel).norm()


@pytest.mark.slow
def test_exported_for_one_length_it_takes_any():
    """Through ``torch.export``, which the exporter to ONNX reads too."""
    model, batch, time = vocoder().eval(), Dim("batch", max=64), Dim("time", min=3, max=5000)
    shapes = ({0: batch, 1: time}, {0: batch, 1: time})
    mel, mask = torch.randn(2, 20, 6, dtype=torch.float64), length_mask(torch.tensor([20, 11]))
    exported = export(model, (mel, mask), dynamic_shapes=shapes).module()
    longer = torch.randn(3, 37, 6, dtype=torch.float64), length_mask(torch.tensor([37, 3, 20]))
    torch.testing.assert_close(exported(*longer), model(*longer), rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_learns_to_sing_tones_from_their_spectra():
    """Each tone has one frequency, and a phase that the spectrum doesn't show."""
    torch.manual_seed(0)
    size = Resolution(32, 8, 32)
    model = Vocos(17, InverseSTFT(*size), width=24, num_layers=2, inner_width=48)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def log_spectra(waveforms: Tensor) -> Tensor:
        return magnitudes(waveforms, size).clamp(min=0.1).log().transpose(1, 2)

    losses = []
    for _ in range(150):
        frequencies, phases = 0.3 + 1.5 * torch.rand(4, 1), 6.3 * torch.rand(4, 1)
        tones = torch.sin(frequencies * torch.arange(8 * 15) + phases)
        generated = model(log_spectra(tones))[:, : 8 * 15]
        loss = spectrogram_loss(generated, tones, [log_spectra]).total / 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_a_wild_magnitude_is_limited():
    model = vocoder()
    torch.nn.init.constant_(model.head.bias, 1e4)
    assert model(torch.zeros(1, 9, 6, dtype=torch.float64)).abs().max() <= 100
