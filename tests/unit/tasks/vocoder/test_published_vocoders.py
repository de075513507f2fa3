"""Published weights of HiFi-GAN and Vocos: the same samples as their authors' networks, written here again."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import tiny_vocoder
import tiny_voice
from vaak.audio.features.mel import MelSpectrogram
from vaak.audio.mel_config import MelConfig
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.metrics_file import read_history
from vaak.runs.start import train
from vaak.tasks.vocoding import Published, synthesize

HOP, N_FFT, BINS = 64, 256, 16
KEY = "data.speaking.vocoder"
SIZES: dict[str, Any] = {
    "resblock": "1",
    "upsample_rates": [8, 4, 2],
    "upsample_kernel_sizes": [16, 8, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 2, 4]],
}
CONFIG = {
    **SIZES,
    "num_mels": BINS,
    "n_fft": N_FFT,
    "hop_size": HOP,
    "win_size": N_FFT,
    "sampling_rate": 8000,
    "fmin": 0,
    "fmax": None,
    "fmax_for_loss": None,
    "seed": 1234,
}


class ReferenceBlock(nn.Module):
    """Both residual blocks of HiFi-GAN, by ``kind``, ``(batch, channel, time)``."""

    def __init__(self, kind: str, width: int, kernel: int, dilations: list[int]) -> None:
        super().__init__()
        self.kind = kind

        def layers(each: list[int]) -> nn.ModuleList:
            convolutions = [nn.Conv1d(width, width, kernel, dilation=one, padding="same") for one in each]
            return nn.ModuleList(weight_norm(one) for one in convolutions)

        if kind == "1":
            self.convs1, self.convs2 = layers(dilations), layers([1] * len(dilations))
        else:
            self.convs = layers(dilations)

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.convs1, self.convs2, strict=True) if self.kind == "1" else ((one,) for one in self.convs)
        for chain in pairs:
            y = x
            for layer in chain:
                y = layer(F.leaky_relu(y, 0.1))
            x = x + y
        return x


class ReferenceHifiGan(nn.Module):
    """The generator of Kong et al. 2020 with weight normalisation and the names of the published files."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["upsample_initial_channel"]
        self.conv_pre = weight_norm(nn.Conv1d(config["num_mels"], width, 7, padding=3))
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(config["upsample_rates"], config["upsample_kernel_sizes"], strict=True):
            self.ups.append(
                weight_norm(nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2))
            )
            width //= 2
            for size, each in zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True):
                self.resblocks.append(ReferenceBlock(config["resblock"], width, size, each))
        self.conv_post = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        """Samples ``(batch, time)`` of ``(batch, bin, frame)``."""
        x, number = self.conv_pre(mel), len(self.resblocks) // len(self.ups)
        for level, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            x = torch.stack([block(x) for block in self.resblocks[level * number : (level + 1) * number]]).mean(0)
        return torch.tanh(self.conv_post(F.leaky_relu(x)))[:, 0]


def write_hifigan(folder: Path, how: str = "torch", **changes: Any) -> ReferenceHifiGan:
    """Write random weights in a published form: ``torch`` as by the authors, or safetensors of a later torch."""
    folder.mkdir(parents=True)
    config = {**CONFIG, **changes}
    torch.manual_seed(0)
    model = ReferenceHifiGan(config)
    with torch.no_grad():
        for weight in model.parameters():  # lengths and directions that don't belong together
            weight.mul_(1 + 0.3 * torch.rand_like(weight))
    (folder / "config.json").write_text(json.dumps(config))
    if how == "torch":
        names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
        weights = dict(model.state_dict())
        for now, before in names.items():
            weights = {name.replace(now, before): one for name, one in weights.items()}
        torch.save({"generator": weights}, folder / "g_00002000")
        torch.save({"generator": {}}, folder / "g_00001000")  # fewer steps
        torch.save({"mpd": {}, "steps": 2000}, folder / "do_00002000")
    else:
        save_file(model.state_dict(), folder / "model.safetensors")
    return model.eval()


def spectrograms(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, BINS, generator=generator) - 2 for length in lengths]


@pytest.mark.parametrize(("how", "resblock"), [("torch", "1"), ("safetensors", "1"), ("torch", "2")])
def test_samples_of_hifigan_are_those_of_the_published_generator(how: str, resblock: str, tmp_path: Path):
    reference = write_hifigan(tmp_path / "published", how, resblock=resblock)
    generator = Published.of(KEY, str(tmp_path / "published")).generator()
    mels = spectrograms(9, 23, 1)
    with torch.no_grad():
        rows = synthesize(generator, mels)
        expected = [reference(mel.T[None])[0] for mel in mels]
    for mel, row, samples in zip(mels, rows, expected, strict=True):
        ours = row[: len(mel) * HOP]
        torch.testing.assert_close(ours[: -HOP // 2], samples[HOP // 2 :], rtol=1e-5, atol=1e-5)
        assert not row[len(mel) * HOP - HOP // 2 :].any()
    assert rows.std() > 0.01


def published_mel(samples: np.ndarray, mel: MelConfig) -> Tensor:
    """``(bin, frame)`` as HiFi-GAN's code computes it: frames begin at padding of ``(n_fft - hop) / 2``."""
    pad = (mel.n_fft - mel.hop_length) // 2
    padded = F.pad(torch.from_numpy(samples)[None], (pad, pad), mode="reflect")[0]
    spectrum = torch.stft(
        padded, mel.n_fft, mel.hop_length, window=torch.hann_window(mel.n_fft), center=False, return_complex=True
    )
    filters = librosa.filters.mel(sr=mel.sampling_rate, n_fft=mel.n_fft, n_mels=mel.n_mels, fmin=0, fmax=mel.f_max)
    magnitudes = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    return (torch.from_numpy(filters) @ magnitudes).clamp(min=1e-5).log()


@pytest.mark.slow
def test_sound_by_way_of_our_spectrogram_stands_where_the_published_code_puts_it(tmp_path: Path):
    """The published frames of the same sound, half a hop later, are ours; and so are its samples."""
    reference = write_hifigan(tmp_path / "published")
    published = Published.of(KEY, str(tmp_path / "published"))
    assert published.mel == MelConfig(**tiny_voice.MEL)
    sound = np.zeros(40 * HOP, np.float32)
    sound[500:2000] = np.random.default_rng(0).normal(scale=0.3, size=1500)
    theirs = published_mel(
        np.concatenate([np.zeros(HOP // 2, np.float32), sound, np.zeros(HOP // 2, np.float32)]), published.mel
    )
    ours = MelSpectrogram(published.mel)(torch.from_numpy(sound))
    torch.testing.assert_close(ours, theirs.T, rtol=0, atol=1e-3)
    with torch.no_grad():
        samples, expected = published.generator()(ours[None])[0], reference(theirs[None])[0]
    torch.testing.assert_close(samples[: -HOP // 2], expected[HOP // 2 :], rtol=0, atol=1e-3)


class ReferenceVocosBlock(nn.Module):
    """A block of Siuzdak 2024, ``(batch, channel, frame)``."""

    def __init__(self, width: int, inner: int, layers: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.gamma = nn.Parameter(torch.full((width,), 1 / layers))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).transpose(1, 2)


class ReferenceVocos(nn.Module):
    """Backbone and head with the names of the published file, its tables included."""

    backbone: Any
    head: Any

    def __init__(self, padding: str, width: int = 24, inner: int = 40, layers: int = 2) -> None:
        super().__init__()
        self.padding = padding
        self.feature_extractor = nn.Module()
        self.feature_extractor.register_buffer("window", torch.hann_window(N_FFT))
        self.backbone, self.head = nn.Module(), nn.Module()
        self.backbone.embed = nn.Conv1d(BINS, width, 7, padding=3)
        self.backbone.norm = nn.LayerNorm(width, eps=1e-6)
        self.backbone.convnext = nn.ModuleList(ReferenceVocosBlock(width, inner, layers) for _ in range(layers))
        self.backbone.final_layer_norm = nn.LayerNorm(width, eps=1e-6)
        self.head.out = nn.Linear(width, N_FFT + 2)
        self.head.istft = nn.Module()
        self.head.istft.register_buffer("window", torch.hann_window(N_FFT))

    def forward(self, mel: Tensor) -> Tensor:
        """Samples ``(batch, time)`` of ``(batch, bin, frame)``: ``center`` by torch's transform, ``same`` by hand."""
        x = self.backbone.norm(self.backbone.embed(mel).transpose(1, 2)).transpose(1, 2)
        for block in self.backbone.convnext:
            x = block(x)
        magnitudes, phases = (
            self.head.out(self.backbone.final_layer_norm(x.transpose(1, 2))).transpose(1, 2).chunk(2, 1)
        )
        spectrum = torch.polar(magnitudes.exp().clamp(max=1e2), phases)
        window = self.head.istft.window
        if self.padding == "center":
            return torch.istft(spectrum, N_FFT, HOP, window=window)
        size, pad = (1, (mel.shape[2] - 1) * HOP + N_FFT), (N_FFT - HOP) // 2
        frames = torch.fft.irfft(spectrum, N_FFT, dim=1) * window[:, None]
        weights = window.square()[None, :, None].expand(1, -1, mel.shape[2])
        added, envelope = (F.fold(one, size, (1, N_FFT), stride=(1, HOP))[:, 0, 0] for one in (frames, weights))
        return added[:, pad:-pad] / envelope[:, pad:-pad]


def write_vocos(folder: Path, padding: str = "center", **features: Any) -> ReferenceVocos:
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    model = ReferenceVocos(padding)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    own = {"sample_rate": 8000, "n_fft": N_FFT, "hop_length": HOP, "n_mels": BINS, "padding": padding, **features}
    parts = {
        "feature_extractor": ("vocos.feature_extractors.MelSpectrogramFeatures", own),
        "backbone": (
            "vocos.models.VocosBackbone",
            {"input_channels": BINS, "dim": 24, "intermediate_dim": 40, "num_layers": 2},
        ),
        "head": ("vocos.heads.ISTFTHead", {"dim": 24, "n_fft": N_FFT, "hop_length": HOP, "padding": padding}),
    }
    config = {part: {"class_path": name, "init_args": options} for part, (name, options) in parts.items()}
    (folder / "config.yaml").write_text(yaml_text(config))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model.eval()


@pytest.mark.parametrize("padding", ["center", "same"])
def test_samples_of_vocos_are_those_of_the_published_model(padding: str, tmp_path: Path):
    reference = write_vocos(tmp_path / "published", padding)
    published = Published.of(KEY, str(tmp_path / "published"))
    expected_mel = {**tiny_voice.MEL, "scale": "htk", "norm": "none", "floor": 1e-7}
    assert published.mel == MelConfig(**expected_mel)
    mels = spectrograms(9, 23)
    with torch.no_grad():
        rows = synthesize(published.generator(), mels)
        expected = [reference(mel.T[None])[0] for mel in mels]
    late = 0 if padding == "center" else HOP // 2
    for mel, row, samples in zip(mels, rows, expected, strict=True):
        ours = row[: (len(mel) - 1) * HOP]
        torch.testing.assert_close(ours, samples[late:][: len(ours)], rtol=1e-5, atol=1e-5 * float(samples.abs().max()))


def test_a_voice_speaks_by_published_weights(vaak, voice_run: Path, tmp_path: Path):
    write_hifigan(tmp_path / "hifigan")
    generator = Published.of(KEY, str(tmp_path / "hifigan")).generator()
    for given in (tmp_path / "hifigan", tmp_path / "hifigan" / "g_00002000"):
        code, _, err = vaak("speak", voice_run, "He saw me.", "-o", tmp_path / "a.wav", "--vocoder", given)
        assert code == 0, err
        spoken, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
        assert (rate, len(spoken) % HOP) == (8000, 0)
        assert np.abs(spoken).max() > 0.01
    from vaak.runs.open_run import open_run

    opened = open_run(voice_run, overrides=[f"data.speaking.vocoder={tmp_path / 'hifigan'}"])
    [sentence] = opened.task.speaker(opened.model).speech("He saw me.").sentences
    with torch.no_grad():
        expected = generator(torch.from_numpy(sentence.mel)[None])[0][: len(sentence.samples)]
    np.testing.assert_allclose(sentence.samples, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("write", [write_hifigan, write_vocos])
def test_published_weights_are_used_without_a_run(write: Callable[[Path], nn.Module], vaak, tmp_path: Path):
    write(tmp_path / "published")
    before = sorted(os.listdir(tmp_path / "published"))
    soundfile.write(tmp_path / "tone.wav", 0.1 * np.sin(np.arange(4000) / 5), 8000)
    code, out, err = vaak("predict", tmp_path / "published", tmp_path / "tone.wav", "--json")
    assert code == 0, err
    assert json.loads(out)["vocoder"].keys() == {"mel", "spectral"}
    assert sorted(os.listdir(tmp_path / "published")) == before


class Harmful:
    """An object whose pickle, when opened, makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_what_cannot_be_used_is_one_line_and_runs_nothing(vaak, voice_run: Path, tmp_path: Path):
    def broken(name: str, change: Callable[[Path], object], **changes: Any) -> Path:
        write_hifigan(tmp_path / name, "safetensors", **changes)
        change(tmp_path / name)
        return tmp_path / name

    def without_a_weight(folder: Path) -> None:
        model = ReferenceHifiGan(CONFIG).state_dict()
        save_file({name: one for name, one in model.items() if name != "conv_post.bias"}, folder / "model.safetensors")

    def pickled(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "generator_v1").write_bytes(pickle.dumps(Harmful(tmp_path / "harm")))

    write_vocos(tmp_path / "vocos")
    found = {
        tmp_path / "vocos": "{scale: htk, norm: none, floor: 1e-07}, but the spectrograms here have {scale: slaney",
        broken("lacking", without_a_weight): "lacks conv_post.bias, which its configuration has",
        broken("pickled", pickled): "might run code; if you trust its author: python -c",
        broken("empty", lambda folder: (folder / "model.safetensors").unlink()): "has no weights; expected one of",
        broken("text", lambda folder: (folder / "config.json").write_text("[")): "config.json: Expecting value",
        broken("short", lambda folder: (folder / "config.json").write_text("{}")): "it lacks 'sampling_rate'",
        broken(
            "torn", lambda folder: (folder / "model.safetensors").write_bytes(b"no")
        ): "model.safetensors can't be read",
        broken("rates", lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, "hop_size": 32}))): (
            "the product of upsample_rates is not hop_size (32)"
        ),
        broken(
            "wide",
            lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, "upsample_initial_channel": 64})),
        ): "has conv_pre.bias of shape (32,), expected (64,)",
    }
    for vocoder, message in found.items():
        code, _, err = vaak("speak", voice_run, "He saw me.", "-o", tmp_path / "a.wav", "--vocoder", vocoder)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert message in err
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "a.wav").exists()


@pytest.mark.slow
def test_training_begins_with_published_weights_and_resumes_without_them(tmp_path: Path):
    reference = write_hifigan(tmp_path / "published")
    corpus = tiny_voice.write_voice(tmp_path / "corpus")
    sizes = {"hifigan": SIZES, "pretrained": str(tmp_path / "published")}
    few = (
        "training.max_steps=4",
        "training.checkpoint.interval=2",
        "training.scheduler=constant",
        "data.num_samples=0",
        "data.num_iterations=2",
    )
    whole = tiny_vocoder.train(corpus, tmp_path / "whole", *few, model=sizes)
    first = load([tmp_path / "whole.yml"], [f"run_dir={tmp_path / 'whole'}"]).experiment
    mel = spectrograms(9)[0]
    from vaak.config.tasks import task_class

    model = task_class("vocoder")(first, tmp_path / "none", tmp_path).model()
    with torch.no_grad():
        begun, expected = model(mel[None])[0], reference(mel.T[None])[0]
    torch.testing.assert_close(begun[: -HOP // 2], expected[HOP // 2 :], rtol=1e-5, atol=1e-5)
    evaluated = [one["step"] for one in read_history(whole) if one["kind"] == "evaluation"]
    assert evaluated[0] == 0, "what begins pretrained is evaluated before its first step"
    part = tmp_path / "part"
    train(load([tmp_path / "whole.yml"], [f"run_dir={part}", *few, "training.max_steps=2"]))
    shutil.rmtree(tmp_path / "published")
    train(load([tmp_path / "whole.yml"], [f"run_dir={part}", *few, "training.checkpoint.resume=auto"]))
    ends = [load_checkpoint(run / "checkpoints" / "step-00000004", weights_only=True).model for run in (whole, part)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_weights_of_other_sizes_are_refused_with_the_sizes_to_write(vaak, tmp_path: Path):
    write_vocos(tmp_path / "published", mel_scale="slaney", norm="slaney")
    corpus = tiny_voice.write_voice(tmp_path / "corpus")
    mel = {**tiny_voice.MEL, "floor": 1e-7}
    options = {"model": {"pretrained": "published"}, "global_config": {"mel": mel}}
    file = tmp_path / "vocoder.yml"
    file.write_text(yaml_text(tiny_vocoder.options(corpus, **options)))
    code, _, err = vaak("train", file, f"run_dir={tmp_path / 'run'}")
    assert code == 2
    wanted = "write model: {width: 24, num_layers: 2, inner_width: 40, prior: none}"
    assert wanted in err
    sizes = ["model.width=24", "model.inner_width=40", "model.prior=none", "training.max_steps=1", "data.num_samples=0"]
    code, _, err = vaak("train", file, f"run_dir={tmp_path / 'run'}", *sizes)
    assert code == 0, err
