"""Do experts help on atypical speech, of simulated kinds? A mixture, one LoRA of equal size, random clusters.

    python benchmarks/atypical.py --base W/whisper-tiny.en --data D --seeds 1 2 3

Each utterance is two recordings of digits by one speaker (D/speech_digits), changed in one of five ways, its kind:

    slurred   magnitudes are averaged over 310 ms, so sounds run into each other
    slowed    1.9 times as long at the same pitch, by a phase vocoder
    pitched   pitch and formants an octave higher
    noisy     white noise, 10 dB louder than the speech
    narrow    the band from 300 to 600 Hz

They are as strong as this since one LoRA, on other draws of training and validation, is then wrong in a seventh of the
words: with weaker ones it has hardly an error left that experts could fix.

A recording is in one split alone: takes 0 to 4 are for test, 5 to 9 for validation, the others for training. ``vaak
pipeline moe-asr`` trains the mixture and both controls; it isn't told the kinds. WER on test is of all seeds together,
with 95 % of 2,000 bootstrap samples of utterances, paired for differences. The recordings have four speakers, so
the figures say nothing about other people. Seeds already in FOLDER/SEED are resumed, or left unchanged if complete.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.signal
import soundfile
import torch
import transformers

from vaak.scoring.normalisers import BASIC
from vaak.scoring.word_errors import count_errors

RATE, WINDOW_SECONDS = 16_000, 3.2
TAKES = {"test": range(5), "valid": range(5, 10), "train": range(10, 50)}
SYSTEMS = {"base": "the base", "one_lora": "one LoRA", "random": "random clusters", "mixture": "the mixture"}
Samples = np.ndarray


def slur(samples: Samples, rng: np.random.Generator) -> Samples:
    """Average magnitudes over 310 ms."""
    _, _, spectrum = scipy.signal.stft(samples, RATE, nperseg=400, noverlap=240)
    smooth = scipy.signal.convolve(np.abs(spectrum), np.full((1, 31), 1 / 31), mode="same")
    _, made = scipy.signal.istft(smooth * np.exp(1j * np.angle(spectrum)), RATE, nperseg=400, noverlap=240)
    return np.asarray(made)


def slow(samples: Samples, rng: np.random.Generator, factor: float = 1.9) -> Samples:
    """Stretch time: frames are read at a lower pace, and phases advance as they do in the original.

    Source: Flanagan and Golden 1966, "Phase Vocoder".
    """
    _, _, spectrum = scipy.signal.stft(samples, RATE, nperseg=512, noverlap=384)
    places = np.arange(0, spectrum.shape[1] - 1, 1 / factor)
    left = places.astype(int)
    share = places - left
    magnitudes = (1 - share) * np.abs(spectrum[:, left]) + share * np.abs(spectrum[:, left + 1])
    advances = np.angle(spectrum[:, left + 1]) - np.angle(spectrum[:, left])
    phases = np.cumsum(np.concatenate([np.angle(spectrum[:, :1]), advances[:, :-1]], 1), 1)
    _, made = scipy.signal.istft(magnitudes * np.exp(1j * phases), RATE, nperseg=512, noverlap=384)
    return np.asarray(made)


def pitch(samples: Samples, rng: np.random.Generator) -> Samples:
    """Play faster, after stretching by as much."""
    return np.asarray(scipy.signal.resample_poly(slow(samples, rng, 2.0), 1, 2))


def add_noise(samples: Samples, rng: np.random.Generator) -> Samples:
    """Add white noise of ten times the power."""
    return np.asarray(samples + rng.standard_normal(len(samples)) * np.sqrt(10 * np.mean(samples**2)))


def narrow(samples: Samples, rng: np.random.Generator) -> Samples:
    """Keep the band from 300 to 600 Hz."""
    band = scipy.signal.butter(6, (300, 600), "bandpass", fs=RATE, output="sos")
    return np.asarray(scipy.signal.sosfilt(band, samples))


KINDS: Mapping[str, Callable[[Samples, np.random.Generator], Samples]] = {
    "slurred": slur,
    "slowed": slow,
    "pitched": pitch,
    "noisy": add_noise,
    "narrow": narrow,
}


def write_corpus(data: Path, folder: Path, each: Mapping[str, int], seed: int) -> None:
    """Write manifests and audio: ``each`` utterances of every kind and split. Test is the same for all seeds."""
    rows = [json.loads(line) for line in (data / "manifest.jsonl").read_text().splitlines()]
    speakers = sorted({row["speaker"] for row in rows})
    for split, takes in TAKES.items():
        rng = np.random.default_rng(seed if split == "train" else 0)
        written = []
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(each[split]):
            for kind, change in KINDS.items():
                speaker = speakers[number % len(speakers)]
                known = [row for row in rows if row["speaker"] == speaker and int(row["id"].split("_")[2]) in takes]
                pair = [known[int(place)] for place in rng.choice(len(known), 2, replace=False)]
                parts = [soundfile.read(data / row["audio"])[0] for row in pair]
                spoken = np.concatenate([parts[0], np.zeros(800), parts[1]])
                changed = change(np.asarray(scipy.signal.resample_poly(spoken, 2, 1)), rng)
                path = folder / split / f"{kind}-{number:03d}.flac"
                soundfile.write(path, 0.5 * changed / np.abs(changed).max(), RATE)
                text = " ".join(row["text"] for row in pair)
                written.append({"audio": f"{split}/{path.name}", "text": text, "kind": kind})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))


def cut_base(source: Path, folder: Path) -> None:
    """Write a Whisper that reads windows of 3.2 s instead of 30, by its first positions, in a tenth of the time.

    No utterance is longer. All systems begin with it.
    """
    model = transformers.WhisperForConditionalGeneration.from_pretrained(source)
    positions = round(WINDOW_SECONDS * 50)
    table = model.model.encoder.embed_positions
    table.weight = torch.nn.Parameter(table.weight[:positions].detach().clone(), requires_grad=False)
    model.config.max_source_positions = table.num_embeddings = positions
    model.save_pretrained(folder)
    for path in source.iterdir():
        if path.is_file() and path.suffix in (".json", ".txt") and not (folder / path.name).exists():
            shutil.copy(path, folder)


def make_config(base: Path, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Options of the pipeline. Rates are those of docs/pretrained.md; rank and layers are the pipeline's of digits."""
    warm = {"training": {"scheduler": {"type": "linear", "warmup_ratio": 0.1}, "performance": {"num_workers": 0}}}
    files = {split: [str((folder / f"{split}.jsonl").resolve())] for split in TAKES}
    return {
        "mode": "full",
        "controls": True,
        "output_dir": str(folder / "pipeline"),
        "whisper_model": str(base.resolve()),
        "datasets": [{"name": "atypical", "type": "json", **files}],
        "data": {"group": "kind", "max_duration": WINDOW_SECONDS, "decoding": {"max_new_tokens": 16}},
        "embedding_percent": 100,
        "expert_percent": 100,
        "algorithm": "spectral",
        "num_experts": len(KINDS),
        "bootstraps": 0,
        "lora": {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj", "fc1", "fc2"]},
        "expert_batch_size": 8,
        "asr_batch_size": 8,
        "expert_epochs": asked.epochs[0],
        "asr_epochs": asked.epochs[1],
        "eval_every_n_epochs": max(asked.epochs),
        "expert_lr": 1e-3,
        "asr_lr": 1e-3,
        "expert_config": warm,
        "asr_config": warm,
        "plot_method": "pca",
        "device": "cpu",
    }


def count_words(folder: Path) -> tuple[list[str], np.ndarray]:
    """Return the kinds of test utterances, and (system, utterance, errors and words) of a seed."""
    found = []
    for system in SYSTEMS:
        path = folder / "pipeline" / f"{system}_texts" / "transcripts.jsonl"
        lines = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda line: str(line["id"]))
        counts = [count_errors(BASIC(line["reference"]), BASIC(line["text"])) for line in lines]
        found.append([(one.substitutions + one.deletions + one.insertions, one.words) for one in counts])
    return [line["group"] for line in lines], np.array(found)


def print_table(seeds: list[Path]) -> None:
    """WER by system and kind, of all seeds together, and what the mixture has more than the others."""
    found = [count_words(folder) for folder in seeds]
    counts, groups = [one for _, one in found], np.array(found[0][0])
    total = np.sum(counts, axis=0)  # test is the same for all seeds
    drawn = np.random.default_rng(0).multinomial(len(groups), np.full(len(groups), 1 / len(groups)), 2000)
    samples = drawn @ total
    rates, sampled = 100 * total.sum(1)[:, 0] / total.sum(1)[:, 1], 100 * samples[..., 0] / samples[..., 1]
    print(f"{len(groups)} utterances, {len(seeds)} seeds; WER, % (95 %)\n")
    print(f"| | all | each seed | mixture's, points more | {' | '.join(KINDS)} |\n|{'---|' * (4 + len(KINDS))}")
    for place, (system, title) in enumerate(SYSTEMS.items()):
        low, high = np.quantile(sampled[place], [0.025, 0.975])
        each = ", ".join(f"{100 * one[place, :, 0].sum() / one[place, :, 1].sum():.1f}" for one in counts)
        less = np.quantile(sampled[-1] - sampled[place], [0.025, 0.975])
        more = "" if system == "mixture" else f"{rates[-1] - rates[place]:+.1f} ({less[0]:+.1f} to {less[1]:+.1f})"
        by_kind = (total[place][groups == kind].sum(0) for kind in KINDS)
        cells = " | ".join(f"{100 * errors / words:.1f}" for errors, words in by_kind)
        print(f"| {title} | {rates[place]:.1f} ({low:.1f} to {high:.1f}) | {each} | {more} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="a Whisper's folder")
    parser.add_argument("--data", type=Path, required=True, help="the folder with speech_digits")
    parser.add_argument("--folder", type=Path, default=Path("runs/atypical"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--each", type=int, nargs=3, default=[96, 16, 60], help="of a kind: train, valid, test")
    parser.add_argument("--epochs", type=int, nargs=2, default=[4, 4], help="of experts, and of joint training")
    asked = parser.parse_args()
    folders = [asked.folder / str(seed) for seed in asked.seeds]
    each = dict(zip(("train", "valid", "test"), asked.each, strict=True))
    for seed, folder in zip(asked.seeds, folders, strict=True):
        config = folder / "pipeline.json"
        if not config.exists():
            write_corpus(asked.data / "speech_digits", folder, each, seed)
            cut_base(asked.base, folder / "base")
            config.write_text(json.dumps({**make_config(folder / "base", folder, asked), "seed": seed}))
        command = [sys.executable, "-m", "vaak", "pipeline", "moe-asr", "--config", str(config), "--resume"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        print_table(folders[: folders.index(folder) + 1])


if __name__ == "__main__":
    main()
