"""Voice activity by silero-vad (https://github.com/snakers4/silero-vad, MIT), whose package has the weights.

The network reads windows of 32 ms at 16 kHz, each after the last 4 ms of the one before:

    samples ──STFT──▶ magnitudes ──4 convolutions──▶ a vector ──LSTM, keeps state──▶ probability of speech

The package isn't imported, and its TorchScript isn't read: only its safetensors (silero-vad 6.2 or newer). Their
weights are of another training than those of its TorchScript and its ONNX.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.audio.voice_activity import VoiceActivity
from vaak.core.errors import optional_import

RATE, WINDOW, CONTEXT, PADDING = 16_000, 512, 64, 64
BEGINS, GOES_ON = 0.5, 0.35
"""Probabilities at which speech begins, and below which it ends, as in silero-vad's own iterator."""


class SileroNetwork(nn.Module):
    """The network of silero-vad at 16 kHz; its modules have the names of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the probabilities of speech ``(batch,)`` in windows ``(batch, CONTEXT + WINDOW)``, and the state."""
        parts = self.stft_conv(F.pad(x[:, None], (0, PADDING), mode="reflect"))
        x = (parts[:, :129] ** 2 + parts[:, 129:] ** 2).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        hidden, cell = self.lstm_cell(x.squeeze(-1), state)
        return self.final_conv(hidden[..., None].relu()).sigmoid()[:, 0, 0], (hidden, cell)


def find_weights() -> Path | None:
    """Return the file of weights in the installed package; None without one."""
    found = importlib.util.find_spec("silero_vad")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder) / "data" / "silero_vad_16k.safetensors"
        if path.is_file():
            return path
    return None


@cache
def load_network(weights: Path) -> SileroNetwork:
    """Return the network, ready for use."""
    network = SileroNetwork()
    network.load_state_dict(load_file(weights))
    return network.eval()


def _make_resampler(rate: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a resampler from ``rate``, piece by piece. It is cubic, as soxr's better filters are 0.1 s late."""
    with optional_import("audio of another rate requires soxr", "audio"):
        import soxr
    stream = soxr.ResampleStream(rate, RATE, 1, dtype="float32", quality="QQ")
    return lambda samples: stream.resample_chunk(samples)


class SileroActivity(VoiceActivity):
    """Whether somebody speaks, as ``VoiceActivity`` says it, by the network, from samples at ``rate``.

    A frame is judged by the last whole window, so 32 ms late at most.
    """

    name = "silero-vad"

    def __init__(self, pause: float, rate: int, weights: Path) -> None:
        super().__init__(pause)
        self.network, self.probability = load_network(weights), 0.0
        self._resample = None if rate == RATE else _make_resampler(rate)
        self._unread, self._state = np.zeros(CONTEXT, np.float32), None

    def _is_speech(self, frame: np.ndarray, level: float) -> bool:
        new = np.asarray(frame, np.float32)
        self._unread = np.concatenate((self._unread, new if self._resample is None else self._resample(new)))
        while len(self._unread) >= CONTEXT + WINDOW:
            window = torch.from_numpy(self._unread[: CONTEXT + WINDOW])[None]
            with torch.inference_mode():
                found, self._state = self.network(window, self._state)
            self.probability, self._unread = float(found), self._unread[WINDOW:]
        return self.probability >= (GOES_ON if self.is_speech else BEGINS)


def make_voice_activity(pause: float, rate: int) -> VoiceActivity:
    """Return a speech detector for samples at ``rate``: silero-vad where it is installed, else by energy."""
    weights = find_weights()
    return VoiceActivity(pause) if weights is None else SileroActivity(pause, rate, weights)
