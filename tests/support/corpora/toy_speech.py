"""Recordings and utterances of speakers who are tones, written to a folder in a second: data for tests of diarizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from vaak.audio.segments import Segment

RATE = 8000
TONES = {"ann": 300.0, "ben": 700.0, "cat": 1500.0}
NUM_RECORDINGS = {"train": 18, "valid": 5, "test": 3}


def tone(speaker: str, num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """A tone with its octave, a little noise, and an individual level."""
    phase = 2 * np.pi * (TONES[speaker] * np.arange(num_samples) / RATE + rng.random())
    return rng.uniform(0.1, 0.3) * (np.sin(phase) + 0.5 * np.sin(2 * phase)) + 0.003 * rng.standard_normal(num_samples)


def recording(rng: np.random.Generator, seconds: float) -> tuple[np.ndarray, list[Segment]]:
    """Samples ``(time,)`` in which two speak now and then, at times together."""
    samples, segments = 0.001 * rng.standard_normal(round(seconds * RATE)), []
    for speaker in rng.choice(list(TONES), 2, replace=False).tolist():
        place = float(rng.uniform(0, 0.3))
        while place < seconds - 0.2:
            end = min(place + float(rng.uniform(0.2, 0.6)), seconds)
            first, last = round(place * RATE), round(end * RATE)
            samples[first:last] += tone(speaker, last - first, rng)
            segments.append(Segment(first / RATE, last / RATE, speaker))
            place = end + float(rng.uniform(0.2, 0.6))
    return samples, segments


def write_recordings(folder: Path) -> list[Path]:
    """``train.jsonl``, ``valid.jsonl`` and ``test.jsonl`` with recordings of 0.8 to 2 s; returns two of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(0), []
    for split, number in NUM_RECORDINGS.items():
        lines = []
        for index in range(number):
            samples, segments = recording(rng, float(rng.uniform(0.8, 2.0)))
            paths.append(folder / f"{split}{index}.wav")
            soundfile.write(paths[-1], samples, RATE)
            lines.append({"audio": paths[-1].name, "segments": [segment._asdict() for segment in segments]})
        _write_lines(folder / f"{split}.jsonl", lines)
    return [paths[0], paths[-1]]


def write_utterances(folder: Path) -> list[Path]:
    """The same three files with utterances of one speaker each; returns two of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(0), []
    for split in NUM_RECORDINGS:
        lines = []
        for number, speaker in enumerate(TONES):
            paths.append(folder / f"{split}{number}.wav")
            soundfile.write(paths[-1], tone(speaker, round(float(rng.uniform(0.3, 0.8)) * RATE), rng), RATE)
            lines.append({"audio": paths[-1].name, "speaker": speaker})
        _write_lines(folder / f"{split}.jsonl", lines)
    return [paths[0], paths[-1]]


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_dataset_from(folder: Path | str) -> dict[str, Any]:
    """The options of ``datasets`` for what was written in a folder."""
    return {"name": "toy", "type": "json", **{split: [f"{folder}/{split}.jsonl"] for split in NUM_RECORDINGS}}
