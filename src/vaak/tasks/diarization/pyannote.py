"""The segmentation network of pyannote.audio (PyanNet), as the network of a diarizer: ``model.base``.

    samples ──SincNet──▶ 60 numbers every 270 samples ──LSTM──▶ linear layers ──▶ scores of speakers, or of their sets

A checkpoint of pyannote.audio is a pickle of Lightning that names classes of omegaconf and of pyannote.audio itself.
It is read by torch's reader of weights alone, with an empty class in the place of each of those: nothing is imported or
called. The names and the shapes of all weights have to fit the sizes that it declares.

Sources: Bredin and Laurent 2021, "End-to-end speaker segmentation for overlap-aware resegmentation" (the network);
Ravanelli and Bengio 2018, "Speaker Recognition from Raw Waveform with SincNet"; Pariente et al. 2020, "Filterbank
design for end-to-end speech separation" (filters that are odd, too); Plaquet and Bredin 2023, "Powerset multi-class
cross entropy loss for neural speaker diarization" (sets of speakers). Differs: frames are moved to a whole multiple of
270 samples, 5.6 ms at most; the first and the last are given twice, so that all of the audio has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import one_channel
from vaak.core.errors import UserError
from vaak.core.storage.model_formats import PYANNOTE, recognise
from vaak.core.storage.text_lines import split_lines
from vaak.nn.initialisation import initialise
from vaak.tasks.diarization.config import DiarizationModelConfig
from vaak.tasks.diarization.labels import DiarizationCollator
from vaak.tasks.diarization.model import DiarizationModel, DiarizationOutputs

BASE_KEY = "model.base"
RATE_HZ = 16000
"""Samples a second that the network reads."""
FRAME_SAMPLES, RECEPTIVE_SAMPLES = 270, 991
"""Samples from one output of SincNet to the next, and those that one output sees, at a stride of 10."""
STRIDE, NUM_FILTERS, KERNEL_SIZE, CHANNELS = 10, 80, 251, 60
LEAST_HZ = 50.0
"""The least lower edge of a filter, and its least width."""
EDGE_FRAMES = -(-(RECEPTIVE_SAMPLES - FRAME_SAMPLES) // FRAME_SAMPLES)
"""Frames of the audio by which there are fewer outputs."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network; ``num_outputs`` are speakers or, with ``max_set``, sets of at most that many speakers."""

    num_outputs: int = 3
    lstm_size: int = 128
    lstm_layers: int = 2
    bidirectional: bool = True
    lstm_dropout: float = 0.0
    linear_size: int = 128
    linear_layers: int = 2
    num_speakers: int = 3
    max_set: int | None = None
    duration: float = 5.0
    """Seconds of the examples that it was trained on."""

    @property
    def label_type(self) -> str:
        """The label type whose labels the outputs are."""
        return "multilabel" if self.max_set is None else "powerset"

    @property
    def width(self) -> int:
        """The width of the layer before the classifier."""
        return self.linear_size if self.linear_layers else self.lstm_size * (2 if self.bidirectional else 1)


class _StandIn(dict[Any, Any]):
    """In the place of whatever class a checkpoint names; it keeps what it was given."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, Mapping):
            self.update(state)


def read_checkpoint(source: str) -> tuple[Sizes, dict[str, Tensor]]:
    """Return the sizes and the weights in a checkpoint of pyannote.audio, or in a folder with one.

    Raises UserError where there is none, or it isn't a segmentation network.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(f"{BASE_KEY}: no such file or folder: {source}; download pytorch_model.bin from the Hub")
    form = recognise(path)
    if form.name != PYANNOTE or form.file is None:
        raise UserError(f"{BASE_KEY}: {form.describe(path)}; expected a segmentation network of pyannote.audio")
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(form.file))
        with torch.serialization.safe_globals([(type(name, (_StandIn,), {}), name) for name in names]):
            found = torch.load(form.file, map_location="cpu", weights_only=True)
        return _read_sizes(found), dict(found["state_dict"])
    except UserError:
        raise
    except Exception as error:
        # torch, pickle and zipfile each raise their own; a key may be missing.
        lines = split_lines(str(error).strip() or type(error).__name__)
        # torch's advice to read it as code comes before what is wrong with it
        said = next((line for line in lines if "GLOBAL" in line), lines[0])[:200]
        raise UserError(f"{BASE_KEY}: {form.file} can't be read as a checkpoint of pyannote.audio: {said}") from error


def _read_sizes(found: Mapping[str, Any]) -> Sizes:
    given, about = found["hyper_parameters"], found["pyannote.audio"]
    kind = about["architecture"]["class"]
    sincnet, lstm, linear = ({**given.get(name, {})} for name in ("sincnet", "lstm", "linear"))
    if kind != "PyanNet" or sincnet.get("stride", STRIDE) != STRIDE or not lstm.get("monolithic", True):
        raise UserError(
            f"{BASE_KEY}: a {kind} with sincnet {sincnet} and lstm {lstm} isn't read; only PyanNet's usual form"
        )
    if (rate := given.get("sample_rate", RATE_HZ)) != RATE_HZ or given.get("num_channels", 1) != 1:
        raise UserError(
            f"{BASE_KEY}: it reads {given.get('num_channels', 1)} channels at {rate} Hz; expected one at {RATE_HZ}"
        )
    specifications = about["specifications"]
    outputs = len(found["state_dict"]["classifier.bias"])
    return Sizes(
        num_outputs=outputs,
        lstm_size=lstm.get("hidden_size", Sizes.lstm_size),
        lstm_layers=lstm.get("num_layers", Sizes.lstm_layers),
        bidirectional=lstm.get("bidirectional", Sizes.bidirectional),
        lstm_dropout=lstm.get("dropout", Sizes.lstm_dropout),
        linear_size=linear.get("hidden_size", Sizes.linear_size),
        linear_layers=linear.get("num_layers", Sizes.linear_layers),
        num_speakers=len(specifications.get("classes") or range(outputs)),
        max_set=specifications.get("powerset_max_classes"),
        duration=float(specifications.get("duration", Sizes.duration)),
    )


class SampleFrames:
    """Turns samples ``(time,)`` into frames of them ``(frame, 270)``; stands where features do."""

    dims = FRAME_SAMPLES

    def __init__(self, config: AudioConfig) -> None:
        """Raises UserError for another sampling rate than the network's."""
        if config.sampling_rate != RATE_HZ:
            raise UserError(f"global_config.sampling_rate is {config.sampling_rate}, but {BASE_KEY} reads {RATE_HZ} Hz")
        self.config = config

    @property
    def frame_shift(self) -> float:
        return FRAME_SAMPLES / RATE_HZ

    def num_frames(self, num_samples: int) -> int:
        return -(-num_samples // FRAME_SAMPLES)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        samples = one_channel(samples).astype(np.float32, copy=False)
        padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))
        return padded.reshape(-1, FRAME_SAMPLES)


class SincFilters(nn.Module):
    """Convolves a waveform ``(row, 1, time)`` with band-pass filters, half of them even and half odd."""

    window_: Tensor
    n_: Tensor

    def __init__(self) -> None:
        super().__init__()
        half, count = KERNEL_SIZE // 2, NUM_FILTERS // 2
        # Edges are evenly spaced on the mel scale until they are learned.
        lowest, highest = (2595 * np.log10(1 + hz / 700) for hz in (30.0, RATE_HZ / 2 - 2 * LEAST_HZ))
        mels = np.linspace(lowest, highest, count + 1)
        edges = torch.from_numpy(700 * (10 ** (mels / 2595) - 1)).float()[:, None]
        self.low_hz_, self.band_hz_ = nn.Parameter(edges[:-1].clone()), nn.Parameter(edges.diff(dim=0))
        self.register_buffer("window_", torch.from_numpy(np.hamming(KERNEL_SIZE)[:half]).float())
        self.register_buffer("n_", 2 * torch.pi * torch.arange(-half, 0.0)[None] / RATE_HZ)

    def filters(self) -> Tensor:
        """Return the impulse responses ``(filter, 1, sample)``: sin and cos of the band's edges, over time."""
        low = LEAST_HZ + self.low_hz_.abs()
        high = (low + LEAST_HZ + self.band_hz_.abs()).clamp(LEAST_HZ, RATE_HZ / 2)
        band = high - low
        before = 2 * self.window_ / self.n_
        even = (torch.sin(high @ self.n_) - torch.sin(low @ self.n_)) * before
        odd = (torch.cos(low @ self.n_) - torch.cos(high @ self.n_)) * before
        middle = torch.cat([2 * band, torch.zeros_like(band)])
        left = torch.cat([even, odd])
        right = torch.cat([even.flip(1), -odd.flip(1)])
        return (torch.cat([left, middle, right], 1) / (2 * torch.cat([band, band])))[:, None]

    def forward(self, samples: Tensor) -> Tensor:
        return F.conv1d(samples, self.filters(), stride=STRIDE)


class _Encoder(nn.Module):
    """Holds the filters under the name that pyannote.audio has for them."""

    def __init__(self) -> None:
        super().__init__()
        self.filterbank = SincFilters()

    def forward(self, samples: Tensor) -> Tensor:
        filtered: Tensor = self.filterbank(samples)
        return filtered.abs()


class SincNet(nn.Module):
    """Three convolutions, the first of them with band-pass filters: ``(row, 1, time)`` to ``(row, 60, frame)``."""

    def __init__(self) -> None:
        super().__init__()
        self.wav_norm1d = nn.InstanceNorm1d(1, affine=True)
        channels = (NUM_FILTERS, CHANNELS, CHANNELS)
        self.conv1d = nn.ModuleList([_Encoder(), *(nn.Conv1d(*pair, 5) for pair in pairwise(channels))])
        self.norm1d = nn.ModuleList(nn.InstanceNorm1d(count, affine=True) for count in channels)

    def forward(self, samples: Tensor) -> Tensor:
        x: Tensor = self.wav_norm1d(samples)
        for convolution, norm in zip(self.conv1d, self.norm1d, strict=True):
            x = F.leaky_relu(norm(F.max_pool1d(convolution(x), 3)))
        return x


class PyanNet(nn.Module):
    """Scores of frames of 270 samples; its weights have pyannote.audio's names."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sincnet = SincNet()
        how: dict[str, Any] = {"num_layers": sizes.lstm_layers, "bidirectional": sizes.bidirectional}
        dropout = sizes.lstm_dropout if sizes.lstm_layers > 1 else 0.0
        self.lstm = nn.LSTM(CHANNELS, sizes.lstm_size, dropout=dropout, batch_first=True, **how)
        widths = [sizes.lstm_size * (2 if sizes.bidirectional else 1), *[sizes.linear_size] * sizes.linear_layers]
        self.linear = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.classifier = nn.Linear(sizes.width, sizes.num_outputs)

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``(row, frame, output)``, and the classifier's inputs ``(row, frame, width)``; 0 in padding.

        ``frames`` are ``(row, frame, 270)``, of which those of ``mask (row, frame)`` are real. Rows of another length
        are computed apart: the norms are over all of a row, and the LSTM begins at its end, too.
        """
        hidden = frames.new_zeros(*frames.shape[:2], self.classifier.in_features)
        lengths = mask.sum(1)
        for length in lengths.unique().tolist():
            rows = lengths == length
            hidden[rows, :length] = self._read(frames[rows, :length]).to(hidden.dtype)
        return self.classifier(hidden), hidden

    def _read(self, frames: Tensor) -> Tensor:
        """Return the features that scores are computed from, ``(row, frame, width)``, of rows without padding."""
        length = frames.shape[1]
        # At least two outputs, without which the norms divide by 0.
        samples = F.pad(frames.flatten(1), (0, max(0, EDGE_FRAMES + 2 - length) * FRAME_SAMPLES))
        with torch.autocast(samples.device.type, enabled=False):
            x: Tensor = self.sincnet(samples.float()[:, None]).transpose(1, 2)
        x = self.lstm(x.to(samples.dtype))[0]
        for layer in self.linear:
            x = F.leaky_relu(layer(x))
        # Output i is around sample 495 + 270 i: the nearest to the middle of frame k is that of k - 1.
        nearest = (torch.arange(length, device=x.device) - 1).clamp(0, x.shape[1] - 1)
        return x[:, nearest]


class PretrainedDiarizer(DiarizationModel):
    """A diarizer whose network is pyannote.audio's."""

    def __init__(self, config: DiarizationModelConfig, collator: DiarizationCollator, sizes: Sizes) -> None:
        """Weights are drawn; ``load_base`` replaces those of the network.

        Raises UserError where the labels of the ``collator`` aren't those of the network.
        """
        nn.Module.__init__(self)
        if collator.num_outputs != sizes.num_outputs or config.max_speakers != sizes.num_speakers:
            raise UserError(
                f"{BASE_KEY}: it has {sizes.num_outputs} outputs for {sizes.num_speakers} speakers: that is label_type "
                f"{sizes.label_type} and model.max_speakers {sizes.num_speakers}"
            )
        self.config, self.collator = config, collator
        self._add_losses(sizes.width)
        initialise(self)
        self.network = PyanNet(sizes)

    def forward(self, features: Tensor, feature_mask: Tensor, norms: Any = None) -> DiarizationOutputs:
        """Compute the outputs as ``DiarizationModel`` does, from frames of samples."""
        return DiarizationOutputs(*self.network(features.to(self.clusters.bias.dtype), feature_mask))

    def load_base(self, source: str) -> None:
        """Load the weights of a checkpoint. Raises UserError where they are others than the network's."""
        _, weights = read_checkpoint(source)
        try:
            self.network.load_state_dict(weights)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines()]
            raise UserError(
                f"{BASE_KEY}: {source}: the weights don't fit its sizes: {lines[min(1, len(lines) - 1)]}"
            ) from error
