r"""Conversations by a second simulator, which shares no code with Vaak's: for testing diarizers on another's labels.

    python benchmarks/second_simulator.py FOLDER --utterances manifest.jsonl --number 100
    vaak eval runs/read-speech --split test \
        "datasets=[{name: second, type: folder, corpus_dir: FOLDER, test: [audio/*.flac]}]"

FOLDER gets ``audio/NAME.flac`` and ``rttm/NAME.rttm``. As in Fujita et al. 2019, "End-to-End Neural Speaker Diarization
with Permutation-Free Objectives", section 4 and algorithm 1: for each speaker, as many utterances as drawn, in random
order, each after a pause of exponential length with mean ``beta``; every speaker with another reverberation; tracks are
added, the shorter ones padded at their ends; noise at an SNR of 10, 15 or 20 dB.

As the paper's utterances were cut by a detector of speech, an utterance is here a stretch between pauses longer than
``--gap`` seconds; with ``--whole`` it is a recording with the pauses that are in it, and 3 to 6 make a conversation.

What isn't in the paper: reverberation is exponentially decaying noise, the noise is pink. Labels are the speech of the
clean utterance before any reverberation or noise, by one of three ways that share nothing with Vaak's: ``words``, a
forced alignment of the transcript by pocketsphinx, pauses up to ``--gap`` seconds bridged (requires ``text`` in the
manifest, and ``pip install pocketsphinx``); ``energy``, where the short-time energy comes within ``--threshold`` dB of
the utterance's own maximum; ``utterances``, each as a whole, as read corpora are labelled.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
WINDOW, STEP = 400, 160  # samples of a frame of energy, and between frames
LETTERS = (
    "a:AE b:B c:K d:D e:EH f:F g:G h:HH i:IH j:JH k:K l:L m:M n:N o:AO p:P q:K r:R s:S t:T u:AH v:V w:W x:K y:Y z:Z"
)
"""A sound for each letter: for words that the aligner's dictionary lacks."""


@dataclass(frozen=True)
class Utterance:
    """One recording of one speaker."""

    speaker: str
    audio: Path
    text: str

    def samples(self) -> np.ndarray:
        """``(time,)`` at 16 kHz."""
        found, rate = soundfile.read(self.audio, dtype="float64")
        if rate != RATE or found.ndim != 1:
            raise SystemExit(f"{self.audio}: mono at {RATE} Hz is required")
        return np.asarray(found)


def read_manifest(path: Path) -> dict[str, list[Utterance]]:
    """The utterances of each speaker: JSON lines with ``speaker``, ``audio`` (relative to the manifest), ``text``."""
    speakers: dict[str, list[Utterance]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        speakers.setdefault(entry["speaker"], []).append(
            Utterance(entry["speaker"], path.parent / entry["audio"], entry.get("text", ""))
        )
    return speakers


class Labels:
    """Where an utterance has speech, as ``--labels`` says: first and last + 1 sample of each stretch."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.kind, self.threshold, self.gap = options.labels, options.threshold, round(options.gap * RATE)
        self.known: dict[Path, list[tuple[int, int]]] = {}
        if self.kind == "words":
            from pocketsphinx import Decoder

            self.sounds = dict(pair.split(":") for pair in LETTERS.split())
            self.aligner = Decoder(samprate=RATE, loglevel="FATAL")

    def __call__(self, utterance: Utterance, samples: np.ndarray) -> list[tuple[int, int]]:
        if self.kind == "utterances":
            return [(0, len(samples))]
        if utterance.audio not in self.known:
            spans = self.words(utterance, samples) if self.kind == "words" else loud(samples, self.threshold)
            self.known[utterance.audio] = joined(spans, self.gap)
        return self.known[utterance.audio]

    def words(self, utterance: Utterance, samples: np.ndarray) -> list[tuple[int, int]]:
        """The words of the transcript by forced alignment, in frames of 10 ms; unknown words are spelled by letters."""
        words = utterance.text.lower().split()
        for word in words:
            if self.aligner.lookup_word(word) is None:
                sounds = [self.sounds[letter] for letter in word if letter in self.sounds]
                self.aligner.add_word(word, " ".join(sounds), True)
        self.aligner.set_align_text(" ".join(words))
        self.aligner.start_utt()
        self.aligner.process_raw((samples * 32767).astype(np.int16).tobytes(), full_utt=True)
        self.aligner.end_utt()
        found = [part for part in self.aligner.seg() if not part.word.startswith("<")]
        if not found:
            raise SystemExit(f"{utterance.audio}: the transcript can't be aligned with the audio")
        return [(part.start_frame * STEP, (part.end_frame + 1) * STEP) for part in found]


def joined(spans: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Spans with at most ``gap`` samples between them made one."""
    found: list[tuple[int, int]] = []
    for first, last in spans:
        if found and first - found[-1][1] <= gap:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def loud(samples: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    """The frames with an energy within ``threshold`` dB of the loudest frame's."""
    starts = np.arange(0, max(1, len(samples) - WINDOW + 1), STEP)
    sums = np.concatenate([[0.0], np.cumsum(samples**2)])
    energy = 10 * np.log10((sums[np.minimum(starts + WINDOW, len(samples))] - sums[starts]) / WINDOW + 1e-12)
    return [(a, min(a + WINDOW, len(samples))) for a in starts[energy > energy.max() - threshold].tolist()]


def utterances(recording: Utterance, labels: Labels, whole: bool) -> list[tuple[np.ndarray, list[tuple[int, int]]]]:
    """Samples of each utterance of a recording, and where in them speech is."""
    samples = recording.samples()
    spans = labels(recording, samples)
    return [(samples, spans)] if whole else [(samples[a:b], [(0, min(b, len(samples)) - a)]) for a, b in spans]


def conversation(
    speakers: list[list[Utterance]], labels: Labels, options: argparse.Namespace, rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """A mixture ``(time,)`` of the speakers' utterances, and its turns: start and end in seconds, speaker."""
    least, most = options.utterances_per_speaker or ((3, 6) if options.whole else (10, 20))
    tracks, turns = [], []
    for recordings in speakers:
        said = [piece for recording in recordings for piece in utterances(recording, labels, options.whole)]
        pieces, place = [], 0
        number = int(rng.integers(least, most + 1))
        for index in rng.choice(len(said), number, replace=number > len(said)):
            pause, (samples, spoken) = round(rng.exponential(options.beta) * RATE), said[index]
            place += pause
            turns += [((place + a) / RATE, (place + b) / RATE, recordings[0].speaker) for a, b in spoken]
            pieces += [np.zeros(pause), samples]
            place += len(samples)
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


def shares_of(turns: list[tuple[float, float, str]]) -> tuple[float, float]:
    """Seconds in which one speaks, and in which several do."""
    changes = sorted([(start, 1) for start, _, _ in turns] + [(end, -1) for _, end, _ in turns])
    alone, together, speaking = 0.0, 0.0, 0
    for (time, change), (after, _) in pairwise(changes):
        speaking += change
        alone += (after - time) * (speaking == 1)
        together += (after - time) * (speaking > 1)
    return alone, together


def main() -> None:
    """Write the conversations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--utterances", type=Path, required=True, metavar="MANIFEST")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--speakers", type=int, default=2)
    parser.add_argument("--utterances-per-speaker", type=int, nargs=2, metavar=("LEAST", "MOST"))
    parser.add_argument("--whole", action="store_true", help="unmodified recordings, with their pauses")
    parser.add_argument("--beta", type=float, default=2.0, help="mean pause in seconds")
    parser.add_argument("--labels", choices=("words", "energy", "utterances"), default="words")
    parser.add_argument("--threshold", type=float, default=35.0, help="energy: dB below the loudest frame")
    parser.add_argument("--gap", type=float, default=0.3, help="seconds of a pause that counts as speech")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    speakers, labels = list(read_manifest(options.utterances).values()), Labels(options)
    for name in ("audio", "rttm"):
        (options.folder / name).mkdir(parents=True, exist_ok=True)
    seconds, spoken, overlapping = 0.0, 0.0, 0.0
    for number in range(options.number):
        rng = np.random.default_rng((options.seed, number))
        chosen = [speakers[index] for index in rng.choice(len(speakers), options.speakers, replace=False)]
        mixture, turns = conversation(chosen, labels, options, rng)
        name = f"conversation-{number:04}"
        soundfile.write(options.folder / "audio" / f"{name}.flac", mixture, RATE)
        seconds += len(mixture) / RATE
        spoken += sum(shares := shares_of(turns))
        overlapping += shares[1]
        lines = [f"SPEAKER {name} 1 {a:.3f} {b - a:.3f} <NA> <NA> {who} <NA> <NA>\n" for a, b, who in turns]
        (options.folder / "rttm" / f"{name}.rttm").write_text("".join(lines), encoding="utf-8")
    mean, share = seconds / options.number, overlapping / spoken
    print(f"{options.number} conversations of {mean:.0f} s; {share:.0%} of speech overlaps")


if __name__ == "__main__":
    main()
