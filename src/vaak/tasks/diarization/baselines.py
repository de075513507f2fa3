"""Diarizers without a network: what a trained one has to beat.

one speaker                      the same speaker from beginning to end
energy and spectral clustering   speech where it is loud; then windows of 1.5 s every 0.25 s, each the means of its
                                 cepstral coefficients without the first, in as many clusters as the reference has
                                 speakers
perfect without overlap          the reference, but where several speak only one of them; no system that gives each
                                 moment one speaker can do better

Source: Ng, Jordan and Weiss 2001, "On Spectral Clustering: Analysis and an Algorithm".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.labelled import Segment
from vaak.audio.waveforms.speech_regions import frame_levels, joined_over_gaps, runs_of
from vaak.core.errors import optional_import

FRAME, WINDOW, HOP = 0.01, 1.5, 0.25  # seconds
SHORTEST_PAUSE, SHORTEST_SPEECH = 0.3, 0.2  # seconds
SPEECH_LEVEL = 0.2  # where speech begins, between the quietest frames (0) and the loudest (1), in decibels
AUDIO = AudioConfig(feature_type="mfcc", num_ceps=24, num_mel_bins=40, frame_shift=FRAME)


class Conversation(Protocol):
    """A recording, as samples at the rate of ``AUDIO``, how many seconds it has, and who speaks when in it."""

    @property
    def samples(self) -> np.ndarray: ...
    @property
    def duration(self) -> float: ...
    @property
    def reference(self) -> list[Segment]: ...


class Recording(NamedTuple):
    """A conversation in memory."""

    samples: np.ndarray
    duration: float
    reference: list[Segment]


def one_speaker(conversation: Conversation) -> list[Segment]:
    """One speaker from beginning to end."""
    return [Segment(0.0, conversation.duration, "speaker")]


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
    with optional_import("the baseline of a diarizer requires scikit-learn", "audio"):
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
    samples = conversation.samples
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


ENERGY = "energy and spectral clustering"
BASELINES: dict[str, Callable[[Conversation], list[Segment]]] = {
    "one speaker": one_speaker,
    ENERGY: energy_and_clustering,
    "perfect without overlap": perfect_without_overlap,
}
