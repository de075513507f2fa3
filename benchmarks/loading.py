"""What loading costs: reads of storage by the order of an epoch, and codecs of the augmentation.

    python benchmarks/loading.py [RECORDING ...] [--seconds 60] [--examples 200000]

``shards``: the separate reads that an epoch of utterances in tars takes (60 kB each, 2,000 in a file), counted from
plans: a read that begins where the one before ended isn't separate. By shards they are those of the thread that reads
ahead, in pieces of 8 MiB. And how well it is mixed: how many shards of 1,000 utterances a batch of 32 has, and how far
the files' shares in a thousand steps are from those of all data (half the sum of the differences, in percent).

``codecs``: five seconds at a time of the recordings, or of espeak-ng's speech, through ``opus`` and ``opus_fast``, by
bit rate: processor time for each second of audio, and the difference of the spectra (bands of 200 Hz, 40 ms) before and
after, as the root of the mean square in decibels, below and above 4 kHz.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.audio.augmentation.effects import coded, resampled
from vaak.audio.espeak import speak
from vaak.config.training import TrainingConfig
from vaak.core.task import Dataset
from vaak.data.batching import training_planner
from vaak.data.read_ahead import READ_BYTES, join_stretches

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


class Tars(Dataset):
    """Utterances one after another in files."""

    SIZE, IN_A_FILE = 60_000, 2_000

    def __init__(self, number: int) -> None:
        self.lengths = np.random.default_rng(0).uniform(1, 20, number)

    def list_bytes(self, indices: Sequence[int]) -> Iterator[tuple[Path, int, int]]:
        for index in indices:
            file, place = divmod(index, self.IN_A_FILE)
            yield Path(f"{file:05}.tar"), self.SIZE * place, self.SIZE


def count_reads(dataset: Tars, order: Sequence[int]) -> int:
    """The separate reads of examples in an order."""
    stretches = list(dataset.list_bytes(order))
    following = sum((one[0], one[1] + one[2]) == other[:2] for one, other in pairwise(stretches))
    return len(stretches) - following


def shards(number: int) -> None:
    dataset = Tars(number)
    print("| order | pieces | reads per 1,000 examples | MB a read | shards in a batch | shares of files off, % |")
    print("|---|---|---|---|---|---|")
    for shard_size, mixed in ((None, 0), (1000, 8), (1000, 32), (250, 32)):
        options = {"shard_size": shard_size, **({"shards_mixed": mixed} if mixed else {})}
        planner = training_planner(TrainingConfig.model_validate({"batch_size": 32, "batching": options}), dataset)
        plan = planner.plan(0)
        batches = [[row[0] for row in plan.microbatch(place)] for place in range(len(plan))]
        if shard_size is None:
            reads = count_reads(dataset, [index for batch in batches for index in batch])
        else:
            pieces = (sorted(piece.make().indices.tolist()) for piece in plan.pieces)
            reads = sum(-(-one.size // READ_BYTES)
                        for piece in pieces for one in join_stretches(dataset.list_bytes(piece)))  # fmt: skip
        in_a_batch = np.mean([len({index // 1000 for index in batch}) for batch in batches])
        files = [np.bincount(np.concatenate(batches[first : first + 1000]) // dataset.IN_A_FILE,
                             minlength=-(-number // dataset.IN_A_FILE)) / 32_000
                 for first in range(0, len(batches) - 999, 1000)]  # fmt: skip
        off = 50 * np.mean([np.abs(one - 1 / len(one)).sum() for one in files]) if files else float("nan")
        name = "random" if shard_size is None else f"shards of {shard_size}, {mixed} mixed"
        size = dataset.SIZE * number / reads / 1e6
        print(
            f"| {name} | {len(plan.pieces)} | {1000 * reads / number:.1f} | {size:.2f} | {in_a_batch:.1f} | {off:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--examples", type=int, default=200_000)
    options = parser.parse_args()
    shards(options.examples)
    codecs(clips(options.recordings, options.seconds))


if __name__ == "__main__":
    main()
