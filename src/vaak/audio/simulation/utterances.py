"""The utterances of a cut store as pieces of speech at one level, ready to be put into conversations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.audio.labelled import LabelledAudio
from vaak.audio.simulation.conversations import LEVEL, Piece
from vaak.audio.sources.cut_store import CutStore
from vaak.audio.waveforms.bounded_cache import BoundedCache
from vaak.audio.waveforms.reading import read_cut
from vaak.audio.waveforms.speech_regions import find_speech
from vaak.core.errors import DataError
from vaak.core.storage.files import fingerprint_of

CONTEXT = 0.25
"""Seconds of the pauses around a piece that stay with it, at most half of each pause."""


class CutUtterances:
    """Utterances of single speakers (``vaak.audio.simulation.conversations.Utterances``)."""

    def __init__(self, store: CutStore, audio: AudioConfig, *, find_speech: bool) -> None:
        """With ``find_speech``, utterances without times of speech are cut at their pauses."""
        self.store, self.audio, self.finds_speech = store, audio, find_speech
        self.sampling_rate = audio.sampling_rate
        self.speaker_names = store.speakers
        self.fingerprint = fingerprint_of(
            [store.fingerprint, audio.sampling_rate, audio.channels, find_speech, CONTEXT]
        )
        self._samples = BoundedCache(int(audio.cache_gigabytes * 2**30))
        self._regions: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self.store)

    def speaker_of(self, index: int) -> int:
        number = int(self.store.speaker_numbers[index])
        if number < 0:
            raise DataError(
                f"{self.store.describe(index)} has no speaker or several; an utterance must have one to be used in "
                "conversations"
            )
        return number

    def pieces(self, index: int) -> list[Piece]:
        samples = self._samples.get(index, lambda: self._levelled(index))
        return pieces_of(samples, self._regions[index], self.sampling_rate)

    def _levelled(self, index: int) -> np.ndarray:
        """The utterance with its speech at one level; where that is, is kept."""
        cut = self.store[index]
        audio = read_cut(cut, self.audio)
        regions = self._regions_of(audio, self.store.lacks_times(cut))
        self._regions[index] = regions
        return at_level(audio.samples, regions)

    def _regions_of(self, audio: LabelledAudio, lacks_times: bool) -> list[tuple[int, int]]:
        """First and last + 1 sample of each segment of speech."""
        times = [(segment.start, segment.end) for segment in audio.segments]
        if not times or (lacks_times and self.finds_speech):
            times = find_speech(audio.samples, audio.sampling_rate)
        limits = [(round(start * self.sampling_rate), round(end * self.sampling_rate)) for start, end in times]
        return sorted((first, last) for first, last in limits if last > first)


def at_level(samples: np.ndarray, regions: list[tuple[int, int]]) -> np.ndarray:
    """``samples`` (time,) with the speech in ``regions`` (first and last + 1 sample of each) at ``LEVEL``."""
    speech = [samples[first:last] for first, last in regions]
    power = np.mean(np.square(np.concatenate(speech), dtype=np.float64)) if speech else 0.0
    return samples * np.float32(LEVEL / np.sqrt(power)) if power > 0 else samples


def pieces_of(samples: np.ndarray, regions: list[tuple[int, int]], sampling_rate: int) -> list[Piece]:
    """Each region of ``samples`` (time,), in order, with at most ``CONTEXT`` of the pauses around it."""
    context = round(CONTEXT * sampling_rate)
    middles = [(end + start) // 2 for (_, end), (start, _) in pairwise(regions)]
    pieces = []
    for (first, last), before, after in zip(regions, [0, *middles], [*middles, len(samples)], strict=False):
        low, high = min(first, max(before, first - context)), max(last, min(after, last + context))
        pieces.append(Piece(samples[low:high], first - low, last - low))
    return pieces
