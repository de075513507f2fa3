"""Words that are tones, of two groups of speakers: written in a second, for a tiny Whisper to learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.runs.start import train as train_run

RATE = 8000
WORDS = {"ba": 400.0, "do": 900.0, "mi": 1600.0, "su": 2600.0}
ACCENTS = {"low": 0.95, "high": 1.05}
NUM_UTTERANCES = {"train": 24, "valid": 6, "test": 4}
SECONDS = 0.8
"""Of the longest utterance: three words."""


def make_samples(words: list[str], accent: str, rng: np.random.Generator) -> np.ndarray:
    """A tone of 0.2 s for each word, with a pause before, and a little noise."""
    parts: list[np.ndarray] = []
    for word in words:
        time = np.arange(round(0.2 * RATE)) / RATE
        parts += [np.zeros(round(0.05 * RATE)), 0.3 * np.sin(2 * np.pi * WORDS[word] * ACCENTS[accent] * time)]
    samples = np.concatenate(parts)
    return samples + 1e-3 * rng.standard_normal(len(samples))


def write_listener(folder: Path, seed: int = 0) -> list[Path]:
    """``train.jsonl``, ``valid.jsonl`` and ``test.jsonl`` with utterances of 1 to 3 words; two of the audio files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(seed), []
    for split, number in NUM_UTTERANCES.items():
        lines = []
        for index in range(number):
            words = [str(word) for word in rng.choice(list(WORDS), 1 + index % 3)]
            accent = list(ACCENTS)[index % 4 == 0]
            paths.append(folder / f"{split}{index}.wav")
            soundfile.write(paths[-1], make_samples(words, accent, rng), RATE)
            lines.append({"audio": paths[-1].name, "text": " ".join(words), "speaker": f"s{index}", "accent": accent})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [paths[0], paths[-1]]


def make_dataset_from(folder: Path | str) -> dict[str, Any]:
    """The options of ``datasets`` for what was written in a folder."""
    return {"name": "tones", "type": "json", **{split: [f"{folder}/{split}.jsonl"] for split in NUM_UTTERANCES}}


def sections(folder: Path | str, **more: Any) -> dict[str, Any]:
    """Model, datasets and data of a small experiment."""
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "max_target_length": 16}
    data = {"max_duration": SECONDS, **more.get("data", {})}
    model = more.get("model", {"scratch": {**sizes, "dropout": 0.1}})
    if "base" in model and model.get("architecture", "whisper") == "whisper" and data["max_duration"] < 30:
        model = {"window": data["max_duration"], **model}  # a base's own 30 s would take the tests minutes
    return {
        "model": model,
        "datasets": [make_dataset_from(folder)],
        "global_config": {"num_mel_bins": 40} if "base" not in more.get("model", {}) else {},
        "data": data,
    }


def options(folder: Path | str, **more: Any) -> dict[str, Any]:
    """A small experiment on what was written in a folder."""
    return {
        "task": "asr",
        "name": "listener",
        **sections(folder, **more),
        "training": {
            "device": "cpu",
            "max_steps": 40,
            "batch_size": 8,
            "optimizer": {"lr": 5e-3},
            "validation": {"interval": 20, "interval_epochs": None},
            "checkpoint": {"interval_epochs": None},
            "performance": {"num_workers": 0},
            "logging": {"tensorboard": False, "progress_bar": False},
            "memory": {"rehearsal": False},
            **more.get("training", {}),
        },
    }


def train(corpus: Path, run: Path, *overrides: str, **more: Any) -> Path:
    """Train a small model on what was written in a folder; its run directory."""
    run.parent.mkdir(parents=True, exist_ok=True)
    file = run.parent / f"{run.name}.yml"
    file.write_text(yaml_text(options(corpus, **more)))
    train_run(load([file], [f"run_dir={run}", *overrides]))
    return run
