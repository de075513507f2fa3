"""Speaker embeddings by a pretrained network: an ONNX file, an x-vector model of transformers, or a GE2E encoder.

    window ──▶ samples of each speaker, alone where possible ──▶ waveform, or features ──▶ encoder ──▶ embedding

The shape of an ONNX file's single input tells what it reads: ``(row, sample)`` or ``(row, 1, sample)`` is the waveform
at 16 kHz; ``(row, frame, bin)`` or ``(row, bin, frame)``, with a fixed number of bins, are features. By default these
are Kaldi's filterbank minus its mean over time, which ECAPA, ResNet and CAM++ of WeSpeaker and 3D-Speaker read. If the
input's length is fixed, too, the embedding is the mean over pieces that overlap by half.

A ``.pt`` file is a GE2E encoder in Resemblyzer's format, of which only tensors are read: three LSTM layers on mel
powers, whose last state is the embedding. Longer speech is embedded as the mean over windows of 1.6 s, 1.3 a second.

Sources: Desplanques et al. 2020, "ECAPA-TDNN"; Chen et al. 2022, "WavLM", section V-B (x-vectors); Wang et al. 2023,
"WeSpeaker"; Wan et al. 2018, "Generalized End-to-End Loss for Speaker Verification" (the mean over pieces).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.features.mel import MelSpectrogram
from vaak.audio.mel_config import MelConfig
from vaak.config.base import from_options
from vaak.core.errors import UserError, optional_import
from vaak.tasks.diarization.stitching import LEAST_SECONDS, SPEAKS
from vaak.tasks.fetching import SAFELY, fetch_model, import_transformers

SPEAKER_ENCODER_KEY, FEATURES_KEY = "data.inference.speaker_encoder", "data.inference.speaker_features"
RATE_HZ = 16000
"""The sampling rate that encoders read."""
Embed = Callable[[np.ndarray], np.ndarray]
"""From samples ``(time,)`` at 16 kHz to an embedding ``(dim,)``."""


class SpeakerEncoder:
    """Turns samples of one voice into an embedding ``(dim,)`` of unit length.

    same_below
        The cosine distance below which two utterances have the same voice; None if it wasn't measured for this encoder.
    """

    def __init__(self, source: str, features: Mapping[str, Any], sampling_rate: int, device: torch.device) -> None:
        """Load an encoder for samples at ``sampling_rate`` Hz.

        ``source`` is an ONNX file, a ``.pt`` file of Resemblyzer, or a model of transformers (its folder or name).
        ``features`` are options for the features of an ONNX file that reads frames. Raises UserError for an encoder
        that can't be read, or that can't embed two seconds of noise.
        """
        self.sampling_rate = sampling_rate
        self.same_below = GE2E.SAME_BELOW if source.endswith(".pt") else None
        of_file = source.endswith(".onnx")
        if features and not of_file:
            how = "makes its own features" if source.endswith(".pt") else "reads the waveform"
            raise UserError(f"{FEATURES_KEY}: {source} {how}; leave it out")
        if of_file:
            self._embed = _onnx_encoder(source, features)
        else:
            make = _ge2e_encoder if source.endswith(".pt") else _xvector_encoder
            self._embed = make(source, device)
        # Tried at once, so that a wrong file is reported before any recording is read; this also gives the dimension.
        noise = np.random.default_rng(0).normal(0, 0.1, 2 * RATE_HZ).astype(np.float32)
        try:
            tried = self._embed(noise)
        except Exception as error:
            # onnxruntime's errors have no common base class.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{SPEAKER_ENCODER_KEY}: {source} can't embed two seconds of noise: {reason}") from error
        if not np.isfinite(tried).all():
            raise UserError(f"{SPEAKER_ENCODER_KEY}: {source} gives NaN or infinity for two seconds of noise")
        self.dim = len(tried)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return the embedding of samples ``(time,)``."""
        if self.sampling_rate != RATE_HZ:
            with optional_import("resampling requires soxr", "audio"):
                import soxr
            samples = soxr.resample(samples, self.sampling_rate, RATE_HZ)
        # Shorter speech is repeated, or an encoder would have few frames to pool over, or none.
        found = self._embed(_at_least(samples.astype(np.float32, copy=False), round(LEAST_SECONDS * RATE_HZ)))
        unit: np.ndarray = found / max(float(np.linalg.norm(found)), 1e-12)
        return unit

    def of_window(self, probabilities: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the embedding of each speaker of a window, ``(speaker, dim)``, and seconds alone, ``(speaker,)``.

        ``probabilities (frame, speaker)`` and ``samples (time,)`` are those of the window. Embeddings are computed from
        the frames in which a speaker speaks alone, or, if these are less than half a second, from all in which they
        speak; they are zeros for speakers who never speak.
        """
        speaks = probabilities >= SPEAKS
        per_frame = len(samples) / len(speaks)
        alone = speaks & (speaks.sum(1, keepdims=True) == 1)
        seconds = alone.sum(0) * per_frame / self.sampling_rate
        frame_of = np.minimum((np.arange(len(samples)) / per_frame).astype(np.int64), len(speaks) - 1)
        speech = [samples[chosen[frame_of]] for chosen in np.where(seconds >= LEAST_SECONDS, alone, speaks).T]
        found = np.stack([self(part) if len(part) else np.zeros(self.dim) for part in speech])
        return found, seconds


@lru_cache(maxsize=1)
def read_speaker_encoder(source: str, features: str, sampling_rate: int, device: torch.device) -> SpeakerEncoder:
    """Return a ``SpeakerEncoder``, given ``features`` as JSON; the last one is cached."""
    return SpeakerEncoder(source, json.loads(features), sampling_rate, device)


def _at_least(samples: np.ndarray, length: int) -> np.ndarray:
    """Return samples or frames, repeated up to ``length``; unchanged if there are enough, or none."""
    return samples if not 0 < len(samples) < length else np.resize(samples, (length, *samples.shape[1:]))


def _xvector_encoder(source: str, device: torch.device) -> Embed:
    """Return a model of transformers with an x-vector head. Raises UserError for any other model."""
    auto = import_transformers(SPEAKER_ENCODER_KEY, "asr")
    extractor = fetch_model(
        SPEAKER_ENCODER_KEY, source, lambda: auto.AutoFeatureExtractor.from_pretrained(source, **SAFELY)
    )
    how: dict[str, Any] = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    load = auto.AutoModelForAudioXVector.from_pretrained
    model, loaded = fetch_model(SPEAKER_ENCODER_KEY, source, lambda: load(source, **how, **SAFELY))
    if loaded["missing_keys"]:
        missing = min(loaded["missing_keys"])
        raise UserError(
            f"{SPEAKER_ENCODER_KEY}: {source} has no {missing}: give a model with an x-vector head (wavlm-base-plus-sv)"
        )
    model = model.to(device).eval()

    def embed(samples: np.ndarray) -> np.ndarray:
        inputs = extractor(samples, sampling_rate=RATE_HZ, return_tensors="pt").to(device)
        with torch.inference_mode(), warnings.catch_warnings():
            # WavLM's own masks cause this warning.
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")
            found: np.ndarray = model(**inputs).embeddings[0].float().cpu().numpy()
        return found

    return embed


class GE2E(nn.Module):
    """Embeddings ``(row, 256)`` of mel powers ``(row, frame, 40)``, of unit length; weights have Resemblyzer's names.

    Source: Wan et al. 2018, "Generalized End-to-End Loss for Speaker Verification"; sizes and the mean over pieces are
    those of Resemblyzer 0.1.4.
    """

    MEL = MelConfig(
        sampling_rate=RATE_HZ,
        n_fft=400,
        hop_length=160,
        win_length=400,
        n_mels=40,
        f_max=None,
        spectrum="power",
        log="none",
    )
    PIECE_FRAMES, PIECES_PER_SECOND, LEAST_COVERED = 160, 1.3, 0.75
    SAME_BELOW = 0.25
    """On 70 utterances of 7 LibriSpeech readers, 0.3 % of same-speaker pairs are above it, 0.9 % of others below."""
    TARGET_DB = -30.0
    """The level to which quieter speech is raised, in decibels of full scale."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(self.MEL.n_mels, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        hidden = self.lstm(mels)[1][0][-1]
        return F.normalize(F.relu(self.linear(hidden)), dim=1)

    def embed(self, samples: np.ndarray, mel: MelSpectrogram) -> Tensor:
        """Return the mean embedding ``(256,)`` over the pieces of samples ``(time,)`` at 16 kHz."""
        firsts = self.pieces(len(samples))
        level = 10 * np.log10(max(float(np.square(samples).mean()), 1e-20))
        louder = samples * np.float32(10 ** (max(0.0, self.TARGET_DB - level) / 20))
        length = (firsts[-1] + self.PIECE_FRAMES) * self.MEL.hop_length
        # Silence on both sides, as in librosa since 0.10; MelSpectrogram itself mirrors the samples.
        half = self.MEL.n_fft // 2
        padded = torch.from_numpy(np.pad(louder, (half, half + max(0, length - len(louder)))))
        sections = padded.to(self.linear.weight).unfold(0, self.MEL.n_fft, self.MEL.hop_length)
        frames = mel.to_mel(mel.strengths(mel.spectra(sections)))
        found: Tensor = self(torch.stack([frames[first : first + self.PIECE_FRAMES] for first in firsts]))
        return found.mean(0)

    @classmethod
    def pieces(cls, num_samples: int) -> list[int]:
        """Return the first frame of each piece; the last one is left out if too little of it is speech.

        >>> GE2E.pieces(16000), GE2E.pieces(48000)
        ([0], [0, 77, 154])
        """
        hop = cls.MEL.hop_length
        step = round(RATE_HZ / cls.PIECES_PER_SECOND / hop)
        num_frames = -(-(num_samples + 1) // hop)
        firsts = list(range(0, max(1, num_frames - cls.PIECE_FRAMES + step + 1), step))
        covered = (num_samples - firsts[-1] * hop) / (cls.PIECE_FRAMES * hop)
        return firsts[:-1] if covered < cls.LEAST_COVERED and len(firsts) > 1 else firsts


SIMILARITY = ("similarity_weight", "similarity_bias")
"""Weights that only the loss uses."""


def _ge2e_encoder(source: str, device: torch.device) -> Embed:
    """Return the network in a file of Resemblyzer. Raises UserError if it isn't one."""
    model = GE2E()
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)["model_state"]
        model.load_state_dict({name: tensor for name, tensor in found.items() if name not in SIMILARITY})
    except FileNotFoundError as error:
        raise UserError(f"{SPEAKER_ENCODER_KEY}: no file {source}") from error
    except Exception as error:
        # torch, pickle and zipfile raise different errors; also, the file may have another network.
        raise UserError(
            f"{SPEAKER_ENCODER_KEY}: {source} isn't a GE2E encoder as Resemblyzer saves it (model_state)"
        ) from error
    model, mel = model.to(device).eval(), MelSpectrogram(GE2E.MEL).to(device)

    def embed(samples: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            found: np.ndarray = model.embed(samples, mel).float().cpu().numpy()
        return found

    return embed


class _OnnxInput(NamedTuple):
    """The input of a network in a file, by its name and its shape, in which a text is a variable size.

    It is a waveform, (row, sample) or (row, 1, sample), or frames, (row, frame, bin) or (row, bin, frame).
    """

    name: str
    shape: list[int | str]

    @property
    def is_waveform(self) -> bool:
        return len(self.shape) == 2 or (len(self.shape) == 3 and self.shape[1] == 1)

    @property
    def is_bins_last(self) -> bool:
        """Whether the last axis is that of bins, which has a fixed size; of two fixed sizes it is the last."""
        return not self.is_waveform and len(self.shape) == 3 and isinstance(self.shape[2], int)

    @property
    def num_bins(self) -> int | str:
        return self.shape[2] if self.is_bins_last else self.shape[1]

    @property
    def time(self) -> int | str:
        """The size of the axis of time."""
        return self.shape[1] if self.is_bins_last else self.shape[-1]

    @property
    def is_supported(self) -> bool:
        return self.is_waveform or (len(self.shape) == 3 and isinstance(self.num_bins, int))

    def arrange(self, rows: np.ndarray) -> np.ndarray:
        """Return samples (row, sample) or frames (row, frame, bin) with the axes of this input."""
        if self.is_waveform:
            return rows[:, None] if len(self.shape) == 3 else rows
        return rows if self.is_bins_last else rows.transpose(0, 2, 1)


def _onnx_encoder(source: str, options: Mapping[str, Any]) -> Embed:
    """Return the network in an ONNX file. Raises UserError if it can't be read, or has unsupported inputs."""
    session = _open_session(source)
    inputs = [_OnnxInput(one.name, list(one.shape)) for one in session.get_inputs()]
    given = inputs[0]
    if len(inputs) > 1 or not given.is_supported:
        found = ", ".join(f"{one.name} {tuple(one.shape)}" for one in inputs)
        raise UserError(
            f"{SPEAKER_ENCODER_KEY}: {source} reads {found}; expected one input: (row, sample), "
            "or frames (row, frame, bin) with a "
            "fixed number of bins"
        )
    if given.is_waveform and options:
        raise UserError(f"{FEATURES_KEY}: {source} reads the waveform; leave it out")
    features = None if given.is_waveform else _features(source, options, int(given.num_bins))

    def embed(samples: np.ndarray) -> np.ndarray:
        x = samples if features is None else features(samples)
        rows = given.arrange(_pieces(x, given.time) if isinstance(given.time, int) else x[None])
        # A file exported for one row can't be given several.
        groups = rows[:, None] if isinstance(given.shape[0], int) else [rows]
        found = [session.run(None, {given.name: np.ascontiguousarray(group)})[0] for group in groups]
        mean: np.ndarray = np.concatenate([one.reshape(len(one), -1) for one in found]).mean(0)
        return mean

    return embed


def _open_session(source: str) -> Any:
    """Load an ONNX file with onnxruntime. Raises UserError if that isn't installed or the file can't be loaded."""
    with optional_import(f"{SPEAKER_ENCODER_KEY}: reading {source} requires onnxruntime", "tts"):
        import onnxruntime
    if not Path(source).is_file():
        raise UserError(f"{SPEAKER_ENCODER_KEY}: no file {source}")
    quiet = onnxruntime.SessionOptions()
    # As many threads as torch may use: onnxruntime would take every core.
    quiet.log_severity_level, quiet.intra_op_num_threads = 4, torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(source, quiet, providers=["CPUExecutionProvider"])
    except Exception as error:
        # onnxruntime's errors have no common base class.
        raise UserError(
            f"{SPEAKER_ENCODER_KEY}: {source} can't be loaded: {str(error).strip().splitlines()[0]}"
        ) from error


def _features(source: str, options: Mapping[str, Any], num_bins: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that computes frames ``(frame, bin)`` of samples, by default as WeSpeaker does.

    Raises UserError if ``options`` give other frames than ``source`` reads.
    """
    kaldi: dict[str, Any] = {"num_mel_bins": num_bins, "window_type": "hamming", "high_freq": 0.0, "snip_edges": True}
    make = Features(from_options(AudioConfig, {**({} if "mel" in options else kaldi), **options}, FEATURES_KEY))
    if make.dims != num_bins or make.config.sampling_rate != RATE_HZ:
        raise UserError(
            f"{FEATURES_KEY}: {make.dims} numbers a frame, at {make.config.sampling_rate} Hz; {source} reads "
            f"{num_bins}, at {RATE_HZ} Hz"
        )
    # In logarithms, the channel and the level of a recording are constants, which the mean removes.
    subtracts = make.config.mel is None

    def features(samples: np.ndarray) -> np.ndarray:
        frames = make(samples)
        return frames - frames.mean(0) if subtracts else frames

    return features


def _pieces(x: np.ndarray, length: int) -> np.ndarray:
    """Split samples or frames ``(time, ...)`` into pieces ``(row, length, ...)`` that overlap by half up to the end."""
    x = _at_least(x, length)
    firsts = [*range(0, len(x) - length, max(1, length // 2)), len(x) - length]
    return np.stack([x[first : first + length] for first in firsts])
