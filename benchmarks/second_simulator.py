r"""Conversations by a second simulator, which shares no code with Vaak's: for testing diarizers on another's labels.

    python benchmarks/second_simulator.py FOLDER --utterances manifest.jsonl --number 100
    vaak eval runs/read-speech --split test \
        "datasets=[{name: second, type: folder, corpus_dir: FOLDER, test: [audio/*.flac]}]"

FOLDER gets ``audio/NAME.flac`` and ``rttm/NAME.rttm``. As in Fujita et al. 2019, "End-to-End Neural Speaker Diarization
with Permutation-Free Objectives", section 4 and algorithm 1: for each speaker, as many utterances as drawn, in random
order, each after a pause of exponential length with mean ``beta``; every speaker with another reverberation; tracks are
added, the shorter ones padded at their ends; noise at an SNR of 10, 15 or 20 dB.

What isn't in the paper: reverberation is exponentially decaying noise, the noise is pink. Utterances are whole, pauses
within them too. Labels are the speech of the clean utterance before any reverberation or noise: where the short-time
energy comes within ``--threshold`` dB of the utterance's own maximum, gaps up to ``--gap`` seconds bridged;
``--labels utterances`` labels each as a whole, as read corpora do.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
WINDOW, STEP = 400, 160  # samples of a frame of energy, and between frames


@dataclass(frozen=True)
class Utterance:
    """One recording of one speaker."""

    speaker: str
    audio: Path

    def samples(self) -> np.ndarray:
        """``(time,)`` at 16 kHz."""
        found, rate = soundfile.read(self.audio, dtype="float64")
        if rate != RATE or found.ndim != 1:
            raise SystemExit(f"{self.audio}: mono at {RATE} Hz is required")
        return np.asarray(found)


def read_manifest(path: Path) -> dict[str, list[Utterance]]:
    """The utterances of each speaker, of JSON lines with ``speaker`` and ``audio`` (relative to the manifest)."""
    speakers: dict[str, list[Utterance]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        speakers.setdefault(entry["speaker"], []).append(Utterance(entry["speaker"], path.parent / entry["audio"]))
    return speakers


def speech_of(samples: np.ndarray, threshold: float, gap: float) -> list[tuple[int, int]]:
    """First and last + 1 sample of each stretch of speech, by energy within ``threshold`` dB of the maximum."""
    starts = np.arange(0, max(1, len(samples) - WINDOW + 1), STEP)
    sums = np.concatenate([[0.0], np.cumsum(samples**2)])
    energy = 10 * np.log10((sums[np.minimum(starts + WINDOW, len(samples))] - sums[starts]) / WINDOW + 1e-12)
    found: list[tuple[int, int]] = []
    for start in starts[energy > energy.max() - threshold].tolist():
        if found and start - found[-1][1] <= gap * RATE:
            found[-1] = (found[-1][0], start + WINDOW)
        else:
            found.append((start, start + WINDOW))
    return [(first, min(last, len(samples))) for first, last in found]


def conversation(
    speakers: list[list[Utterance]], options: argparse.Namespace, rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """A mixture ``(time,)`` of the speakers' utterances, and its turns: start and end in seconds, speaker."""
    tracks, turns = [], []
    for utterances in speakers:
        pieces, place = [], 0
        number = int(rng.integers(options.utterances_per_speaker[0], options.utterances_per_speaker[1] + 1))
        for index in rng.choice(len(utterances), number, replace=number > len(utterances)):
            pause, said = round(rng.exponential(options.beta) * RATE), utterances[index].samples()
            spans = [(0, len(said))]
            if options.labels == "speech":
                spans = speech_of(said, options.threshold, options.gap)
            place += pause
            turns += [((place + a) / RATE, (place + b) / RATE, utterances[index].speaker) for a, b in spans]
            pieces += [np.zeros(pause), said]
            place += len(said)
        tracks.append(reverberant(np.concatenate(pieces), rng))
    length = max(map(len, tracks))
    mixture = np.sum([np.pad(track, (0, length - len(track))) for track in tracks], axis=0)
    noise = pink(length, rng)
    snr = rng.choice([10.0, 15.0, 20.0])
    mixture += noise * np.sqrt(np.mean(mixture**2) / np.mean(noise**2) / 10 ** (snr / 10))
    return mixture * (0.7 / np.abs(mixture).max()), sorted(turns)


def reverberant(track: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The track as heard over a direct path and a decaying tail, of the same length; 0.15 to 0.4 s to fall by 60 dB."""
    t60 = rng.uniform(0.15, 0.4)
    time = np.arange(round(t60 * RATE)) / RATE
    response = rng.standard_normal(len(time)) * 10 ** (-3 * time / t60)
    response *= rng.uniform(0.1, 0.4) / np.sqrt(np.sum(response**2))
    response[0] = 1.0
    size = len(track) + len(response) - 1
    return np.fft.irfft(np.fft.rfft(track, size) * np.fft.rfft(response, size), size)[: len(track)]


def pink(length: int, rng: np.random.Generator) -> np.ndarray:
    """Noise whose power falls with frequency, ``(length,)``."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 20)), length)


def main() -> None:
    """Write the conversations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--utterances", type=Path, required=True, metavar="MANIFEST")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--speakers", type=int, default=2)
    parser.add_argument("--utterances-per-speaker", type=int, nargs=2, default=(3, 6), metavar=("LEAST", "MOST"))
    parser.add_argument("--beta", type=float, default=2.0, help="mean pause in seconds")
    parser.add_argument("--labels", choices=("speech", "utterances"), default="speech")
    parser.add_argument("--threshold", type=float, default=35.0, help="dB below the loudest frame")
    parser.add_argument("--gap", type=float, default=0.3, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    speakers = list(read_manifest(options.utterances).values())
    for name in ("audio", "rttm"):
        (options.folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(options.number):
        rng = np.random.default_rng((options.seed, number))
        chosen = [speakers[index] for index in rng.choice(len(speakers), options.speakers, replace=False)]
        mixture, turns = conversation(chosen, options, rng)
        name = f"conversation-{number:04}"
        soundfile.write(options.folder / "audio" / f"{name}.flac", mixture, RATE)
        lines = [f"SPEAKER {name} 1 {a:.3f} {b - a:.3f} <NA> <NA> {who} <NA> <NA>\n" for a, b, who in turns]
        (options.folder / "rttm" / f"{name}.rttm").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
