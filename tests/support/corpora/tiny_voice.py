"""A voice whose phonemes are tones: utterances with exact alignments, written in a second, to train speech on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.supervision import AlignmentItem

from vaak.audio.formats.alignments import Interval, write_textgrid
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.runs.start import train as train_run

RATE = 8000
WORDS = {
    "he": ("HH", "IY1"),
    "saw": ("S", "AO1"),
    "me": ("M", "IY1"),
    "may": ("M", "EY1"),
    "go": ("G", "OW1"),
    "now": ("N", "AW1"),
    "she": ("SH", "IY1"),
}
PHONES = sorted({phone for phones in WORDS.values() for phone in phones})
MEL: dict[str, Any] = {
    "sampling_rate": RATE,
    "n_fft": 256,
    "win_length": 256,
    "hop_length": 64,
    "n_mels": 16,
    "f_max": None,
}
"""Frames of 8 ms."""
NUM_UTTERANCES = {"train": 20, "valid": 4, "test": 3}

Phones = list[tuple[str, float, float]]


def utterance(rng: np.random.Generator, num_words: int) -> tuple[str, np.ndarray, Phones]:
    """A text, its samples, and its phones with their seconds: pauses at both ends and at the comma."""
    words = [str(word) for word in rng.choice(list(WORDS), num_words)]
    phones: Phones = [("sil", 0.0, 0.15)]
    for place, word in enumerate(words):
        if place == num_words // 2:
            phones.append(("sil", phones[-1][2], phones[-1][2] + 0.1))
        for phone in WORDS[word]:
            start = phones[-1][2]
            phones.append((phone, start, start + 0.05 + 0.01 * PHONES.index(phone)))
    phones.append(("sil", phones[-1][2], phones[-1][2] + 0.2))
    phones = [(label, round(start, 6), round(end, 6)) for label, start, end in phones]
    text = " ".join(words[: num_words // 2]) + ", " + " ".join(words[num_words // 2 :]) + "."
    return text, make_samples(phones, rng), phones


def make_samples(phones: Phones, rng: np.random.Generator) -> np.ndarray:
    """A tone for each phone, and next to nothing for pauses."""
    samples = 1e-4 * rng.standard_normal(round(phones[-1][2] * RATE))
    for label, start, end in phones:
        if label != "sil":
            places = np.arange(round(start * RATE), round(end * RATE))
            tone = 200.0 + 150.0 * PHONES.index(label)
            samples[places] += 0.3 * np.sin(2 * np.pi * tone * places / RATE)
    return samples


def cut(name: str, path: Path, text: str | None, phones: Phones, **label: Any) -> MonoCut:
    """A cut of a whole file with one label; without ``phones`` it has no alignment."""
    info = soundfile.info(path)
    recording = Recording(
        name, [AudioSource("file", [0], str(path))], info.samplerate, info.frames, info.frames / info.samplerate
    )
    items = [AlignmentItem(phone, start, round(end - start, 6)) for phone, start, end in phones]
    about = {"speaker": "ann", "alignment": {"phone": items} if items else None, **label}
    supervision = SupervisionSegment(name, name, 0.0, recording.duration, text=text, **about)
    return MonoCut(name, 0.0, recording.duration, 0, supervisions=[supervision], recording=recording)


def write_voice(folder: Path, seed: int = 0) -> Path:
    """``train.jsonl``, ``valid.jsonl`` and ``test.jsonl`` with cuts of 2 to 6 words; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for split, number in NUM_UTTERANCES.items():
        cuts = []
        for index in range(number):
            text, samples, phones = utterance(rng, int(rng.integers(2, 7)))
            path = folder / f"{split}{index}.wav"
            soundfile.write(path, samples, RATE)
            cuts.append(cut(f"{split}{index}", path, text, phones))
        write_cuts(folder / f"{split}.jsonl", cuts)
    return folder


def write_ljspeech(folder: Path, number: int = 12, seed: int = 0) -> Path:
    """``metadata.csv``, ``wavs`` and ``TextGrid`` with utterances ``a0``, ``a1``, …; the folder."""
    rng, lines = np.random.default_rng(seed), []
    for name in ("wavs", "TextGrid"):
        (folder / name).mkdir(parents=True)
    for index in range(number):
        text, samples, phones = utterance(rng, int(rng.integers(2, 7)))
        soundfile.write(folder / "wavs" / f"a{index}.wav", samples, RATE)
        write_phones(folder / "TextGrid" / f"a{index}.TextGrid", phones)
        lines.append(f"a{index}|{text.upper()}|{text}\n")
    (folder / "metadata.csv").write_text("".join(lines))
    return folder


def write_phones(path: Path, phones: Phones) -> None:
    """A TextGrid with the tier phones, as the Montreal Forced Aligner writes pauses."""
    intervals = [Interval(start, end, label.replace("sil", "")) for label, start, end in phones]
    write_textgrid(path, {"phones": intervals}, phones[-1][2])


def write_cuts(path: Path, cuts: list[MonoCut]) -> None:
    """A manifest of Lhotse's."""
    path.write_text("".join(json.dumps(one.to_dict()) + "\n" for one in CutSet.from_cuts(cuts)))


def train(corpus: Path, run: Path, *overrides: str, **more: Any) -> Path:
    """Train a small model on what was written in a folder; its run directory."""
    run.parent.mkdir(parents=True, exist_ok=True)
    file = run.parent / f"{run.name}.yml"
    file.write_text(yaml_text(options(corpus, **more)))
    train_run(load([file], [f"run_dir={run}", *overrides]))
    return run


def make_dataset_from(folder: Path | str) -> dict[str, Any]:
    """The options of ``datasets`` for what was written in a folder."""
    return {"name": "voice", "type": "cuts", **{split: [f"{folder}/{split}.jsonl"] for split in NUM_UTTERANCES}}


def options(folder: Path | str, **more: Any) -> dict[str, Any]:
    """A small experiment on what was written in a folder."""
    sizes = {"global_config": {"d_model": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.0}}
    return {
        "task": "tts",
        "name": "voice",
        "model": {**sizes, "duration_predictor": {"width": 32}, **more.get("model", {})},
        "global_config": {"mel": MEL},
        "datasets": [make_dataset_from(folder)],
        "data": {"samples": ["He saw me."], "speaking": {"num_iterations": 2}, **more.get("data", {})},
        "training": {
            "device": "cpu",
            "max_steps": 30,
            "batch_size": 8,
            "optimizer": {"lr": 1e-2},
            "checkpoint": {"interval_epochs": None},
            "logging": {"tensorboard": False, "progress_bar": False},
            "memory": {"rehearsal": False},
            **more.get("training", {}),
        },
    }
