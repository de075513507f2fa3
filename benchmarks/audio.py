"""Audio on its way to training: Vaak's loader against Lhotse's sampler and dataset, features against
kaldi-native-fbank, and the first batch after a resume in the middle of an epoch of a million cuts.

    python benchmarks/audio.py [--parts loader padding features resume] [--cuts 1000] [--rounds 5] [--workers 0 1 2]
                               [--max-duration 200] [--threads 1] [--resume-cuts 1000000] [--quick]

loader    Cuts of noise are written once, as long as read speech is (see ``read_speech``), each with two speakers. Every
          arm reads one epoch of them in batches of at most ``--max-duration`` seconds, padding counted, and turns them
          into 80 mel bins: from the audio, or from features stored in float32. Ours gives frame labels too, which
          Lhotse's ``K2SpeechRecognitionDataset`` doesn't; its ``DiarizationDataset`` breaks on unequal lengths. Nothing
          is kept in memory from one epoch to the next. The start of the workers is part of an epoch's time.
padding   The part of a batch that is padding, of as many lengths as ``--padding-cuts`` says.
features  As ``benchmarks/features.py``, for fbank and 10 seconds.
resume    Both know as many cuts as ``--resume-cuts`` says, by the same file of manifests, and resume in the middle of
          an epoch: ours opens its store, plans the epoch, hashes the plan and reads the batch; Lhotse opens the file
          lazily, restores its sampler's state and reads the batch. Making the manifests takes minutes, and isn't
          counted, as what is imported isn't.

The arms take turns in one process, round after round, after a round that isn't counted. A figure is the median over
rounds, a ratio the median over rounds of two arms of the same round. A resume is measured once.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lhotse
import numpy as np
import soundfile
import torch
from features import arms as feature_arms
from features import race, report
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset, OnTheFlyFeatures, PrecomputedFeatures

from vaak.audio.config import AudioConfig, AugmentationConfig
from vaak.audio.cuts.sources import WindowSource
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.features.extractors import Features
from vaak.audio.features.store import StoredSource, extract_cuts
from vaak.audio.segments import AudioSource
from vaak.config.training import BatchingConfig, PerformanceConfig, TrainingConfig
from vaak.core.random_keys import Purpose
from vaak.core.task import Dataset
from vaak.data.batching import training_planner
from vaak.data.loader import MicrobatchReader, load, training_addresses
from vaak.data.plan import LastPlan
from vaak.tasks.diarization.data import DiarizationDataset
from vaak.tasks.diarization.labels import BinaryCollator, LabelOptions

RATE = 16000
LONGEST = 20.0
NUM_BUCKETS = 30
"""Of Lhotse's sampler, as its recipes have it."""
PARTS = ("loader", "padding", "features", "resume")


def read_speech(number: int) -> np.ndarray:
    """Seconds of ``number`` utterances, about as LibriSpeech's training set: most of 12 to 17 s, a quarter of any."""
    rng = np.random.default_rng(0)
    long = rng.normal(14.3, 1.3, number)
    lengths = np.where(rng.random(number) < 0.75, long, rng.uniform(2, 14, number))
    return np.round(np.clip(lengths, 2.0, LONGEST), 3)


def write_recordings(folder: Path, durations: np.ndarray) -> list[Recording]:
    """Files of noise."""
    folder.mkdir()
    found = []
    for number, duration in enumerate(durations.tolist()):
        samples = 0.1 * np.random.default_rng(number).standard_normal(round(duration * RATE))
        soundfile.write(folder / f"{number}.wav", samples, RATE)
        found.append(Recording.from_file(folder / f"{number}.wav"))
    return found


def cuts_of(recordings: list[Recording], number: int) -> Iterator[MonoCut]:
    """This many cuts, each of a recording, one recording after another; its halves are two speakers'."""
    for index in range(number):
        recording = recordings[index % len(recordings)]
        half = recording.duration / 2
        supervisions = [
            SupervisionSegment(
                f"{index}-{part}", recording.id, part * half, half, speaker=f"s{index % 100}{part}", text="x"
            )
            for part in range(2)
        ]
        yield MonoCut(f"cut{index}", 0.0, recording.duration, 0, supervisions=supervisions, recording=recording)


class Ours:
    """Vaak's loader; ``stored`` or not, its features are the same."""

    def __init__(self, store: CutStore, audio: AudioConfig, max_duration: float, *, stored: bool = False) -> None:
        features = Features(audio)
        windows = WindowSource(store, audio, LONGEST, shift=False)
        source: AudioSource = windows
        if stored:
            source = StoredSource(windows, extract_cuts(store, audio, "cpu", skip_bad=False), features)
        collator = BinaryCollator(LabelOptions(2 * audio.frame_shift, 2, 4, 2, ()))
        self.dataset = DiarizationDataset(source, features, collator, AugmentationConfig())
        self.planner = LastPlan(training_planner(training(max_duration), self.dataset))

    def epoch(self, workers: int, place: int = 0) -> Iterator[Any]:
        """The batches from ``place`` on."""
        where = {"step": place, "epoch": 0, "place": place, "rank": 0, "world_size": 1}
        addresses = training_addresses(self.planner, 1, **where)
        rest = itertools.islice(addresses, self.planner.num_microbatches - place)
        return load(
            MicrobatchReader(self.dataset, (Purpose.DATA,), 0),
            rest,
            PerformanceConfig(num_workers=workers),
            pin_memory=False,
        )


class Peer:
    """Lhotse's sampler and dataset in torch's loader."""

    def __init__(self, cuts: CutSet, max_duration: float, strategy: Any) -> None:
        self.sampler = DynamicBucketingSampler(cuts, max_duration=max_duration, shuffle=True, num_buckets=NUM_BUCKETS)
        self.dataset = K2SpeechRecognitionDataset(input_strategy=strategy)

    def epoch(self, workers: int) -> Iterator[Any]:
        how: Any = {"sampler": self.sampler, "batch_size": None, "num_workers": workers}
        return iter(torch.utils.data.DataLoader(self.dataset, **how))


def read_all(kind: Ours | Peer, workers: int) -> None:
    for _ in kind.epoch(workers):
        pass


def training(max_duration: float) -> TrainingConfig:
    return TrainingConfig(batching=BatchingConfig(type="bucketed", max_duration=max_duration))


def lhotse_fbank() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about Lhotse's mel scale
        return lhotse.Fbank(lhotse.FbankConfig(num_mel_bins=80))


def loader(options: argparse.Namespace, folder: Path) -> None:
    durations = read_speech(options.cuts)
    store = write_cuts(folder / "store", cuts_of(write_recordings(folder / "audio", durations), options.cuts))
    cuts = CutSet.from_jsonl_lazy(folder / "store" / "cuts.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with_features = cuts.to_eager().compute_and_store_features(
            lhotse_fbank(), folder / "lhotse", storage_type=lhotse.NumpyFilesWriter, progress_bar=False
        )
    with_features.to_jsonl(folder / "with_features.jsonl")
    with_features = CutSet.from_jsonl_lazy(folder / "with_features.jsonl")
    audio = AudioConfig(cache_gigabytes=0, storage_path=str(folder / "ours"), progress_bar=False)
    most = options.max_duration
    kinds: dict[str, Ours | Peer] = {
        "ours": Ours(store, audio, most),
        "Lhotse": Peer(cuts, most, OnTheFlyFeatures(lhotse_fbank())),
        "ours, stored": Ours(store, audio, most, stored=True),
        "Lhotse, stored": Peer(with_features, most, PrecomputedFeatures()),
    }
    hours = float(durations.sum()) / 3600
    print(f"\n{options.cuts:,} cuts, {hours:.2f} hours of audio, batches of at most {most:g} s\n")
    pairs = [("ours", "Lhotse"), ("ours, stored", "Lhotse, stored")]
    heads = [*kinds, *(f"{ours} ÷ {peer}" for ours, peer in pairs)]
    print(f"| workers: hours of audio a second | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for workers in options.workers:
        taken = race({name: partial(read_all, kind, workers) for name, kind in kinds.items()}, options.rounds)
        cells = [f"{hours / statistics.median(taken[name]):.2f}" for name in kinds]
        for ours, peer in pairs:
            rounds = zip(taken[peer], taken[ours], strict=True)
            cells.append(f"{statistics.median(theirs / mine for theirs, mine in rounds):.2f}")
        print(f"| {workers} | {' | '.join(cells)} |", flush=True)


def padding(options: argparse.Namespace, folder: Path) -> None:
    durations = read_speech(options.padding_cuts)
    dataset = Dataset()
    dataset.lengths = durations
    recordings = [Recording(str(index), [], RATE, round(d * RATE), d) for index, d in enumerate(durations.tolist())]
    cuts = CutSet.from_cuts(cuts_of(recordings, len(recordings)))
    print("\n| batches of at most, s | ours: padding | Lhotse: padding |\n|---|---|---|")
    for most in (60.0, 200.0, 600.0):
        ours = training_planner(training(most), dataset).plan(0).padding_waste(durations)
        sampler = DynamicBucketingSampler(cuts, max_duration=most, shuffle=True, num_buckets=NUM_BUCKETS)
        batches = [np.array([cut.duration for cut in batch]) for batch in sampler]
        cells = sum(len(batch) * batch.max() for batch in batches)
        theirs = 1 - sum(batch.sum() for batch in batches) / cells
        print(f"| {most:g} | {ours:.2%} | {theirs:.2%} |", flush=True)


def features(options: argparse.Namespace, folder: Path) -> None:
    config, rng, total = AudioConfig(), np.random.default_rng(0), 60.0 if options.quick else 240.0
    recordings = [rng.standard_normal(10 * RATE, np.float32) * 0.1 for _ in range(round(total / 10))]
    report("fbank", total, {10.0: race(feature_arms(config, recordings, "cpu"), options.rounds)})


def resume(options: argparse.Namespace, folder: Path) -> None:
    number, most = options.resume_cuts, options.max_duration
    recordings = write_recordings(folder / "some", read_speech(200))
    write_cuts(folder / "many", cuts_of(recordings, number))

    begun = time.perf_counter()
    ours = Ours(CutStore(folder / "many"), AudioConfig(), most)
    plan = ours.planner.plan(0)
    mark = plan.fingerprint
    next(ours.epoch(0, place=len(plan) // 2))
    taken = time.perf_counter() - begun

    def peer() -> Peer:
        cuts = CutSet.from_jsonl_lazy(folder / "many" / "cuts.jsonl")
        return Peer(cuts, most, OnTheFlyFeatures(lhotse_fbank()))

    interrupted, seen = peer(), 0
    batches = iter(interrupted.sampler)
    while seen < number // 2:
        seen += len(next(batches))
    state = interrupted.sampler.state_dict()
    begun = time.perf_counter()
    restored = peer()
    restored.sampler.load_state_dict(state)
    next(restored.epoch(0))
    theirs = time.perf_counter() - begun
    print(f"\nplan {mark}; {len(plan):,} batches")
    print("\n| cuts of an epoch: seconds to the first batch from its middle | ours | Lhotse |\n|---|---|---|")
    print(f"| {number:,} | {taken:.2f} | {theirs:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-duration", type=float, default=200.0)
    parser.add_argument("--padding-cuts", type=int, default=100_000)
    parser.add_argument("--resume-cuts", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1, help="of this process; workers have one each")
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.cuts, options.rounds, options.padding_cuts, options.resume_cuts = 60, 1, 5000, 20_000
    torch.set_num_threads(options.threads)
    python, command = platform.python_version(), " ".join(["python", *sys.argv])
    warnings.filterwarnings("ignore", message="You are using DynamicBucketingSampler with an eagerly read CutSet")
    print(f"{command}\n{processor()}; Python {python}, torch {torch.__version__}, Lhotse {lhotse.__version__}")
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="vaak-audio-") as folder:
            {"loader": loader, "padding": padding, "features": features, "resume": resume}[part](options, Path(folder))


def processor() -> str:
    """The model and the number of its cores that there are."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or '?'} cores"


if __name__ == "__main__":
    main()
