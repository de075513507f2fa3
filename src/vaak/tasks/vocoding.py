"""Makers of audio of mel spectrograms: Griffin–Lim, F0, a vocoder that a run has trained, or published weights of one.

Published are Vocos and HiFi-GAN, each as its authors' code writes it:

    config.yaml   pytorch_model.bin     Vocos: feature_extractor, backbone and head with their init_args; a state dict
    config.json   generator_v1, g_*     HiFi-GAN: sizes and spectrograms; a dict whose ``generator`` is a state dict

or, in place of the second, a file ``*.safetensors`` with the same tensors. A torch file is read without running code
that may be in it. Their frames may be centred half a hop later than ours, which the networks allow for
(``vaak.nn.speech.hifigan``); a spectrogram of ours is what they read.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vaak.audio.features.mel import MelSpectrogram, reconstruct_voice, reconstruct_waveform
from vaak.audio.mel_config import MelConfig
from vaak.config.yaml.text import flow_text, read_yaml
from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.nn.speech.config import HifiGanConfig
from vaak.nn.speech.hifigan import HifiGan
from vaak.nn.speech.masks import length_mask
from vaak.nn.speech.vocos import InverseSTFT, Vocos
from vaak.runs.folder.directory import list_candidate_places
from vaak.runs.open_run import open_run
from vaak.runs.use import Use
from vaak.tasks.fetching import fetch_model

Vocoder = Callable[[Sequence[Tensor]], list[Tensor]]
"""Gives samples ``(time,)``, on the CPU, of each mel spectrogram ``(frame, bin)``: up to its last frame's centre."""
PitchedVocoder = Callable[[Sequence[Tensor], Sequence[np.ndarray]], list[Tensor]]
"""Gives samples like ``Vocoder``, from spectrograms and F0 in Hz ``(frame,)``, 0 where a frame is unvoiced."""
SPEAKING = "data.speaking.vocoder"


def griffin_lim(mel: MelConfig, num_iterations: int) -> Vocoder:
    """Return the vocoder that needs no training, for spectrograms as ``mel`` describes them."""
    layer = MelSpectrogram(mel)
    return lambda spectrograms: [reconstruct_waveform(one.cpu(), layer, num_iterations) for one in spectrograms]


def pitch_phases(mel: MelConfig) -> PitchedVocoder:
    """Return the vocoder whose phases are those of pulses at F0, for spectrograms as ``mel`` describes them."""
    layer = MelSpectrogram(mel)
    return lambda spectrograms, pitches: [
        reconstruct_voice(one.cpu(), layer, f0) for one, f0 in zip(spectrograms, pitches, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class NetworkVocoder:
    """The vocoder that a network is, of which a frame has ``hop_length`` samples."""

    generator: nn.Module
    hop_length: int

    @torch.inference_mode()
    def __call__(self, spectrograms: Sequence[Tensor]) -> list[Tensor]:
        rows = synthesize(self.generator, spectrograms).cpu()
        return [row[: (len(one) - 1) * self.hop_length] for row, one in zip(rows, spectrograms, strict=True)]


def synthesize(generator: nn.Module, spectrograms: Sequence[Tensor]) -> Tensor:
    """Return the audio ``(row, time)`` of mel spectrograms ``(frame, bin)`` of any length, 0 after a row's own end."""
    device = next(generator.parameters()).device
    lengths = torch.tensor([len(one) for one in spectrograms], device=device)
    mels = pad_sequence([one.to(device) for one in spectrograms], batch_first=True)
    samples: Tensor = generator(mels, length_mask(lengths, mels.shape[1]))
    return samples.float()


def trained_vocoder(name: str, directory: Path, mel: MelConfig, device: torch.device) -> Vocoder:
    """Return the vocoder that the run in ``directory`` names, for spectrograms as ``mel`` describes them.

    It is published, or a run of a task that declares this use and has ``vocoder(model)``. Raises UserError where it is
    neither, where it is for other spectrograms, and where the folder doesn't exist.
    """
    places = list_candidate_places(Path(name).expanduser(), directory)
    run = next((place for place in places if place.exists()), None)
    if run is None or is_published(run):
        if run is None and not is_hub_name(name):
            looked = ", ".join(str(place.absolute()) for place in places)
            raise UserError(f"{SPEAKING}: no run {name}; looked for {looked}")
        published = Published.of(SPEAKING, name if run is None else str(run))
        require_mel(SPEAKING, published.folder, published.mel, mel)
        return NetworkVocoder(published.generator().to(device), mel.hop_length)
    opened = open_run(run, device=device.type, use=Use(SPEAKING))
    require_mel(SPEAKING, run, opened.task.audio.mel, mel)
    vocoder: Vocoder = opened.task.vocoder(opened.model)
    return vocoder


def require_mel(key: str, vocoder: Path, own: MelConfig, mel: MelConfig) -> None:
    """Raise UserError, for the option ``key``, where a ``vocoder`` was trained on ``own``, other spectrograms."""
    theirs, ours = ({**one.model_dump(), "f_max": one.nyquist} for one in (own, mel))
    if different := [name for name, value in theirs.items() if value != ours[name]]:
        trained, here = (flow_text({name: one[name] for name in different}) for one in (theirs, ours))
        raise UserError(
            f"{key}: {vocoder} was trained with global_config.mel {trained}, but the spectrograms here have {here}; "
            "both must be the same"
        )


CONFIG_OF_VOCOS, CONFIG_OF_HIFIGAN = "config.yaml", "config.json"
FILES_OF_WEIGHTS = ("*.safetensors", "pytorch_model.bin", "generator*", "g_*", "*.pth", "*.pt", "*.ckpt")
"""In the order to look; of several, the last by name, which of the checkpoints g_00001000 is that with most steps."""
LARGEST_CONFIG = 1 << 20
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_published(path: Path) -> bool:
    """Return whether this is a published vocoder, and not a run."""
    configs = any((path / name).is_file() for name in (CONFIG_OF_VOCOS, CONFIG_OF_HIFIGAN))
    return path.is_file() or (configs and not (path / "config.yml").exists())


def is_hub_name(name: str) -> bool:
    """Whether a name may be that of a model on the Hugging Face Hub, and not that of a run in the usual folder."""
    return HUB_NAME.fullmatch(name) is not None and not name.startswith("runs/")


class Published(NamedTuple):
    """A published vocoder: its file of weights, the spectrograms it reads, its options in section ``model``."""

    key: str
    file: Path
    mel: MelConfig
    model: dict[str, Any]

    @classmethod
    def of(cls, key: str, name: str) -> Published:
        """Return the vocoder in a folder, in a file of weights next to its configuration, or on the Hub.

        ``key`` is the option that names it. Raises UserError where there is none, or of another kind.
        """
        path = Path(name)
        if not path.exists():
            if not is_hub_name(name):
                raise UserError(f"{key}: no such folder: {name}")
            hub: Any = importlib.import_module("huggingface_hub")
            wanted = [CONFIG_OF_VOCOS, CONFIG_OF_HIFIGAN, *FILES_OF_WEIGHTS]
            path = Path(fetch_model(key, name, lambda: hub.snapshot_download(name, allow_patterns=wanted)))
        folder = path if path.is_dir() else path.parent
        if path.is_dir():
            files = (sorted(path.glob(pattern)) for pattern in FILES_OF_WEIGHTS)
            path = next((found[-1] for found in files if found), path)
        if path.is_dir():
            raise UserError(f"{key}: {folder} has no weights; expected one of {', '.join(FILES_OF_WEIGHTS)}")
        describe = _vocos if (folder / CONFIG_OF_VOCOS).is_file() else _hifigan
        config = folder / (CONFIG_OF_VOCOS if describe is _vocos else CONFIG_OF_HIFIGAN)
        try:
            if config.stat().st_size > LARGEST_CONFIG:
                raise ValueError("it is too large for a configuration")
            mel, model = describe(config)
        except (OSError, ValueError, TypeError, KeyError, UserError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
            raise UserError(f"{key}: {config}: {reason}; expected the configuration of HiFi-GAN or Vocos") from error
        return cls(key, path, mel, model)

    @property
    def folder(self) -> Path:
        return self.file.parent

    def generator(self) -> nn.Module:
        """Return the network with its weights. Raises UserError as ``weights`` does."""
        mel, sizes = self.mel, self.model
        network: nn.Module
        if "hifigan" in sizes:
            network = HifiGan(mel.n_mels, HifiGanConfig.model_validate(sizes["hifigan"]))
        else:
            transform = InverseSTFT(mel.n_fft, mel.hop_length, mel.win_length)
            network = Vocos(mel.n_mels, transform, sizes["width"], sizes["num_layers"], sizes["inner_width"])
        network.load_state_dict(self.weights_for(network))
        return network.eval()

    def weights_for(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the weights by the names of our ``network``.

        Raises UserError for a file that can't be read without running code, and where weights are missing, have other
        shapes or aren't known.
        """
        tensors = _folded(_tensors(self.key, self.file))
        if "hifigan" not in self.model:
            ours = ((_name_of_vocos(name), tensor) for name, tensor in tensors.items())
            tensors = {name: tensor for name, tensor in ours if name}
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        for name, tensor in tensors.items():
            if shapes.get(name) != tuple(tensor.shape):
                expected = f"expected {shapes[name]}" if name in shapes else "which its configuration doesn't"
                raise UserError(f"{self.key}: {self.file} has {name} of shape {tuple(tensor.shape)}, {expected}")
        if lacking := shapes.keys() - tensors.keys():
            raise UserError(f"{self.key}: {self.file} lacks {min(lacking)}, which its configuration has")
        return {name: tensor.float() for name, tensor in tensors.items()}


def _hifigan(file: Path) -> tuple[MelConfig, dict[str, Any]]:
    """Return the spectrograms and sizes of HiFi-GAN's config.json."""
    config = read_json(file)
    mel = MelConfig(
        sampling_rate=config["sampling_rate"],
        n_fft=config["n_fft"],
        hop_length=config["hop_size"],
        win_length=config["win_size"],
        n_mels=config.get("num_mels", 80),
        f_min=config["fmin"],
        f_max=config["fmax"],
    )
    sizes = HifiGanConfig.model_validate({name: config[name] for name in HifiGanConfig.model_fields})
    if math.prod(sizes.upsample_rates) != mel.hop_length:
        raise ValueError(f"the product of upsample_rates is not hop_size ({mel.hop_length})")
    return mel, {"hifigan": sizes.model_dump(mode="json")}


CLASSES_OF_VOCOS = {
    "feature_extractor": "vocos.feature_extractors.MelSpectrogramFeatures",
    "backbone": "vocos.models.VocosBackbone",
    "head": "vocos.heads.ISTFTHead",
}


def _vocos(file: Path) -> tuple[MelConfig, dict[str, Any]]:
    """Return the spectrograms and sizes of Vocos' config.yaml; where it says nothing, the defaults of its code."""
    config = read_yaml(file)
    for part, name in CLASSES_OF_VOCOS.items():
        if config[part]["class_path"] != name:
            raise ValueError(
                f"{part}.class_path is {config[part]['class_path']}, and only {name} reads mel spectrograms"
            )
    features, backbone, head = (config[part].get("init_args") or {} for part in CLASSES_OF_VOCOS)
    n_fft, hop_length = features.get("n_fft", 1024), features.get("hop_length", 256)
    if (head["n_fft"], head["hop_length"]) != (n_fft, hop_length):
        raise ValueError("head and feature_extractor have different n_fft or hop_length")
    if backbone.get("adanorm_num_embeddings"):
        raise ValueError("adanorm_num_embeddings is for codes of EnCodec, not for spectrograms")
    mel = MelConfig(
        sampling_rate=features.get("sample_rate", 24000),
        n_fft=n_fft,
        hop_length=hop_length,
        win_length=n_fft,
        n_mels=features.get("n_mels", 100),
        f_min=features.get("f_min", 0.0),
        f_max=features.get("f_max"),
        scale=features.get("mel_scale", "htk"),
        norm=features.get("norm") or "none",
        # Its config.yaml has no key for that: Vocos clips there before the logarithm (safe_log).
        floor=1e-7,
    )
    sizes = {
        "width": backbone["dim"],
        "num_layers": backbone["num_layers"],
        "inner_width": backbone["intermediate_dim"],
    }
    return mel, {**sizes, "prior": "none"}


NAMES_OF_VOCOS = (
    (r"backbone\.embed\.", "embedding."),
    (r"backbone\.norm\.", "embedding_norm."),
    (r"backbone\.convnext\.(\d+)\.dwconv\.", r"blocks.\1.over_time."),
    (r"backbone\.convnext\.(\d+)\.norm\.", r"blocks.\1.norm."),
    (r"backbone\.convnext\.(\d+)\.pwconv1\.", r"blocks.\1.pointwise.up."),
    (r"backbone\.convnext\.(\d+)\.pwconv2\.", r"blocks.\1.pointwise.down."),
    (r"backbone\.convnext\.(\d+)\.gamma", r"blocks.\1.layer_scale"),
    (r"backbone\.final_layer_norm\.", "norm."),
    (r"head\.out\.", "head."),
)
"""The names of weights in the authors' code, and in ours."""
UNREAD_KEYS = re.compile(r"feature_extractor\.|head\.istft\.|(multi\w+|melspec_loss)\.")
"""Tables that ours computes, and what only their training has."""


def _name_of_vocos(name: str) -> str:
    """Return our name of one of Vocos' weights; empty for what isn't read, and its own for what isn't known."""
    if UNREAD_KEYS.match(name):
        return ""
    for theirs, ours in NAMES_OF_VOCOS:
        if re.match(theirs, name):
            return re.sub(theirs, ours, name, count=1)
    return name


def _tensors(key: str, file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a torch file that has nothing else. Raises UserError for others."""
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except Exception as error:
            # safetensors raises its own.
            raise UserError(f"{key}: {file} can't be read: {str(error).splitlines()[0]}") from error
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch, pickle and zipfile each raise their own.
        target, load = file.with_name("model.safetensors"), f"torch.load('{file}', weights_only=False)"
        raise UserError(
            f"{key}: {file} isn't a torch file of tensors alone, and might run code; if you trust its author: python "
            f'-c "import torch; from safetensors.torch import save_file; w = {load}; '
            f"save_file(dict(w.get('generator', w)), '{target}')\""
        ) from error
    # HiFi-GAN's checkpoints hold the generator under its name, those of Lightning all weights as state_dict.
    for part in ("generator", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(part), Mapping):
            found = found[part]
    if not isinstance(found, Mapping) or not all(isinstance(one, Tensor) for one in found.values()):
        raise UserError(f"{key}: {file} has no tensors by name; expected those of a generator")
    return dict(found)


WEIGHT_NORMS = (
    (".weight_g", ".weight_v"),
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
)


def _folded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fold weight normalisation into the weights: direction v and length g become g · v / |v|, for each row."""
    found = dict(tensors)
    for length, direction in WEIGHT_NORMS:
        for name in [name for name in found if name.endswith(direction)]:
            layer = name.removesuffix(direction)
            if layer + length in found:
                v, g = found.pop(name), found.pop(layer + length)
                found[f"{layer}.weight"] = v * (g.flatten() / v.flatten(1).norm(dim=1)).view(-1, *[1] * (v.ndim - 1))
    return found
