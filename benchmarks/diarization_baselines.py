"""Diarization error rates that a diarizer has to beat, without a network.

    python benchmarks/diarization_baselines.py FOLDER
    python benchmarks/diarization_baselines.py AUDIO --rttm RTTM --uem UEM

FOLDER holds conversations with RTTM, as ``vaak data simulate`` writes them; audio and RTTM are matched by name. A row
of the table for each baseline, at collar 0 with overlap scored, over all recordings together:

- one speaker: the same speaker from beginning to end
- energy and spectral clustering: speech where it is loud; then windows of 1.5 s every 0.25 s, each the means of
  its cepstral coefficients without the first, in as many clusters as the reference has speakers
- perfect without overlap: the reference, but where several speak only one of them; no system that gives each moment
  one speaker can do better

What is scored is the UEM, or the whole of each recording.
Source: Ng, Jordan and Weiss 2001, "On Spectral Clustering: Analysis and an Algorithm".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.formats.rttm import read_rttm
from vaak.audio.formats.uem import read_uem
from vaak.audio.labelled import Segment
from vaak.audio.scoring.errors import Score, score_recordings
from vaak.audio.segments import merged
from vaak.audio.waveforms.audio_file import AudioFile
from vaak.audio.waveforms.speech_regions import frame_levels, joined_over_gaps, runs_of
from vaak.core.errors import UserError

FRAME, WINDOW, HOP = 0.01, 1.5, 0.25  # seconds
SHORTEST_PAUSE, SHORTEST_SPEECH = 0.3, 0.2  # seconds
SPEECH_LEVEL = 0.2  # where speech begins, between the quietest frames (0) and the loudest (1), in decibels
AUDIO = AudioConfig(feature_type="mfcc", num_ceps=24, num_mel_bins=40, frame_shift=FRAME)
ENDINGS = (".flac", ".wav", ".ogg", ".mp3", ".opus")


@dataclass(frozen=True)
class Conversation:
    """A recording, and who speaks when in it."""

    path: Path
    reference: list[Segment]

    @property
    def file(self) -> AudioFile:
        return AudioFile(self.path, AUDIO.sampling_rate)


def one_speaker(conversation: Conversation) -> list[Segment]:
    """One speaker from beginning to end."""
    return [Segment(0.0, conversation.file.duration, "speaker")]


def perfect_without_overlap(conversation: Conversation) -> list[Segment]:
    """The reference with one speaker at a time: who began first continues."""
    times = sorted({time for segment in conversation.reference for time in segment[:2]})
    found = []
    for start, end in pairwise(times):
        speaking = [segment for segment in conversation.reference if segment.start <= start and segment.end >= end]
        if speaking:
            found.append(Segment(start, end, min(speaking).speaker))
    return found


def loud_regions(samples: np.ndarray) -> list[tuple[int, int]]:
    """First and last + 1 frame of each stretch of speech, by energy."""
    levels = frame_levels(samples, AUDIO.sampling_rate)
    if not len(levels):
        return []
    quiet, loud = np.percentile(levels, (5, 95))
    regions = joined_over_gaps(runs_of(levels > quiet + SPEECH_LEVEL * (loud - quiet)), round(SHORTEST_PAUSE / FRAME))
    return [region for region in regions if region[1] - region[0] >= round(SHORTEST_SPEECH / FRAME)]


def window_means(features: np.ndarray, is_speech: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles ``(window,)`` in frames of windows about speech, and what is heard in them, ``(window, dims - 1)``."""
    half, hop = round(WINDOW / FRAME / 2), round(HOP / FRAME)
    middles = np.array([frame for frame in range(0, len(features), hop) if is_speech[frame]], np.int64)
    if not len(middles):
        return middles, np.zeros((0, features.shape[1] - 1))
    around = [slice(max(0, middle - half), middle + half) for middle in middles]
    means = np.stack([features[part][is_speech[part]].mean(0) for part in around])[:, 1:]
    return middles, (means - means.mean(0)) / (means.std(0) + 1e-6)


def clusters_of(means: np.ndarray, number: int) -> np.ndarray:
    """A cluster for each window; the similarity of two falls with their distance relative to the median of all."""
    from sklearn.cluster import SpectralClustering

    if len(means) <= number:
        return np.arange(len(means))
    distances = np.linalg.norm(means[:, None] - means[None], axis=-1)
    likeness = np.exp(-0.5 * (distances / np.median(distances)) ** 2)
    clustering = SpectralClustering(number, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    numbers: np.ndarray = clustering.fit_predict(likeness)
    return numbers


def energy_and_clustering(conversation: Conversation) -> list[Segment]:
    """Loud parts, each moment given to the cluster of the nearest window."""
    file = conversation.file
    samples = file.read(0.0, file.duration)
    features = Features(AUDIO)(samples)
    is_speech = np.zeros(len(features), bool)
    for first, last in loud_regions(samples):
        is_speech[first:last] = True
    middles, means = window_means(features, is_speech)
    if not len(middles):
        return []
    labels = clusters_of(means, len({segment.speaker for segment in conversation.reference}) or 1)
    nearest = np.abs(np.arange(len(features))[:, None] - middles).argmin(1)
    spoken = np.where(is_speech, labels[nearest], -1)
    return [
        Segment(first * FRAME, last * FRAME, f"speaker_{label}")
        for label in np.unique(labels)
        for first, last in runs_of(spoken == label)
    ]


BASELINES: dict[str, Callable[[Conversation], list[Segment]]] = {
    "one speaker": one_speaker,
    "energy and spectral clustering": energy_and_clustering,
    "perfect without overlap": perfect_without_overlap,
}


def read_conversations(audio: Path, rttm: Path) -> dict[str, Conversation]:
    """The recordings that have both audio and a reference, by name."""
    references = read_rttm(rttm)
    paths = {path.stem: path for path in sorted(audio.rglob("*")) if path.suffix.lower() in ENDINGS}
    names = sorted(set(paths) & set(references))
    if not names:
        raise SystemExit(f"no audio under {audio} has its name in the RTTM of {rttm}")
    return {name: Conversation(paths[name], merged(references[name])) for name in names}


def score(
    baseline: Callable[[Conversation], list[Segment]],
    conversations: dict[str, Conversation],
    uems: Mapping[str, Sequence[tuple[float, float]]],
) -> Score:
    """The total over all recordings."""
    references = {name: conversation.reference for name, conversation in conversations.items()}
    hypotheses = {name: baseline(conversation) for name, conversation in conversations.items()}
    return score_recordings(references, hypotheses, uems, collar=0.0, skip_overlap=False).total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audio", type=Path, help="folder of recordings, in any depth")
    parser.add_argument("--rttm", type=Path, help="file or folder; not given, the same folder")
    parser.add_argument("--uem", type=Path, help="file or folder; not given, the whole of each recording")
    options = parser.parse_args()
    conversations = read_conversations(options.audio, options.rttm or options.audio)
    uems = {name: [(0.0, conversation.file.duration)] for name, conversation in conversations.items()}
    if options.uem:
        uems |= {name: parts for name, parts in read_uem(options.uem).items() if name in uems}
    seconds = sum(conversation.file.duration for conversation in conversations.values())
    print(f"{len(conversations)} recordings, {seconds / 60:.1f} minutes, collar 0, overlap scored, per cent\n")
    print("| baseline | DER | miss | false alarm | confusion | JER |\n|---|---|---|---|---|---|")
    for name, baseline in BASELINES.items():
        total = score(baseline, conversations, uems)
        error = total.error
        parts = (error.errors, error.miss, error.false_alarm, error.confusion)
        cells = [f"{100 * seconds / error.scored:.1f}" for seconds in parts]
        print(f"| {name} | {' | '.join(cells)} | {100 * (total.jaccard_rate or 0):.1f} |")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
