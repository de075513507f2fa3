"""A tiny diarizer trained in this process on made recordings, whose two speakers are two colours of noise."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import soundfile

from vaak.audio.formats.annotation_lines import write_rttm
from vaak.audio.segments import Segment
from vaak.config.load import load
from vaak.runs.start import train as train_run

RATE = 16000
CONFIG = """\
task: diarization
name: tiny
model: {d_model: 32, num_layers: 1, num_heads: 2, num_convolutions: 1, embedding_dim: 8}
global_config: {num_mel_bins: 24, progress_bar: false}
datasets:
  - {name: made, type: folder, train: [FOLDER/train], valid: [FOLDER/valid], test: [FOLDER/test]}
data: {window: 6.0, inference: {window: 8.0}}
training:
  max_steps: 20
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  eval_knobs: {label_type: multilabel}
  loss: {auxiliary: {clustering: 0.5, speaker: 0.1}}
  validation: {interval: 10}
  checkpoint: {interval: 10}
  logging: {interval: 5, tensorboard: true, progress_bar: false}
  memory: {rehearsal: false}
"""
SIZES = {"train": 8, "valid": 3, "test": 3}
SECONDS = 12.0


def conversation(seed: int, seconds: float = SECONDS) -> tuple[np.ndarray, list[Segment]]:
    """Samples ``(time,)`` and who speaks when: turns of 1 to 3 s with pauses between them, none at once."""
    samples, segments = _make_conversation(seed, seconds)
    return samples.copy(), list(segments)


@functools.cache  # a corpus takes half a second, most of it Fourier transforms, and many tests write the same one
def _make_conversation(seed: int, seconds: float) -> tuple[np.ndarray, tuple[Segment, ...]]:
    rng = np.random.default_rng(seed)
    samples = 0.001 * rng.standard_normal(round(seconds * RATE))
    segments, start, speaker = [], 0.5, int(rng.integers(2))
    while start + 1.0 < seconds:
        end = min(start + float(rng.uniform(1.0, 3.0)), seconds - 0.2)
        first, last = round(start * RATE), round(end * RATE)
        samples[first:last] += voice(speaker, last - first, rng)
        segments.append(Segment(first / RATE, last / RATE, ("low", "high")[speaker]))
        start, speaker = end + float(rng.uniform(0.3, 0.8)), 1 - speaker
    return samples.astype(np.float32), tuple(segments)


def voice(speaker: int, num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Noise below 1 kHz, or above 3 kHz."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    frequencies = np.fft.rfftfreq(num_samples, 1 / RATE)
    spectrum[(frequencies > 1000) if speaker == 0 else (frequencies < 3000)] = 0
    return 0.1 * np.fft.irfft(spectrum, num_samples)


def write_corpus(folder: Path) -> None:
    """Recordings with RTTM in ``train``, ``valid`` and ``test``, and ``tiny.yml`` that names them."""
    number = 0
    for split, size in SIZES.items():
        (folder / split).mkdir(parents=True)
        for index in range(size):
            number += 1
            samples, segments = conversation(number)
            name = f"{split}{index}"
            soundfile.write(folder / split / f"{name}.wav", samples, RATE)
            write_rttm(folder / split / f"{name}.rttm", {name: segments})
    (folder / "tiny.yml").write_text(CONFIG.replace("FOLDER", str(folder)))


def train(folder: Path, run: Path, *overrides: str) -> None:
    """Train the tiny configuration into a run directory."""
    train_run(load([folder / "tiny.yml"], [f"run_dir={run}", *overrides]))
