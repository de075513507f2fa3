"""Cuts, or windows of them, with stored features.

A window's features are frames of those of its recording: at its edges they include the audio around it. If they are
computed from its audio alone, which is mirrored, those within ``frame_length / 2`` of an edge differ; all others are
equal.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaak.audio.config import AudioConfig, samples_of
from vaak.audio.features.extractors import Features
from vaak.audio.features.store import FeatureStore, extract, feature_fingerprint
from vaak.audio.labelled import Alignment, LabelledAudio, Segment
from vaak.audio.sources.cut_source import CutSource, CutSpan, WindowSource
from vaak.audio.sources.cut_store import CutStore
from vaak.core.errors import DataError
from vaak.core.storage.files import fingerprint_of

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class LabelledFeatures:
    """Features ``(frame, dims)`` of a section of ``duration`` seconds, and its labels, as in LabelledAudio."""

    name: str
    features: np.ndarray
    duration: float
    segments: tuple[Segment, ...] = ()
    uem: tuple[tuple[float, float], ...] | None = None
    text: str | None = None
    language: str | None = None
    alignment: Alignment | None = None


class StoredSource:
    """A source of cuts (``vaak.audio.labelled.AudioSource``) that has their features too."""

    def __init__(self, source: CutSource | WindowSource, store: FeatureStore, features: Features) -> None:
        """``store`` has the features of whole cuts; ``features`` compute those of cuts that couldn't be read then."""
        self.source, self.store, self.features = source, store, features
        self.durations, self.speakers = source.durations, source.speakers
        self.fingerprint = fingerprint_of([source.fingerprint, "stored"])

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        return self.source.load(index, rng)

    def describe(self, index: int) -> str:
        return self.source.describe(index)

    def load_features(self, index: int, rng: np.random.Generator) -> LabelledFeatures:
        """Example ``index``, with the draws of ``load``.

        Audio is read only if pauses must be found in it. Raises DataError, naming the file.
        """
        place = self.source.place(index, rng)
        rate = self.source.audio.sampling_rate
        duration, spoken = (place.last - place.first) / rate, self.source.spoken(place)
        segments = spoken.segments
        if self.source.hides_pauses(place.cut):
            segments = self.source.at(place).segments
        rest = spoken.uem, spoken.text, spoken.language, spoken.alignment
        return LabelledFeatures(spoken.name, self._frames(place), duration, segments, *rest)

    def _frames(self, place: CutSpan) -> np.ndarray:
        audio, number = self.source.audio, self.features.num_frames(place.last - place.first)
        first = place.first // samples_of(audio.frame_shift, audio.sampling_rate)
        found = self.store.frames(place.cut, first, first + number)
        return found if len(found) == number else self.features(self.source.at(place).samples)


class _Readable:
    """Whole cuts to be extracted; one that can't be read has no samples, with a warning."""

    def __init__(self, source: CutSource) -> None:
        self.source, self.durations, self.speakers = source, source.durations, source.speakers
        self.fingerprint = source.fingerprint

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        try:
            return self.source.load(index, rng)
        except DataError as error:
            log.warning("its features aren't stored: %s", error)
            nothing = np.zeros(0, np.float32)
            return LabelledAudio(self.describe(index), nothing, self.source.audio.sampling_rate)

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def extract_cuts(store: CutStore, audio: AudioConfig, device: str, *, skip_bad: bool) -> FeatureStore:
    """The features of whole cuts, made in ``audio.storage_path`` unless they exist.

    With ``skip_bad``, cuts that can't be read are skipped with a warning. Raises DataError for it otherwise, and what
    ``extract`` raises.
    """
    source = CutSource(store, audio.model_copy(update={"cache_gigabytes": 0.0}))
    return extract(_Readable(source) if skip_bad else source, audio, _folder(audio), device)


def stored_cuts(store: CutStore, audio: AudioConfig) -> FeatureStore | None:
    """The features that ``extract_cuts`` has made of the cuts; None if there are none."""
    folder = _folder(audio) / feature_fingerprint(CutSource(store, audio), audio)
    try:
        return FeatureStore.open(folder)
    except DataError:
        return None


def _folder(audio: AudioConfig) -> Path:
    assert audio.storage_path is not None
    return Path(audio.storage_path).expanduser()
