"""What loading costs: codecs of the augmentation, by time and by what they do to speech.

    python benchmarks/loading.py [RECORDING ...] [--seconds 60]

``codecs``: five seconds at a time of the recordings, or of espeak-ng's speech, through ``opus`` and ``opus_fast``, by
bit rate: processor time for each second of audio, and the difference of the spectra (bands of 200 Hz, 40 ms) before and
after, as the root of the mean square in decibels, below and above 4 kHz.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.audio.augmentation.effects import coded, resampled
from vaak.audio.espeak import speak

RATE = 16000
CLIP_SECONDS = 5
TEXT = "When the sunlight strikes raindrops in the air, they act as a prism and form a rainbow, wide and round."
COARSENESS = {"44 to 81": (0.7, 0.85), "19 to 44": (0.85, 0.95), "9 to 19": (0.95, 0.99)}
"""By the kilobits in a second that these are."""


def clips(paths: Sequence[Path], seconds: float) -> list[np.ndarray]:
    """Stretches of speech ``(time,)``, together as many seconds as wanted, where there are as many."""
    found = list[np.ndarray]()
    for samples in read(paths):
        if sum(map(len, found)) >= seconds * RATE:
            break
        found += [samples[first : first + CLIP_SECONDS * RATE] for first in range(0, len(samples), CLIP_SECONDS * RATE)]
    return [clip for clip in found if len(clip) >= RATE]


def read(paths: Sequence[Path]) -> Iterator[np.ndarray]:
    for path in paths:
        with AudioFile(path, RATE) as file:
            yield file.samples(0, file.num_samples)
    for pitch in () if paths else range(30, 90, 5):
        spoken = speak(TEXT, "en", pitch=pitch)
        yield resampled(spoken.samples, spoken.sampling_rate, RATE)


def levels(samples: np.ndarray) -> np.ndarray:
    """Decibels of 40 bands of 200 Hz, ``(stretch, band)``."""
    size = RATE // 25
    stretches = samples[: len(samples) // size * size].reshape(-1, size) * np.hanning(size)
    power = np.abs(np.fft.rfft(stretches))[:, 1:] ** 2
    found: np.ndarray = 10 * np.log10(power.reshape(len(power), 40, -1).mean(2) + 1e-6)
    return found


def codecs(speech: Sequence[np.ndarray]) -> None:
    seconds = sum(map(len, speech)) / RATE
    print("| kbit/s | codec | ms for each second | below 4 kHz, dB | above, dB |\n|---|---|---|---|---|")
    for name, (least, most) in COARSENESS.items():
        for codec in ("opus", "opus_fast"):
            drawn = np.linspace(least, most, len(speech))
            coarse = [SimpleNamespace(uniform=lambda low, high, value=value: value) for value in drawn.tolist()]
            begin = time.process_time()
            after = [coded(clip, RATE, codec, one) for clip, one in zip(speech, coarse, strict=True)]  # type: ignore[arg-type]
            taken = 1000 * (time.process_time() - begin) / seconds
            apart = [(levels(one) - levels(other)) ** 2 for one, other in zip(speech, after, strict=True)]
            below, above = (np.sqrt(np.concatenate([one[:, part] for one in apart]).mean())
                            for part in (slice(20), slice(20, 38)))  # fmt: skip
            print(f"| {name} | {codec} | {taken:.1f} | {below:.2f} | {above:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    codecs(clips(options.recordings, options.seconds))


if __name__ == "__main__":
    main()
