"""Makes strings of three to six spoken digits, with short pauses and faint noise: real speech to stream.

    python benchmarks/digit_strings.py $VAAK_DATA/speech_digits FOLDER
    vaak train FOLDER/run.yml
    vaak eval FOLDER/run --split test data.decoding.chunk=0.32
    python benchmarks/live.py FOLDER/run FOLDER/talk.wav FOLDER/talk.txt --chunk 0.32

Training data are made of other takes than the test, and 40 of them are noise without speech. ``talk.wav`` has every
fifth string of the test, with a second of silence after each.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from vaak.core.storage.files import write_text

RATE, LEVEL = 8000, 0.06
"""The recordings' samples a second, and the root mean square to which each digit is brought."""
RUN = """\
task: asr
name: digit-strings
run_dir: run
datasets:
  - {name: strings, type: json, train: [train.jsonl], test: [test.jsonl], valid_fraction: 0.05}
data:
  max_duration: 6.0
  augmentation:
    noise: {type: coloured, snr: [3, 25], probability: 0.7}
    volume: [-10, 6]
model:
  architecture: ctc
  conformer: {d_model: 96, num_layers: 3, dropout: 0.1, streaming: true, largest_chunk: 16, left_frames: 64}
training:
  max_steps: 700
  batch_size: 16
  device: cpu
  optimizer: {type: muon, lr: 1e-2, adamw_lr: 3e-3}
  scheduler: {type: linear, warmup_steps: 30}
  validation: {interval: 350}
  checkpoint: {interval: 100}
  logging: {interval: 10}
"""


def make_noise(rng: np.random.Generator, decibels: float, length: int) -> np.ndarray:
    """Return ``length`` samples of white noise, ``decibels`` below the speech."""
    return rng.normal(0, LEVEL * 10 ** (-decibels / 20), length)


def make_strings(source: Path, folder: Path, split: str, passes: int, seed: int) -> list[dict[str, Any]]:
    """Write strings of a split's recordings, each used once in each pass, and return their lines of the manifest."""
    rows = [json.loads(line) for line in (source / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    rng, drawn = random.Random(seed), np.random.default_rng(seed)
    lines = list[dict[str, Any]]()
    for _ in range(passes):
        speakers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["split"] == split:
                speakers[row["speaker"]].append(row)
        for speaker, own in speakers.items():
            rng.shuffle(own)
            while own:
                number = rng.randint(3, 6)
                digits, own = own[:number], own[number:]
                parts = [np.zeros(int(RATE * rng.uniform(0.1, 0.3)), np.float32)]
                for digit in digits:
                    samples, _ = soundfile.read(source / digit["audio"], dtype="float32")
                    parts.append(samples / max(1e-4, np.sqrt((samples**2).mean())) * LEVEL)
                    parts.append(np.zeros(int(RATE * rng.uniform(0.05, 0.3)), np.float32))
                clean = np.concatenate(parts)
                text = " ".join(digit["text"] for digit in digits)
                noisy = clean + make_noise(drawn, rng.uniform(20, 40), len(clean))
                lines.append(write_sound(folder, f"{split}-{speaker}-{len(lines)}", noisy, text, speaker))
    return lines


def write_sound(folder: Path, name: str, samples: np.ndarray, text: str, speaker: str) -> dict[str, Any]:
    """Write a recording, and return its line of the manifest."""
    soundfile.write(folder / "audio" / f"{name}.flac", np.clip(samples, -1, 1), RATE, subtype="PCM_16")
    return {"audio": f"audio/{name}.flac", "text": text, "speaker": speaker, "duration": len(samples) / RATE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder of the spoken digits, with its manifest.jsonl")
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    folder: Path = asked.folder
    (folder / "audio").mkdir(parents=True)
    train = make_strings(asked.source, folder, "train", 3, 0)
    test = make_strings(asked.source, folder, "test", 1, 1)
    rng = np.random.default_rng(9)
    for number in range(40):
        noise = make_noise(rng, rng.uniform(0, 40), 2 * RATE)
        train.append(write_sound(folder, f"noise-{number}", noise, "", "none"))
    for split, lines in (("train", train), ("test", test)):
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_text(folder / "run.yml", RUN)
    pause = np.zeros(RATE)
    shown = [soundfile.read(folder / line["audio"])[0] for line in test[::5]]
    talk = np.concatenate([pause, *(part for samples in shown for part in (samples, pause))])
    talk += make_noise(np.random.default_rng(3), 30, len(talk))
    soundfile.write(folder / "talk.wav", np.clip(talk, -1, 1), RATE, subtype="PCM_16")
    write_text(folder / "talk.txt", " ".join(line["text"] for line in test[::5]) + "\n")
    print(f"{len(train)} recordings to train on, {len(test)} to test: {sum(line['duration'] for line in test):.0f} s")


if __name__ == "__main__":
    main()
