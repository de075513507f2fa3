"""Audio files made for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource


def noise(num_samples: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Noise ``(time, channels)`` of 16 bits, which every format of PCM keeps exactly."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-8000, 8000, (num_samples, channels)) / 2**15).astype(np.float32)


def write_audio(
    path: Path, seconds: float, sampling_rate: int = 16000, channels: int = 1, seed: int = 0, **how: str
) -> np.ndarray:
    """Write noise to ``path``; returns its samples ``(time, channels)``."""
    samples = noise(round(seconds * sampling_rate), channels, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, sampling_rate, **how)
    return samples


def cut_of(name: str, duration: float = 10.0, segments: Any = (), uem: Any = None) -> MonoCut:
    """A cut of a file that isn't there; segments are ``(start, duration, speaker)``."""
    recording = Recording(name, [AudioSource("file", [0], f"/{name}.wav")], 16000, round(duration * 16000), duration)
    supervisions = [
        SupervisionSegment(f"{name}-{number}", name, start, length, speaker=speaker)
        for number, (start, length, speaker) in enumerate(segments)
    ]
    custom = {"uem": uem} if uem else None
    return MonoCut(name, 0.0, duration, 0, supervisions=supervisions, recording=recording, custom=custom)
