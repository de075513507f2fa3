"""Seconds of audio turned into features per second: Vaak's features one recording at a time and in batches, Lhotse's
own extractor, and kaldi-native-fbank; of Whisper's features Vaak's and transformers', which are the same bits.

    python benchmarks/features.py [--types fbank mfcc whisper] [--seconds 2 10 60] [--rounds 7] [--device cpu]
                                  [--threads 1]

Every arm turns the same noise, ``--total`` seconds of it in recordings of ``--seconds``, into 80 mel bins or 13
coefficients. The arms take turns in one process, round after round, after a round that isn't counted. A figure is the
median over rounds, a ratio the median over rounds of two arms of the same round. kaldi-native-fbank runs on one thread
of the CPU whatever ``--threads`` and ``--device`` say, and is handed a list, as its Python interface wants it: that
list is made before its time is taken. On a device, only ours batch leaves the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import kaldi_native_fbank
import lhotse
import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.tasks.asr.whisper.features import WhisperFeatures

Arm = Callable[[], object]
RATE = 16000
TYPES = ("fbank", "mfcc", "whisper")


def kaldi_options(config: AudioConfig) -> Any:
    options = getattr(kaldi_native_fbank, f"{config.feature_type.title()}Options")()
    options.frame_opts.dither, options.frame_opts.snip_edges = 0.0, False
    options.mel_opts.num_bins, options.mel_opts.high_freq = config.num_mel_bins, config.high_freq
    options.use_energy = False
    return options


def by_kaldi(config: AudioConfig, recordings: list[list[float]]) -> None:
    extractor_of = getattr(kaldi_native_fbank, f"Online{config.feature_type.title()}")
    options = kaldi_options(config)
    for samples in recordings:
        extractor = extractor_of(options)
        extractor.accept_waveform(RATE, samples)
        extractor.input_finished()
        np.stack([extractor.get_frame(index) for index in range(extractor.num_frames_ready)])


def lhotse_extractor(config: AudioConfig) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about Lhotse's mel scale
        if config.feature_type == "fbank":
            return lhotse.Fbank(lhotse.FbankConfig())
        return lhotse.Mfcc(lhotse.MfccConfig(num_filters=config.num_mel_bins))


def whisper_arms(recordings: list[np.ndarray]) -> dict[str, Arm]:
    """Features of 30 seconds, what is missing of them silence, as both programs make them for a model."""
    ours, theirs = WhisperFeatures(80, 30.0), WhisperFeatureExtractor()

    def extract(samples: np.ndarray) -> np.ndarray:
        found: np.ndarray = theirs(samples, sampling_rate=RATE, return_tensors="np")["input_features"][0]
        return found

    assert np.array_equal(ours(recordings[0]), extract(recordings[0]))
    return {
        "ours": lambda: [ours(samples) for samples in recordings],
        "transformers": lambda: [extract(samples) for samples in recordings],
    }


def arms(config: AudioConfig, recordings: list[np.ndarray], device: str) -> dict[str, Arm]:
    ours, batched, theirs = Features(config), Features(config, device), lhotse_extractor(config)
    lists = [samples.tolist() for samples in recordings]
    return {
        "ours": lambda: [ours(samples) for samples in recordings],
        "ours, batch": lambda: batched.batch(recordings),
        "Lhotse": lambda: [theirs.extract(samples, RATE) for samples in recordings],
        "kaldi-native-fbank": lambda: by_kaldi(config, lists),
    }


def race(named: dict[str, Arm], rounds: int) -> dict[str, list[float]]:
    """Seconds of each arm in each round."""
    taken: dict[str, list[float]] = {name: [] for name in named}
    for number in range(rounds + 1):
        for name in list(named)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            named[name]()
            if number:
                taken[name].append(time.perf_counter() - start)
    return taken


def report(feature_type: str, total: float, found: dict[float, dict[str, list[float]]]) -> None:
    """Seconds of audio per second, and ratios of the same rounds, in Markdown."""
    names = list(next(iter(found.values())))
    ratios = [(name, names[-1]) for name in names[:2] if name != names[-1]]
    heads = [*names, *(f"{ours} ÷ {peer}" for ours, peer in ratios)]
    print(f"\n| {feature_type}: seconds of a recording | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for seconds, taken in found.items():
        cells = [f"{total / statistics.median(taken[name]):,.0f}" for name in names]
        for ours, peer in ratios:
            rounds = zip(taken[peer], taken[ours], strict=True)
            cells.append(f"{statistics.median(theirs / mine for theirs, mine in rounds):.2f}")
        print(f"| {seconds:g} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--seconds", type=float, nargs="+", default=[2.0, 10.0, 60.0])
    parser.add_argument("--total", type=float, default=240.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    for feature_type in options.types:
        found: dict[float, dict[str, list[float]]] = {}
        for seconds in options.seconds:
            number = max(1, round(options.total / seconds))
            recordings = [rng.standard_normal(round(seconds * RATE), np.float32) * 0.1 for _ in range(number)]
            if feature_type == "whisper":
                named = whisper_arms(recordings)
            else:
                named = arms(AudioConfig(feature_type=feature_type), recordings, options.device)
            found[seconds] = race(named, options.rounds)
        report(feature_type, options.total, found)


if __name__ == "__main__":
    main()
